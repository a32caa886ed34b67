"""Biases of channels with tiny weights."""

from __future__ import annotations

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.quantize.apply import quantize
from edgeport.quantize.dead_channels import keep_biases
from edgeport.quantize.ranges import observe
from edgeport.quantize.recipes import get_recipe
from tests.flatbuffers import build_bytes, constant, op, run, tensor

_RNG = np.random.default_rng(0)


def network(weights: np.ndarray, bias: np.ndarray) -> bytes:
    return build_bytes(
        [
            op(
                "FULLY_CONNECTED",
                [tensor("x", (1, 6), "float32"), constant("w", weights), constant("b", bias)],
                [tensor("y", (1, len(bias)), "float32")],
            )
        ],
        signature=True,
    )


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    return [{"x": _RNG.standard_normal((1, 6), dtype=np.float32)} for _ in range(8)]


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12])
@pytest.mark.parametrize("value", [1.0, -3.0, 1e-3])
def test_the_output_of_a_dead_channel_survives_quantization(
    samples: list[dict[str, np.ndarray]], size: float, value: float
) -> None:
    weights = _RNG.standard_normal((3, 6)).astype(np.float32) * abs(value)
    weights[1] *= size
    bias = np.array([0.1 * value, value, 0.0], np.float32)
    model = network(weights, bias)
    ranges = observe(model, samples, threads=1)
    kept, changed = keep_biases(model, ranges)
    assert changed == 1
    quantized = quantize(kept, get_recipe("w8a8"), ranges, float_borders=True)
    x = samples[0]["x"]
    (found,) = run(quantized, x)
    step = (ranges.maximum["y"] - ranges.minimum["y"]) / 255
    np.testing.assert_allclose(found[0, 1], value, atol=step)
    # What was done to the float model is far below a step.
    np.testing.assert_allclose(run(kept, x)[0], run(model, x)[0], atol=step / 50)


def test_channels_whose_bias_fits_are_not_touched(samples: list[dict[str, np.ndarray]]) -> None:
    model = network(_RNG.standard_normal((3, 6)).astype(np.float32), np.ones(3, np.float32))
    kept, changed = keep_biases(model, observe(model, samples, threads=1))
    assert changed == 0
    assert kept is model


def test_biases_survive_behind_an_activation_that_was_always_zero() -> None:
    bias = np.array([1.0, -2.0, 3.0], np.float32)
    model = network(_RNG.standard_normal((3, 6)).astype(np.float32), bias)
    zeros = np.zeros((1, 6), np.float32)
    ranges = observe(model, [{"x": zeros}], threads=1)
    kept, changed = keep_biases(model, ranges)
    assert changed == 0
    quantized = quantize(kept, get_recipe("w8a8"), ranges, float_borders=True)
    np.testing.assert_allclose(run(quantized, zeros)[0][0], bias, atol=5 / 255)


def test_a_dead_channel_without_bias_stays_zero(samples: list[dict[str, np.ndarray]]) -> None:
    weights = _RNG.standard_normal((2, 6)).astype(np.float32)
    weights[0] = 0
    model = network(weights, np.array([0, 1], np.float32))
    ranges = observe(model, samples, threads=1)
    assert keep_biases(model, ranges)[1] == 0
    quantized = quantize(model, get_recipe("w8a8"), ranges, float_borders=True)
    assert run(quantized, samples[0]["x"])[0][0, 0] == 0.0
    assert flatbuffer.parse(quantized)
