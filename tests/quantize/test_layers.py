"""What a layer sees of its input, checked against LiteRT's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeport import flatbuffer
from edgeport.quantize.layers import find_layers, set_constants
from tests.flatbuffers import OpSpec, build, constant, op, run, tensor

_VALID, _SAME = 1, 0


def outputs_from_taps(model: object, x: np.ndarray) -> np.ndarray:
    """Computes the only layer from its taps, rows and bias."""
    (layer,) = find_layers(model)
    taps = list(layer.taps(x))
    rows = layer.per_channel
    if layer.kind == "DEPTHWISE_CONV_2D":
        y = sum(tap * rows[:, i] for i, tap in enumerate(taps))
    else:
        y = np.concatenate(taps, axis=-1) @ rows.T
    return np.asarray(y + layer.bias)


@settings(max_examples=40, deadline=None)
@given(
    depthwise=st.booleans(),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([_VALID, _SAME]),
    seed=st.integers(0, 99),
)
def test_taps_times_rows_are_the_convolution(
    depthwise: bool,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    dilation: int,
    padding: int,
    seed: int,
) -> None:
    if dilation > 1:
        stride = 1  # LiteRT takes one or the other
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, *size, 3), dtype=np.float32)
    channels = 3 if depthwise else 4
    shape = (1, *kernel, 3) if depthwise else (4, *kernel, 3)
    out = [
        -(-s // stride) if padding == _SAME else (s - (k - 1) * dilation - 1) // stride + 1
        for s, k in zip(size, kernel, strict=True)
    ]
    options: dict[str, Any] = {"depthMultiplier": 1} if depthwise else {}
    model = build(
        [
            op(
                "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
                [
                    tensor("x", x.shape, "float32"),
                    constant("w", rng.standard_normal(shape, dtype=np.float32)),
                    constant("b", rng.standard_normal(channels, dtype=np.float32)),
                ],
                [tensor("y", (1, *out, channels), "float32")],
                padding=padding,
                strideH=stride,
                strideW=stride,
                dilationHFactor=dilation,
                dilationWFactor=dilation,
                **options,
            )
        ]
    )
    (expected,) = run(flatbuffer.serialize(model), x)
    np.testing.assert_allclose(outputs_from_taps(model, x), expected, atol=1e-4)


def linear(weights: np.ndarray, name: str = "w", source: str = "x", to: str = "y") -> OpSpec:
    out, count = weights.shape
    return op(
        "FULLY_CONNECTED",
        [
            tensor(source, (2, count), "float32"),
            constant(name, weights),
            constant(f"{name}_b", np.zeros(out, np.float32)),
        ],
        [tensor(to, (2, out), "float32")],
    )


def test_fully_connected_layers_see_rows_of_their_input() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    model = build([linear(np.arange(12, dtype=np.float32).reshape(3, 4))])
    (expected,) = run(flatbuffer.serialize(model), x)
    np.testing.assert_allclose(outputs_from_taps(model, x)[0, 0], expected)


def test_rows_go_back_into_the_shape_they_came_from() -> None:
    w = np.arange(2 * 3 * 4, dtype=np.float32).reshape(1, 2, 3, 4)
    model = build(
        [
            op(
                "DEPTHWISE_CONV_2D",
                [
                    tensor("x", (1, 5, 5, 4), "float32"),
                    constant("w", w),
                    constant("b", np.zeros(4, np.float32)),
                ],
                [tensor("y", (1, 4, 3, 4), "float32")],
                padding=_VALID,
                strideH=1,
                strideW=1,
                depthMultiplier=1,
            )
        ]
    )
    (layer,) = find_layers(model)
    assert layer.per_channel.shape == (4, 6)
    np.testing.assert_array_equal(layer.from_per_channel(layer.per_channel), w)


def test_weights_that_two_operators_share_are_left_alone() -> None:
    w = np.eye(4, dtype=np.float32)
    shared = linear(w)
    again = op("FULLY_CONNECTED", [shared.outputs[0], *shared.inputs[1:]],
               [tensor("z", (2, 4), "float32")])  # fmt: skip
    assert find_layers(build([shared, again])) == []


@pytest.mark.parametrize("missing", ["bias", "constant weights"])
def test_layers_that_can_not_be_changed_are_left_out(missing: str) -> None:
    layer = linear(np.eye(4, dtype=np.float32))
    x, w, b = layer.inputs
    inputs = [x, w, None] if missing == "bias" else [x, tensor("w", (4, 4), "float32"), b]
    assert find_layers(build([op("FULLY_CONNECTED", inputs, layer.outputs)])) == []


def test_new_constants_do_not_reach_a_layer_that_shares_the_old_bias() -> None:
    first = linear(np.eye(4, dtype=np.float32), "w1", "x", "y")
    second = op(
        "FULLY_CONNECTED",
        [first.outputs[0], constant("w2", np.eye(4, dtype=np.float32)), first.inputs[2]],
        [tensor("z", (2, 4), "float32")],
    )
    model = build([first, second])
    layers = find_layers(model)
    set_constants(model, layers[0], 2 * layers[0].weights, layers[0].bias + 1)
    (z,) = run(flatbuffer.serialize(model), np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(z, np.full((2, 4), 3.0))
