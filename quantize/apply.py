"""Quantizing a float flatbuffer with ai-edge-quantizer, with ranges found here."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from edgeport import flatbuffer
from edgeport.errors import ConversionError
from edgeport.quantize.float_borders import add_float_borders
from edgeport.quantize.ranges import Ranges
from edgeport.quantize.recipes import Recipe


def quantize(
    model: bytes, recipe: Recipe, ranges: Ranges | None, *, float_borders: bool = False
) -> bytes:
    """Writes the model in the recipe's number formats.

    Args:
        model: A float flatbuffer.
        recipe: What to write.
        ranges: Ranges of all float activations; needed where the recipe fixes them.
        float_borders: Keep float inputs and outputs, with QUANTIZE and DEQUANTIZE inside.

    Raises:
        ConversionError: ai-edge-quantizer refuses the model.
    """
    parsed = flatbuffer.parse(model)
    if not recipe.algorithm or not _computes_in_float(parsed):
        return model
    from ai_edge_quantizer import quantizer
    from ai_edge_quantizer import recipe as published

    calibration = _as_calibration_result(parsed, ranges) if ranges else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = quantizer.Quantizer(bytearray(model))
            engine.load_quantization_recipe(getattr(published, recipe.algorithm)())
            result = engine.quantize(
                calibration, enable_progress_bar=False, enable_progress_report=False
            )
    except Exception as e:
        raise ConversionError(
            f"ai-edge-quantizer refuses the model ({type(e).__name__}: {e})",
            hint="run with -v to see its own messages, or take another `--recipe`",
        ) from e
    quantized = _with_whole_signature(bytes(result.quantized_model), parsed)
    return add_float_borders(quantized) if float_borders and recipe.fully_integer else quantized


def _computes_in_float(model: flatbuffer.Model) -> bool:
    return any(flatbuffer.type_name(t) == "float32" for t in model.subgraphs[0].tensors)


def _with_whole_signature(quantized: bytes, before: flatbuffer.Model) -> bytes:
    """Lets the signature name the model's own outputs again.

    Where an output is also read by an operator that stays in float, ai-edge-quantizer makes its
    dequantized copy the output and leaves the signature behind; no runtime can read it then.
    """
    after = flatbuffer.parse(quantized)
    positions = {int(index): i for i, index in enumerate(before.subgraphs[0].outputs)}
    main = after.subgraphs[0]
    outputs = [int(index) for index in main.outputs]
    copied = {
        flatbuffer.indices(op.outputs)[0]: flatbuffer.indices(op.inputs)[0]
        for op in main.operators
        if flatbuffer.operator_name(after, op) == "DEQUANTIZE"
    }
    stale = False
    for old, new in zip(before.signatureDefs or [], after.signatureDefs or [], strict=True):
        was = {flatbuffer.text(o.name): int(o.tensorIndex) for o in old.outputs}
        for output in new.outputs:
            position = positions.get(was.get(flatbuffer.text(output.name), -1))
            if position is None or int(output.tensorIndex) in outputs:
                continue
            stale = True
            if copied.get(outputs[position]) == output.tensorIndex:
                outputs[position] = int(output.tensorIndex)
            else:
                output.tensorIndex = outputs[position]
    if not stale:
        return quantized
    main.outputs = np.asarray(outputs, dtype=np.int32)
    return flatbuffer.serialize(after)


def _as_calibration_result(model: flatbuffer.Model, ranges: Ranges) -> dict[str, dict[str, Any]]:
    """Shapes the ranges as ai-edge-quantizer does: arrays of the tensor's rank, all ones."""
    result = {}
    for tensor in model.subgraphs[0].tensors:
        name = flatbuffer.tensor_name(tensor)
        if name in ranges.minimum:
            ones = (1,) * len(flatbuffer.shape(tensor))
            low, high = ranges.to_quantize(name)
            result[name] = {
                "min": np.full(ones, low, np.float32),
                "max": np.full(ones, high, np.float32),
                "num_samples": ranges.samples,
            }
    return result
