"""Channels whose weights are so small that their bias would be lost in integers."""

from __future__ import annotations

import numpy as np

from edgeport import flatbuffer
from edgeport.quantize.layers import find_layers, set_constants
from edgeport.quantize.ranges import Ranges
from edgeport.quantize.rounding import LEVELS

# An int32 bias has the scale of the input times that of the weights. Half of its range is used.
_LARGEST_BIAS = 2.0**30
_INPUT_STEPS = 255


def keep_biases(model: bytes, ranges: Ranges) -> tuple[bytes, int]:
    """Raises one weight of each channel whose bias does not fit into int32.

    A pruned or dead channel has weights near zero and so a tiny scale; its bias, divided by that
    scale, overflows and the channel's constant output is lost. One weight is raised until the bias
    fits. That changes the output by less than 2e-5 of the bias.

    Args:
        model: A float flatbuffer.
        ranges: Ranges of its activations.

    Returns:
        The model, and the number of channels changed.
    """
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    changed = 0
    for layer in find_layers(parsed):
        operator = main.operators[layer.operator]
        name = flatbuffer.tensor_name(main.tensors[int(operator.inputs[0])])
        if name not in ranges.minimum:
            continue
        low, high = ranges.to_quantize(name)
        step = (max(high, 0.0) - min(low, 0.0)) / _INPUT_STEPS
        rows = layer.per_channel.astype(np.float64)
        least = LEVELS * np.abs(layer.bias.astype(np.float64)) / (step * _LARGEST_BIAS)
        short = np.abs(rows).max(axis=1) < least
        if not short.any():
            continue
        rows[short, 0] = np.maximum(least[short], np.finfo(np.float32).tiny)
        set_constants(parsed, layer, layer.from_per_channel(rows), layer.bias)
        changed += int(short.sum())
    return (flatbuffer.serialize(parsed), changed) if changed else (model, 0)
