"""Tests of the pass that lowers operator versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeport import flatbuffer
from edgeport.converters.flatbuffer_passes._operator_versions import RULES
from edgeport.converters.flatbuffer_passes.lower_operator_versions import lower_operator_versions
from tests.flatbuffers import OpSpec, TensorSpec, build, build_bytes, constant, op, run, tensor

INT8 = np.int8


def versions(model: Any) -> list[tuple[str, int]]:
    """Returns (operator, version) in execution order."""
    return [
        (flatbuffer.operator_name(model, o), flatbuffer.operator_version(model, o))
        for o in model.subgraphs[0].operators
    ]


def lowered(*operators: OpSpec, shared_codes: bool = True) -> list[int]:
    """Returns the versions after the pass."""
    model = build(list(operators), shared_codes=shared_codes)
    lower_operator_versions(model)
    return [version for _, version in versions(model)]


def convolution(
    name: str, x: TensorSpec, y: TensorSpec, groups: int = 1, version: int = 3
) -> OpSpec:
    """Describes a 1×1 convolution."""
    values = np.arange(y.shape[3] * (x.shape[3] // groups), dtype=INT8) % 5
    weights = values.reshape(y.shape[3], 1, 1, -1)
    bias = constant(f"{name}_b", np.ones(y.shape[3], np.int32), scale=0.01)
    return op("CONV_2D", [x, constant(f"{name}_w", weights), bias], [y], version=version)


def fully_connected(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], version: int = 5, **options: Any
) -> OpSpec:
    """Describes a linear layer of 4 inputs and 3 outputs."""
    weights = constant("w", np.arange(12, dtype=INT8).reshape(3, 4))
    bias = constant("b", np.zeros(3, np.int32), scale=0.01)
    x, y = tensor("x", x_shape), tensor("y", y_shape)
    return op("FULLY_CONNECTED", [x, weights, bias], [y], version=version, **options)


def test_one_grouped_convolution_does_not_lift_the_others() -> None:
    x, y, z = (tensor(n, (1, 4, 4, 4)) for n in "xyz")
    model = build([convolution("a", x, y), convolution("b", y, z, groups=2, version=6)])
    assert versions(model) == [("CONV_2D", 6), ("CONV_2D", 6)]
    assert lower_operator_versions(model) == 1
    assert versions(model) == [("CONV_2D", 3), ("CONV_2D", 6)]
    assert len(model.operatorCodes) == 2


def test_versions_are_never_raised() -> None:
    x, y = (tensor(n, (1, 4, 4, 4)) for n in "xy")
    model = build([convolution("a", x, y, groups=2, version=1)])
    assert lower_operator_versions(model) == 0
    assert versions(model) == [("CONV_2D", 1)]


def test_keep_num_dims_goes_where_it_means_nothing() -> None:
    model = build([fully_connected((1, 4), (1, 3), keepNumDims=True)])
    assert lower_operator_versions(model) == 1
    assert not model.subgraphs[0].operators[0].builtinOptions.keepNumDims
    assert versions(model) == [("FULLY_CONNECTED", 4)]


@pytest.mark.parametrize(
    ("x_shape", "y_shape"), [((1, 2, 4), (1, 2, 3)), ((1, 1, 4), (1, 1, 3)), ((1, 2, 4), (2, 3))]
)
def test_keep_num_dims_stays_at_higher_ranks(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...]
) -> None:
    model = build([fully_connected(x_shape, y_shape, keepNumDims=True)])
    assert lower_operator_versions(model) == 0
    assert model.subgraphs[0].operators[0].builtinOptions.keepNumDims
    assert versions(model) == [("FULLY_CONNECTED", 5)]


def test_a_missing_bias_is_written_as_absent() -> None:
    weights = constant("w", np.ones((3, 4), INT8))
    x, y = tensor("x", (1, 4)), tensor("y", (1, 3))
    model = build([op("FULLY_CONNECTED", [x, weights], [y], version=6)])
    before = run(flatbuffer.serialize(model), np.array([[1, 2, 3, 4]], INT8))
    lower_operator_versions(model)
    assert list(model.subgraphs[0].operators[0].inputs)[2:] == [-1]
    assert versions(model) == [("FULLY_CONNECTED", 4)]
    after = run(flatbuffer.serialize(model), np.array([[1, 2, 3, 4]], INT8))
    assert before[0].any()
    np.testing.assert_array_equal(before[0], after[0])


def test_a_second_run_changes_nothing() -> None:
    x, y, z = (tensor(n, (1, 4, 4, 4)) for n in "xyz")
    model = build([convolution("a", x, y, version=6), convolution("b", y, z, groups=2, version=6)])
    lower_operator_versions(model)
    once = flatbuffer.serialize(model)
    assert lower_operator_versions(model) == 0
    assert flatbuffer.serialize(model) == once


def test_unused_codes_go_and_equal_ones_are_merged() -> None:
    x, y, z = (tensor(n, (1, 4)) for n in "xyz")
    model = build([op("LOGISTIC", [x], [y], 2), op("LOGISTIC", [y], [z], 2)], shared_codes=False)
    unused = flatbuffer.schema().OperatorCodeT()
    unused.builtinCode = unused.deprecatedBuiltinCode = 28
    model.operatorCodes.insert(0, unused)
    for operator in model.subgraphs[0].operators:
        operator.opcodeIndex += 1
    assert lower_operator_versions(model) == 2
    assert len(model.operatorCodes) == 1
    assert versions(model) == [("LOGISTIC", 2), ("LOGISTIC", 2)]


def test_the_old_code_field_is_written() -> None:
    x, y, z = (tensor(n, (1, 4)) for n in "xyz")
    model = build([op("LOGISTIC", [x], [y], 2), op("GELU", [y], [z], 2)])
    for code in model.operatorCodes:
        code.deprecatedBuiltinCode = 0
    assert lower_operator_versions(model) == 2
    assert [c.deprecatedBuiltinCode for c in model.operatorCodes] == [14, 127]
    assert [c.builtinCode for c in model.operatorCodes] == [14, 150]


def test_operators_outside_the_table_keep_their_version() -> None:
    x, y, z = (tensor(n, (1, 4)) for n in "xyz")
    assert "GELU" not in RULES
    assert lowered(op("GELU", [x], [y], 2), op("CUSTOM", [y], [z], 7, custom="mine")) == [2, 7]


def test_custom_operators_stay_apart() -> None:
    x, y, z = (tensor(n, (1, 4)) for n in "xyz")
    model = build([op("CUSTOM", [x], [y], custom="a"), op("CUSTOM", [y], [z], custom="b")])
    assert lower_operator_versions(model) == 0
    assert [name for name, _ in versions(model)] == ["CUSTOM:a", "CUSTOM:b"]


def unary(name: str, dtype: str, **options: Any) -> OpSpec:
    x, y = tensor("x", (1, 4, 4, 4), dtype), tensor("y", (1, 4, 4, 4), dtype)
    return op(name, [x], [y], version=9, **options)


@pytest.mark.parametrize(
    ("name", "float32", "int8", "int16"),
    [
        ("SOFTMAX", 1, 2, 3), ("LOGISTIC", 1, 2, 3), ("TANH", 1, 2, 3), ("RELU", 1, 2, 3),
        ("RELU6", 1, 2, 3), ("PAD", 1, 2, 3), ("PADV2", 1, 2, 3), ("MEAN", 1, 2, 3),
        ("REDUCE_MAX", 1, 2, 3), ("REDUCE_MIN", 1, 2, 3), ("SUM", 1, 2, 9),
        ("AVERAGE_POOL_2D", 1, 2, 3), ("MAX_POOL_2D", 1, 2, 3), ("CONCATENATION", 1, 2, 3),
        ("RESHAPE", 1, 1, 1), ("SQUEEZE", 1, 1, 1), ("EXPAND_DIMS", 1, 1, 1), ("PACK", 1, 2, 3),
        ("SPACE_TO_DEPTH", 1, 2, 1), ("DEPTH_TO_SPACE", 1, 2, 1), ("LEAKY_RELU", 1, 1, 2),
        ("PRELU", 1, 1, 1), ("TRANSPOSE", 1, 2, 5), ("SLICE", 1, 2, 4), ("ARG_MAX", 1, 2, 1),
        ("GATHER", 1, 2, 4), ("STRIDED_SLICE", 1, 2, 1), ("QUANTIZE", 1, 1, 2),
        ("DEQUANTIZE", 1, 2, 3), ("BATCH_MATMUL", 1, 2, 3), ("RESIZE_BILINEAR", 1, 2, 4),
        ("RESIZE_NEAREST_NEIGHBOR", 1, 2, 4), ("SUB", 1, 2, 5), ("ADD", 1, 2, 3),
    ],
)  # fmt: skip
def test_versions_follow_the_type(name: str, float32: int, int8: int, int16: int) -> None:
    more = {"potScaleInt16": False} if name in ("ADD", "SUB") else {}
    found = [lowered(unary(name, t, **more))[0] for t in ("float32", "int8", "int16")]
    assert found == [float32, int8, int16]


def test_version_of_split_follows_its_second_input() -> None:
    axis = constant("axis", np.array(3, np.int32))
    x, y = tensor("x", (1, 4)), tensor("y", (1, 4))
    assert lowered(op("SPLIT", [axis, x], [y], 9, numSplits=1)) == [2]


@pytest.mark.parametrize(
    ("options", "version"),
    [({}, 2), ({"alignCorners": True}, 3), ({"halfPixelCenters": True}, 3)],
)
def test_version_of_nearest_resize_follows_its_grid(options: dict[str, bool], version: int) -> None:
    assert lowered(unary("RESIZE_NEAREST_NEIGHBOR", "int8", **options)) == [version]


@pytest.mark.parametrize(("align", "half", "version"), [(True, False, 2), (False, True, 3)])
def test_version_of_bilinear_resize_follows_its_grid(align: bool, half: bool, version: int) -> None:
    found = lowered(unary("RESIZE_BILINEAR", "int8", alignCorners=align, halfPixelCenters=half))
    assert found == [version]


@pytest.mark.parametrize(("scale", "version"), [(0.1, 2), (1.0, 3)])
def test_version_of_a_product_follows_its_scales(scale: float, version: int) -> None:
    a, b = (tensor(n, (1, 4), scale=scale) for n in "ab")
    assert lowered(op("MUL", [a, b], [tensor("y", (1, 4), scale=0.5)], 9)) == [version]


@pytest.mark.parametrize(
    ("kind", "x", "weights", "scales", "version"),
    [
        ("CONV_2D", "float32", "float32", None, 1), ("CONV_2D", "uint8", "uint8", 0.1, 1),
        ("CONV_2D", "float32", "int8", 0.1, 2), ("CONV_2D", "float32", "int8", [0.1] * 4, 5),
        ("CONV_2D", "int8", "int8", [0.1] * 4, 3), ("CONV_2D", "int8", "int4", 0.1, 7),
        ("CONV_2D", "int16", "int8", 0.1, 9), ("CONV_2D", "int8", "int2", 0.1, 9),
        ("DEPTHWISE_CONV_2D", "float32", "float32", None, 1),
        ("DEPTHWISE_CONV_2D", "float32", "int8", 0.1, 4),
        ("DEPTHWISE_CONV_2D", "float32", "int8", [0.1] * 4, 6),
        ("DEPTHWISE_CONV_2D", "int8", "int8", 0.1, 3),
        ("FULLY_CONNECTED", "float32", "float32", None, 1),
        ("FULLY_CONNECTED", "float32", "int8", 0.1, 3),
        ("FULLY_CONNECTED", "float32", "int8", [0.1] * 4, 12),
        ("FULLY_CONNECTED", "int8", "int4", 0.1, 10),
        ("FULLY_CONNECTED", "int16", "int8", 0.1, 9),
    ],
)  # fmt: skip
def test_versions_follow_weights(
    kind: str, x: str, weights: str, scales: Any, version: int
) -> None:
    shape = (4, 1, 1, 4) if kind != "FULLY_CONNECTED" else (4, 4)
    operator = op(
        kind,
        [tensor("x", (1, 4, 4, 4), x), tensor("w", shape, weights, scale=scales), None],
        [tensor("y", (1, 4, 4, 4), x)],
        version=version if version == 9 else 20,
    )
    assert lowered(operator) == [version]


def test_a_dilated_depthwise_convolution_needs_version_2() -> None:
    x, y = tensor("x", (1, 4, 4, 4), "uint8"), tensor("y", (1, 4, 4, 4), "uint8")
    weights = constant("w", np.ones((1, 3, 3, 4), np.uint8))
    plain = op("DEPTHWISE_CONV_2D", [x, weights, None], [y], version=9)
    dilated = op("DEPTHWISE_CONV_2D", [x, weights, None], [y], version=9, dilationWFactor=2)
    assert lowered(plain) == [1]
    assert lowered(dilated) == [2]


@pytest.mark.parametrize(
    ("bias", "activation", "version"), [(False, 0, 2), (True, 0, 3), (True, 1, 4), (False, 1, 4)]
)
def test_version_of_a_transposed_convolution(bias: bool, activation: int, version: int) -> None:
    size = constant("size", np.array([1, 4, 4, 4], np.int32))
    weights = constant("w", np.ones((4, 1, 1, 4), INT8))
    more = [constant("b", np.zeros(4, np.int32))] if bias else []
    x, y = tensor("x", (1, 4, 4, 4)), tensor("y", (1, 4, 4, 4))
    operator = op(
        "TRANSPOSE_CONV",
        [size, weights, x, *more],
        [y],
        version=9,
        fusedActivationFunction=activation,
    )
    assert lowered(operator) == [version]


@pytest.mark.parametrize("name", ["MAXIMUM", "MINIMUM", "SUB"])
def test_broadcasting_above_rank_4_needs_version_3(name: str) -> None:
    big, small, y = (
        tensor(n, s) for n, s in zip("abc", [(1, 1, 2, 2, 2), (2,), (1,)], strict=True)
    )
    assert lowered(op(name, [big, small], [y], 9)) == [3]
    assert lowered(op(name, [small, small], [y], 9)) == [2]


@given(st.lists(st.tuples(st.sampled_from(sorted(RULES)), st.integers(1, 12)), min_size=1))
def test_every_operator_keeps_its_name_and_is_not_raised(steps: list[tuple[str, int]]) -> None:
    tensors = [tensor(f"t{i}", (1, 4, 4, 4)) for i in range(len(steps) + 1)]
    operators = [
        op(name, [tensors[i], tensors[i], tensors[i]], [tensors[i + 1]], version)
        for i, (name, version) in enumerate(steps)
    ]
    model = build(operators, shared_codes=False)
    before = versions(model)
    lower_operator_versions(model)
    after = versions(model)
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(a <= b for (_, a), (_, b) in zip(after, before, strict=True))
    keys = [(c.builtinCode, c.version) for c in model.operatorCodes]
    assert len(keys) == len(set(keys))


def test_the_model_computes_the_same() -> None:
    x, y, z = (tensor(n, (1, 4, 4, 4)) for n in "xyz")
    operators = [convolution("a", x, y), convolution("b", y, z, groups=2, version=6)]
    value = np.arange(64, dtype=INT8).reshape(1, 4, 4, 4)
    before = run(build_bytes(operators), value)
    model = build(operators)
    assert lower_operator_versions(model) > 0
    after = run(flatbuffer.serialize(model), value)
    assert before[0].any()
    np.testing.assert_array_equal(before[0], after[0])
