"""Weights and biases that keep a quantized layer's outputs where they were.

Works on the float flatbuffer, before ai-edge-quantizer, from the inputs of each layer on some of
the calibration samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edgeport import flatbuffer
from edgeport.quantize.activations import ActivationReader
from edgeport.quantize.layers import Layer, find_layers, set_constants
from edgeport.quantize.rounding import round_for_outputs, round_to_nearest

_POSITIONS = 1024  # of a sample that a layer's second moments are taken from


@dataclass(slots=True)
class _Seen:
    """What a layer saw: means of its inputs by tap, [taps, in], and second moments."""

    means: np.ndarray
    moments: np.ndarray | None


def keep_outputs(
    model: bytes,
    samples: Iterable[dict[str, np.ndarray]],
    *,
    threads: int,
    learn_rounding: bool,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[bytes, int]:
    """Corrects biases, and with `learn_rounding` also the rounding of weights.

    Rounding changes a layer's mean output by (W − Q)·E[x]; that is added to the bias (Nagel and
    others, Data-Free Quantization, 2019, arXiv:1906.04721, with measured means).

    Args:
        model: A float flatbuffer.
        samples: Inputs by signature name; a few dozen serve.
        threads: Threads for LiteRT's kernels.
        learn_rounding: Choose the integer weights for the layer's outputs, see
            `rounding.round_for_outputs`; else they are rounded to the nearest later.
        progress: Told the number of samples done.

    Returns:
        The model with other weights and biases, and the number of layers changed.
    """
    parsed = flatbuffer.parse(model)
    layers = find_layers(parsed)
    seen = _observe(model, layers, samples, threads, learn_rounding, progress)
    if not seen:
        return model, 0
    for layer, found in zip(layers, seen, strict=True):
        rows = layer.per_channel
        if found.moments is not None:
            rounded = round_for_outputs(rows, found.moments)
            weights = layer.from_per_channel(rounded)
        else:
            rounded = round_to_nearest(rows)
            weights = layer.weights
        lost = rows - rounded
        if layer.kind == "DEPTHWISE_CONV_2D":
            shift = (lost * found.means.T).sum(axis=1)
        else:
            shift = lost @ found.means.reshape(-1)
        set_constants(parsed, layer, weights, layer.bias + shift.astype(np.float32))
    return flatbuffer.serialize(parsed), len(layers)


def _observe(
    model: bytes,
    layers: list[Layer],
    samples: Iterable[dict[str, np.ndarray]],
    threads: int,
    learn_rounding: bool,
    progress: Callable[[int], None],
) -> list[_Seen]:
    reader = ActivationReader(model, threads)
    operators = reader.model.subgraphs[0].operators
    inputs = [int(operators[layer.operator].inputs[0]) for layer in layers]
    rng = np.random.default_rng(0)
    seen: list[_Seen] = []
    count = 0
    for sample in samples:
        reader.run(sample)
        for number, (layer, index) in enumerate(zip(layers, inputs, strict=True)):
            taps = list(layer.taps(reader.activation(index)))
            means = np.stack([t.mean(axis=(0, 1, 2), dtype=np.float64) for t in taps])
            moments = _second_moments(layer, taps, rng) if learn_rounding else None
            if number == len(seen):
                seen.append(_Seen(means, moments))
            else:
                seen[number].means += means
                kept = seen[number].moments
                if kept is not None:
                    kept += moments
        count += 1
        progress(count)
    for found in seen:
        found.means /= count
    return seen


def _second_moments(layer: Layer, taps: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Returns Σ x·xᵀ over some positions: [n, n], or [out, n, n] for depthwise layers."""
    flat = [t.reshape(-1, t.shape[-1]) for t in taps]
    positions = len(flat[0])
    if positions > _POSITIONS:
        chosen = rng.choice(positions, _POSITIONS, replace=False)
        flat = [t[chosen] for t in flat]
    if layer.kind == "DEPTHWISE_CONV_2D":
        x = np.stack(flat, axis=-1).transpose(1, 2, 0)  # [out, taps, positions]
        return np.asarray(x @ x.swapaxes(-1, -2), dtype=np.float64)
    x = np.concatenate(flat, axis=-1)
    return np.asarray(x.T @ x, dtype=np.float64)
