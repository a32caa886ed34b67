"""Tests of the prediction of what the Edge TPU compiler maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeport import flatbuffer
from edgeport.compilers.edgetpu_placement import LIMITS, first_set, knowledge, predict
from edgeport.converters.flatbuffer_passes._operator_versions import RULES
from edgeport.report import OperatorPlacement, Placement
from tests.flatbuffers import OpSpec, TensorSpec, build, build_bytes, chain, constant, op, tensor

MAPPED = "Mapped to Edge TPU"
LIMITATION = "Operation is otherwise supported, but not mapped due to some unspecified limitation"
SECOND = "More than one subgraph is not supported"
SHAPE = (1, 4, 4, 8)


def placed(*operators: OpSpec) -> Placement:
    return predict(build_bytes(list(operators)))


def on(*operators: OpSpec) -> list[str]:
    return [o.on for o in placed(*operators).operators]


def one(operator: OpSpec) -> OperatorPlacement:
    return placed(operator).operators[0]


def unary(name: str, version: int = 1, dtype: str = "int8", **options: Any) -> OpSpec:
    return op(name, [tensor("x", SHAPE, dtype)], [tensor("y", SHAPE, dtype)], version, **options)


def reduction(
    name: str, axes: list[int], shape: tuple[int, ...] = SHAPE, keep: bool = False
) -> OpSpec:
    x = tensor("x", shape)
    reduced = {a % len(shape) for a in axes}
    rest = tuple(d for i, d in enumerate(shape) if i not in reduced)
    if keep:
        rest = tuple(1 if i in reduced else d for i, d in enumerate(shape))
    return op(
        name, [x, constant("axes", np.array(axes, np.int32))], [tensor("y", rest)], 2, keepDims=keep
    )


def convolution(
    x_shape: tuple[int, ...] = SHAPE, *, inputs: int = 8, version: int = 3, **options: Any
) -> OpSpec:
    weights = constant("w", np.ones((4, 1, 1, inputs), np.int8))
    bias = constant("b", np.zeros(4, np.int32))
    y = tensor("y", (*x_shape[:-1], 4))
    return op("CONV_2D", [tensor("x", x_shape), weights, bias], [y], version, **options)


def test_a_chain_of_known_operators_is_mapped_as_one_subgraph() -> None:
    found = placed(*chain(("LOGISTIC", 2), ("RELU6", 2), ("TANH", 2)))
    assert found.count() == {"edgetpu": 3}
    assert found.partitions == 1
    assert {o.reason for o in found.operators} == {MAPPED}
    assert all("vendor document" in o.source for o in found.operators)
    assert all(o.source.startswith("prediction") for o in found.operators)


def test_everything_after_the_first_unsupported_operator_is_on_the_cpu() -> None:
    found = placed(*chain(("RELU", 2), ("HARD_SWISH", 1), ("RELU", 2), ("TANH", 2)))
    assert [o.on for o in found.operators] == ["edgetpu", "cpu", "cpu", "cpu"]
    assert [o.reason for o in found.operators] == [
        MAPPED, "Operation not supported", SECOND, SECOND,
    ]  # fmt: skip
    assert found.partitions == 1


def test_unsupported_operators_at_the_head_do_not_stop_what_follows() -> None:
    assert on(*chain(("HARD_SWISH", 1), ("ELU", 1), ("RELU", 2), ("TANH", 2))) == [
        "cpu", "cpu", "edgetpu", "edgetpu",
    ]  # fmt: skip


def test_independent_branches_stay_on_the_tpu() -> None:
    x, a, b, c, d, y = (tensor(n, SHAPE) for n in ("x", "a", "b", "c", "d", "y"))
    found = on(
        op("RELU", [x], [a], 2),
        op("HARD_SWISH", [a], [b]),
        op("TANH", [a], [c], 2),
        op("RELU", [c], [d], 2),
        op("ADD", [b, d], [y], 2),
    )
    assert found == ["edgetpu", "cpu", "edgetpu", "edgetpu", "cpu"]


def test_nothing_mapped_is_no_subgraph() -> None:
    found = placed(*chain(("HARD_SWISH", 1), ("ELU", 1)))
    assert found.partitions == 0
    assert found.count() == {"cpu": 2}


def test_float_borders_run_on_the_cpu() -> None:
    x, y = tensor("x", SHAPE, "float32"), tensor("y", SHAPE, "float32")
    a, b = tensor("a", SHAPE), tensor("b", SHAPE)
    found = placed(op("QUANTIZE", [x], [a]), op("RELU", [a], [b], 2), op("DEQUANTIZE", [b], [y], 2))
    assert [o.on for o in found.operators] == ["cpu", "edgetpu", "cpu"]
    assert found.operators[0].reason == "Operation is working on an unsupported data type"


def test_a_float_model_is_refused_as_a_whole() -> None:
    x, y, z = (tensor(n, SHAPE, "float32") for n in "xyz")
    found = placed(op("RELU", [x], [y]), op("TANH", [y], [z]))
    assert {(o.on, o.reason) for o in found.operators} == {("cpu", "Model not quantized")}
    assert found.partitions == 0


@pytest.mark.parametrize(
    ("name", "version"), [("CONV_2D", 6), ("TRANSPOSE_CONV", 4), ("EXP", 2), ("QUANTIZE", 3)]
)
def test_a_version_that_the_parser_does_not_know_refuses_the_whole_file(
    name: str, version: int
) -> None:
    found = placed(*chain(("RELU", 2), (name, version), ("TANH", 2)))
    reason = f"Didn't find op for builtin opcode '{name}' version '{version}'"
    assert {(o.on, o.reason) for o in found.operators} == {("cpu", reason)}
    assert found.partitions == 0
    assert all("issue" in o.source for o in found.operators)


def test_an_operator_code_that_the_parser_does_not_know_refuses_the_whole_file() -> None:
    found = placed(*chain(("RELU", 2), ("GELU", 2)))
    assert {(o.on, o.reason) for o in found.operators} == {
        ("cpu", "Op builtin_code out of range: 150")
    }


def test_a_version_between_known_and_refused_is_uncertain() -> None:
    assert one(convolution(version=3)).on == "edgetpu"
    found = one(convolution(version=5))
    assert found.on == "uncertain"
    assert "version 5 above 3" in found.reason


def test_an_uncertain_operator_does_not_throw_the_rest_to_the_cpu() -> None:
    alpha = constant("alpha", np.ones(8, np.int8))
    x, a, b, c = (tensor(n, SHAPE) for n in "xabc")
    found = placed(
        op("RELU", [x], [a], 2), op("PRELU", [a, alpha], [b], 1), op("TANH", [b], [c], 2)
    )
    assert [o.on for o in found.operators] == ["edgetpu", "uncertain", "edgetpu"]
    assert found.operators[0].reason == MAPPED
    assert "provided that" in found.operators[2].reason
    assert found.partitions == 1


@pytest.mark.parametrize(
    "name", ["TRANSPOSE", "PRELU", "STRIDED_SLICE", "RSQRT", "SQUARED_DIFFERENCE"]
)
def test_operators_without_evidence_are_uncertain(name: str) -> None:
    strides = constant("strides", np.ones(4, np.int32))
    operator = unary(name)
    if name == "STRIDED_SLICE":
        operator = op(name, [tensor("x", SHAPE), strides, strides, strides], [tensor("y", SHAPE)])
    assert one(operator).on == "uncertain"


@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION"])
def test_a_fused_activation_is_not_mapped_there(name: str) -> None:
    assert one(unary(name)).on == "edgetpu"
    found = one(unary(name, fusedActivationFunction=1))
    assert (found.on, found.reason) == ("cpu", LIMITATION)


def test_dilation_must_be_the_same_in_both_directions() -> None:
    assert one(convolution(dilationWFactor=2, dilationHFactor=2)).on == "edgetpu"
    assert one(convolution(dilationWFactor=2, dilationHFactor=1)).on == "cpu"


def test_a_grouped_convolution_of_a_low_version_is_uncertain() -> None:
    assert one(convolution(inputs=4)).on == "uncertain"


def test_weights_must_be_constant() -> None:
    weights = tensor("w", (1, 1, 1, 8))
    found = one(op("CONV_2D", [tensor("x", SHAPE), weights, None], [tensor("y", (1, 4, 4, 1))], 3))
    assert (found.on, found.reason) == ("cpu", LIMITATION)


@pytest.mark.parametrize(("batch", "expected"), [(1, "edgetpu"), (2, "cpu")])
def test_the_output_of_a_linear_layer_is_one_dimensional(batch: int, expected: str) -> None:
    weights = constant("w", np.ones((3, 4), np.int8))
    x, y = tensor("x", (batch, 4)), tensor("y", (batch, 3))
    assert one(op("FULLY_CONNECTED", [x, weights, None], [y], 4)).on == expected


def test_a_batch_is_an_unsupported_rank() -> None:
    found = one(convolution((2, 4, 4, 8)))
    assert found.on == "cpu"
    assert found.reason == "Tensor has unsupported rank (up to 3 innermost dimensions mapped)"


def test_five_dimensions_are_taken_only_with_outer_ones() -> None:
    for shape, expected in (((1, 1, 4, 4, 8), "edgetpu"), ((1, 2, 4, 4, 8), "cpu")):
        x, y = tensor("x", shape), tensor("y", shape)
        assert one(op("RELU", [x], [y], 2)).on == expected


def test_a_dynamic_size_is_not_mapped() -> None:
    x, y = tensor("x", (1, -1, 4, 8)), tensor("y", (1, -1, 4, 8))
    found = one(op("RELU", [x], [y], 2))
    assert (found.on, found.reason) == ("cpu", "Attempting to use a dynamic-sized tensor")


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        ([1, 2], (1, 7, 7, 1280), "edgetpu"),
        ([-3, -2], (1, 7, 7, 1280), "edgetpu"),
        ([2, 1], (1, 64, 128, 3), "edgetpu"),
        ([1, 2], (1, 256, 128, 3), "uncertain"),
        ([3], (1, 7, 7, 64), "uncertain"),
        ([1], (1, 7, 7, 64), "uncertain"),
        ([0, 1, 2], (1, 7, 7, 64), "cpu"),
    ],
)
def test_only_a_spatial_mean_of_seen_size_is_mapped(
    axes: list[int], shape: tuple[int, ...], expected: str
) -> None:
    assert one(reduction("MEAN", axes, shape)).on == expected
    assert one(reduction("MEAN", axes, shape, keep=True)).on == expected


@pytest.mark.parametrize("name", ["SUM", "REDUCE_MAX", "REDUCE_MIN"])
def test_reductions_over_the_batch_are_not_mapped(name: str) -> None:
    assert one(reduction(name, [1, 2])).on == "edgetpu"
    assert one(reduction(name, [0])).on == "cpu"


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ([[0, 0], [1, 1], [1, 1], [0, 0]], "edgetpu"),
        ([[0, 0], [0, 0], [0, 0], [0, 1]], "uncertain"),
        ([[1, 0], [0, 0], [0, 0], [0, 0]], "cpu"),
    ],
)
def test_padding_is_spatial(amounts: list[list[int]], expected: str) -> None:
    values = constant("p", np.array(amounts, np.int32))
    y = tensor("y", tuple(d + sum(a) for d, a in zip(SHAPE, amounts, strict=True)))
    found = one(op("PAD", [tensor("x", SHAPE), values], [y], 2))
    assert found.on == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(8, "edgetpu"), (32, "edgetpu"), (48, "uncertain"), (132, "cpu"), (2, "uncertain")],
)
@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resizing_is_mapped_up_to_a_factor(name: str, size: int, expected: str) -> None:
    values = constant("size", np.array([size, size], np.int32))
    y = tensor("y", (1, size, size, 8))
    assert one(op(name, [tensor("x", SHAPE), values], [y], 2)).on == expected


def test_half_pixel_resizing_is_uncertain() -> None:
    values = constant("size", np.array([8, 8], np.int32))
    y = tensor("y", (1, 8, 8, 8))
    operator = op("RESIZE_BILINEAR", [tensor("x", SHAPE), values], [y], 3, halfPixelCenters=True)
    assert one(operator).on == "uncertain"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 1000), "edgetpu"), ((1, 16_384), "edgetpu"), ((1, 20_000), "uncertain"), ((2, 5), "cpu")],
)
def test_softmax_is_short_and_one_dimensional(shape: tuple[int, ...], expected: str) -> None:
    assert one(op("SOFTMAX", [tensor("x", shape)], [tensor("y", shape)], 2)).on == expected


def test_large_reshapes_and_activations_are_uncertain() -> None:
    for size, expected in ((128, "edgetpu"), (130, "uncertain")):
        x, y = tensor("x", (1, size, 128, 1)), tensor("y", (1, size * 128))
        assert one(op("RESHAPE", [x, constant("s", np.array([1, -1], np.int32))], [y])).on == (
            expected
        )
    for size, expected in ((512, "edgetpu"), (1024, "uncertain")):
        x, y = (tensor(n, (1, size, size, 8)) for n in "xy")
        assert one(op("RELU", [x], [y], 2)).on == expected


@pytest.mark.parametrize(
    ("values", "more", "expected"), [(0, 0, "edgetpu"), (1, 0, "cpu"), (0, 1, "cpu")]
)
def test_a_constant_is_concatenated_only_as_zero_padding(
    values: int, more: int, expected: str
) -> None:
    fixed = constant("c", np.full(SHAPE, values, np.int8))
    others = [tensor(f"x{i}", SHAPE) for i in range(1 + more)]
    y = tensor("y", (1, 4, 4, 8 * (2 + more)))
    assert one(op("CONCATENATION", [*others, fixed], [y], 2, axis=3)).on == expected


@pytest.mark.parametrize(("axis", "expected"), [(3, "edgetpu"), (-1, "edgetpu"), (0, "cpu")])
def test_splits_spare_the_batch(axis: int, expected: str) -> None:
    at = constant("axis", np.array(axis, np.int32))
    x, parts = tensor("x", SHAPE), [tensor(n, (1, 4, 4, 4)) for n in "ab"]
    assert one(op("SPLIT", [at, x], parts, 2, numSplits=2)).on == expected


@pytest.mark.parametrize(
    ("strides", "expected"), [([1, 1, 1, 1], "uncertain"), ([1, 2, 2, 1], "cpu")]
)
def test_slices_have_unit_strides(strides: list[int], expected: str) -> None:
    bounds = constant("bounds", np.zeros(4, np.int32))
    inputs = [tensor("x", SHAPE), bounds, bounds, constant("s", np.array(strides, np.int32))]
    assert one(op("STRIDED_SLICE", inputs, [tensor("y", SHAPE)], 2)).on == expected


def lstm(**options: Any) -> OpSpec:
    x, y = tensor("x", (1, 7, 5)), tensor("y", (1, 7, 6))
    w = [constant(f"w{i}", np.ones((6, 5), np.int8)) for i in range(4)]
    r = [constant(f"r{i}", np.ones((6, 6), np.int8)) for i in range(4)]
    b = [constant(f"b{i}", np.zeros(6, np.int32)) for i in range(4)]
    states = [tensor("h", (1, 6), variable=True), tensor("c", (1, 6), "int16", variable=True)]
    none: list[TensorSpec | None] = [None, None, None]
    inputs = [x, *w, *r, *none, *b, *none[:2], *states]
    return op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], 1, **options)


def test_a_plain_lstm_is_mapped_and_others_are_uncertain() -> None:
    assert one(lstm()).on == "edgetpu"
    assert one(lstm(timeMajor=True)).on == "uncertain"


def test_custom_operators_are_not_mapped() -> None:
    x, y = tensor("x", SHAPE), tensor("y", SHAPE)
    found = one(op("CUSTOM", [x], [y], custom="PosenetDecoderOp"))
    assert (found.on, found.operator) == ("cpu", "CUSTOM:PosenetDecoderOp")


def test_the_table_names_only_known_limits_and_operators() -> None:
    known = knowledge()
    schema = flatbuffer.schema()
    for support in known.operators.values():
        assert hasattr(schema.BuiltinOperator, support.name)
        assert set(support.limits) <= LIMITS.keys()
        assert support.source
        assert support.refused is None or support.refused > support.accepted
        assert 10 <= support.runtime <= 14
    used = {limit for support in known.operators.values() for limit in support.limits}
    assert used == LIMITS.keys()


def test_int8_versions_that_the_pass_writes_are_accepted() -> None:
    accepted = {name: s.accepted for name, s in knowledge().operators.items() if name in RULES}
    assert accepted.keys() >= {"CONV_2D", "FULLY_CONNECTED", "ADD", "MEAN"}
    int8 = {
        "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "TRANSPOSE_CONV": 3,
        "RESHAPE": 1, "EXPAND_DIMS": 1, "SQUEEZE": 1, "QUANTIZE": 1, "PRELU": 1,
    }  # fmt: skip
    assert accepted == {name: int8.get(name, 2) for name in accepted}


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_the_first_set_is_closed_and_uniform(mappable: list[bool], data: st.DataObject) -> None:
    """No operator of the set depends on one outside that could run only after a part of it."""
    tensors = [tensor("x", (1, 4))]
    operators = []
    for i, _ in enumerate(mappable):
        sources = data.draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=2))
        tensors.append(tensor(f"t{i}", (1, 4)))
        operators.append(op("ADD", sources, [tensors[-1]], 2))
    graph = build(operators, outputs=[tensors[-1]]).subgraphs[0]
    chosen = first_set(graph, mappable)
    assert all(mappable[i] for i in chosen)
    assert bool(chosen) == any(mappable)
    maker = {int(o.outputs[0]): i for i, o in enumerate(graph.operators)}

    def ancestors(i: int) -> set[int]:
        direct = {maker[int(t)] for t in graph.operators[i].inputs if int(t) in maker}
        return direct.union(*(ancestors(j) for j in direct))

    for i in chosen:
        outside = ancestors(i) - chosen
        assert not any(ancestors(j) & chosen for j in outside)
