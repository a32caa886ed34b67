"""Float inputs and outputs around an integer model."""

from __future__ import annotations

import copy

import numpy as np

from edgeport import flatbuffer


def add_float_borders(model: bytes) -> bytes:
    """Gives quantized inputs and outputs a float tensor each, with QUANTIZE or DEQUANTIZE between.

    The inside stays as it is: an output that other operators also read is still read as integers.
    (ai-edge-quantizer, asked to leave the borders alone, lets them read the float copy, which no
    integer kernel takes.) The float tensors keep the names; the integer ones get `_quantized`.
    """
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    signatures = [s for s in parsed.signatureDefs or [] if s.subgraphIndex == 0]
    inputs, outputs = [int(i) for i in main.inputs], [int(i) for i in main.outputs]
    before, after = [], []
    for position, index in enumerate(inputs):
        if flatbuffer.quantization(main.tensors[index]) is None:
            continue
        inputs[position] = _add_float_copy(main, index)
        before.append(_operator(parsed, "QUANTIZE", inputs[position], index))
        _move([e for s in signatures for e in s.inputs or ()], index, inputs[position])
    for position, index in enumerate(outputs):
        if flatbuffer.quantization(main.tensors[index]) is None:
            continue
        outputs[position] = _add_float_copy(main, index)
        after.append(_operator(parsed, "DEQUANTIZE", index, outputs[position]))
        _move([e for s in signatures for e in s.outputs or ()], index, outputs[position])
    main.operators = [*before, *main.operators, *after]
    main.inputs = np.asarray(inputs, dtype=np.int32)
    main.outputs = np.asarray(outputs, dtype=np.int32)
    return flatbuffer.serialize(parsed)


def _add_float_copy(main: flatbuffer.SubGraph, index: int) -> int:
    original = main.tensors[index]
    made = copy.copy(original)
    made.type = flatbuffer.schema().TensorType.FLOAT32
    made.quantization = None
    made.buffer = 0
    original.name = (flatbuffer.tensor_name(original) + "_quantized").encode()
    main.tensors.append(made)
    return len(main.tensors) - 1


def _move(entries: list[object], old: int, new: int) -> None:
    """Lets the signature entries of a tensor name another one; a repeated output keeps its own."""
    for entry in entries:
        if entry.tensorIndex == old:  # type: ignore[attr-defined]
            entry.tensorIndex = new  # type: ignore[attr-defined]
            return


def _operator(model: flatbuffer.Model, name: str, source: int, target: int) -> flatbuffer.Operator:
    schema = flatbuffer.schema()
    code = getattr(schema.BuiltinOperator, name)
    numbers = [c.builtinCode for c in model.operatorCodes]
    if code not in numbers:
        made = schema.OperatorCodeT()
        made.builtinCode = code
        made.deprecatedBuiltinCode = min(code, 127)
        made.version = 2 if name == "DEQUANTIZE" else 1  # int8 and int16 (schema's versioning)
        model.operatorCodes.append(made)
        numbers.append(code)
    operator = schema.OperatorT()
    operator.opcodeIndex = numbers.index(code)
    operator.inputs = np.array([source], dtype=np.int32)
    operator.outputs = np.array([target], dtype=np.int32)
    return operator
