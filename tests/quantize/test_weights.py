"""Weights and biases adjusted on a float flatbuffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.quantize.apply import quantize
from edgeport.quantize.layers import find_layers
from edgeport.quantize.ranges import observe
from edgeport.quantize.recipes import get_recipe
from edgeport.quantize.rounding import round_to_nearest
from edgeport.quantize.weights import keep_outputs
from tests.flatbuffers import TensorSpec, build_bytes, constant, op, run, tensor

_RNG = np.random.default_rng(0)
_SAME = 0


def network() -> bytes:
    """A convolution, a depthwise convolution and a pointwise one, in float."""

    def weights(name: str, *shape: int) -> TensorSpec:
        # Values far from multiples of the step, so that rounding has a mean error to correct.
        return constant(name, (_RNG.random(shape) ** 3).astype(np.float32))

    def bias(name: str, size: int) -> TensorSpec:
        return constant(name, np.zeros(size, np.float32))

    x, a = tensor("x", (1, 8, 8, 3), "float32"), tensor("a", (1, 8, 8, 6), "float32")
    b, c = tensor("b", (1, 8, 8, 6), "float32"), tensor("c", (1, 8, 8, 4), "float32")
    plain: dict[str, Any] = {
        "padding": _SAME,
        "strideH": 1,
        "strideW": 1,
        "fusedActivationFunction": 0,
    }
    return build_bytes(
        [
            op("CONV_2D", [x, weights("w1", 6, 3, 3, 3), bias("b1", 6)], [a], **plain),
            op("DEPTHWISE_CONV_2D", [a, weights("w2", 1, 3, 3, 6), bias("b2", 6)], [b],
               depthMultiplier=1, **plain),
            op("CONV_2D", [b, weights("w3", 4, 1, 1, 6), bias("b3", 4)], [c], **plain),
        ],
        signature=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model() -> bytes:
    return network()


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    smooth = [_RNG.random((1, 8, 8, 1), dtype=np.float32) + 0.5 for _ in range(12)]
    return [{"x": s * np.array([1.0, 0.8, 0.6], np.float32)} for s in smooth]


def with_rounded_weights(model: bytes) -> bytes:
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    for layer in find_layers(parsed):
        tensor_index = int(main.operators[layer.operator].inputs[1])
        rounded = layer.from_per_channel(round_to_nearest(layer.per_channel))
        parsed.buffers[main.tensors[tensor_index].buffer].data = np.frombuffer(
            rounded.tobytes(), np.uint8
        )
    return flatbuffer.serialize(parsed)


def values(model: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a constant's values and scales."""
    parsed = flatbuffer.parse(model)
    tensors = parsed.subgraphs[0].tensors
    found = next(t for t in tensors if flatbuffer.tensor_name(t) == name)
    constants = flatbuffer.constant(parsed, found)
    assert constants is not None
    scales, _ = flatbuffer.quantization(found) or (np.ones(1), np.zeros(1))
    return constants, scales


def mean_outputs(model: bytes, samples: list[dict[str, np.ndarray]]) -> np.ndarray:
    means = [run(model, s["x"])[0].mean(axis=(0, 1, 2)) for s in samples]
    return np.asarray(np.mean(means, axis=0))


def test_corrected_biases_bring_the_mean_output_back(
    model: bytes, samples: list[dict[str, np.ndarray]]
) -> None:
    corrected, layers = keep_outputs(model, samples, threads=1, learn_rounding=False)
    assert layers == 3
    expected = mean_outputs(model, samples)
    before = np.abs(mean_outputs(with_rounded_weights(model), samples) - expected).max()
    after = np.abs(mean_outputs(with_rounded_weights(corrected), samples) - expected).max()
    assert after < 0.1 * before


def test_learned_weights_are_the_integers_of_the_quantized_file(
    model: bytes, samples: list[dict[str, np.ndarray]]
) -> None:
    learned, layers = keep_outputs(model, samples, threads=1, learn_rounding=True)
    assert layers == 3
    quantized = quantize(learned, get_recipe("w8a8"), observe(learned, samples, threads=1))
    changed = 0
    for name in ("w1", "w2", "w3"):
        integers, step = values(quantized, name)
        floats, _ = values(learned, name)
        original, _ = values(model, name)
        step = step.reshape((1, 1, 1, -1) if name == "w2" else (-1, 1, 1, 1))
        np.testing.assert_allclose(integers * step, floats, atol=1e-3 * step.max())
        changed += int((np.rint(original / step) != integers).sum())
    assert changed > 0, "the learned rounding is the nearest everywhere: nothing was tested"


@pytest.mark.parametrize("learn", [False, True])
def test_the_same_samples_give_the_same_bytes_whatever_the_threads(
    model: bytes, samples: list[dict[str, np.ndarray]], learn: bool
) -> None:
    one, _ = keep_outputs(model, samples, threads=1, learn_rounding=learn)
    two, _ = keep_outputs(model, samples, threads=2, learn_rounding=learn)
    assert one == two


def test_no_samples_change_nothing(model: bytes) -> None:
    assert keep_outputs(model, [], threads=1, learn_rounding=True) == (model, 0)
