"""Reading and writing LiteRT flatbuffers as objects.

Owns the only use of `ai_edge_litert.schema_py_generated`, and loads it when it is first needed.
Models written here keep their data inside the flatbuffer, aligned to 16 bytes: tools of 2021,
such as Edge TPU's compiler, know no buffers behind the flatbuffer, which ai-edge-quantizer writes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from edgeport.errors import ModelFileError

IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # `force_align` of Buffer.data in the schema

# The generated schema has no type annotations; these names say what is meant.
Model = Any
SubGraph = Any
Operator = Any
Tensor = Any


@functools.cache
def schema() -> Any:
    """Returns the generated schema module of ai-edge-litert."""
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


@functools.cache
def _names(enum: str) -> dict[int, str]:
    values = vars(getattr(schema(), enum))
    return {v: k for k, v in values.items() if not k.startswith("_")}


def is_flatbuffer(head: bytes) -> bool:
    """Tells whether a file that begins with these bytes (8 or more) is a LiteRT flatbuffer."""
    return head[4:8] == IDENTIFIER


def read_file(path: Path) -> bytes:
    """Reads a .tflite file and checks that it can be parsed.

    Raises:
        ModelFileError: The file is missing, is no LiteRT flatbuffer, or is damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as e:
        raise ModelFileError(e.strerror or str(e), where=str(path)) from None
    parse(content, where=str(path))
    return content


def parse(content: bytes, *, where: str = "model") -> Model:
    """Unpacks a flatbuffer into the schema's object form, with all data in its buffers.

    Raises:
        ModelFileError: The bytes are no LiteRT flatbuffer, or are damaged.
    """
    if not is_flatbuffer(content[:8]):
        raise ModelFileError(
            "not a LiteRT flatbuffer: it lacks the identifier TFL3",
            where=where,
            hint="give a .tflite file",
        )
    s = schema()
    try:
        model = s.ModelT.InitFromObj(s.Model.GetRootAs(bytearray(content), 0))
        for buffer in model.buffers or []:
            if buffer.offset > 1:
                end = buffer.offset + buffer.size
                if end > len(content):
                    raise ValueError("a buffer lies beyond the end of the file")
                buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
                buffer.offset = buffer.size = 0
        if not model.subgraphs:
            raise ValueError("it has no graph")
        for subgraph in model.subgraphs:
            _fill_absent(subgraph)
            _check_indices(model, subgraph)
    except Exception as e:  # the generated reader raises whatever the damage leads to
        raise ModelFileError(
            f"the flatbuffer is damaged ({type(e).__name__}: {e})",
            where=where,
            hint="copy or convert it again",
        ) from None
    return model


def _fill_absent(subgraph: SubGraph) -> None:
    """Gives absent lists, which writers may leave out when empty, their empty form."""
    for name in ("inputs", "outputs", "operators", "tensors"):
        if getattr(subgraph, name) is None:
            setattr(subgraph, name, [])


def _check_indices(model: Model, subgraph: SubGraph) -> None:
    tensors = len(subgraph.tensors)
    for index in (*subgraph.inputs, *subgraph.outputs):
        if not 0 <= index < tensors:
            raise ValueError(f"tensor {index} does not exist")
    for operator in subgraph.operators:
        model.operatorCodes[operator.opcodeIndex]
        for index in (*indices(operator.inputs), *indices(operator.outputs)):
            if index >= tensors:
                raise ValueError(f"tensor {index} does not exist")
    for tensor in subgraph.tensors:
        model.buffers[tensor.buffer]


def serialize(model: Model) -> bytes:
    """Packs the object form into a flatbuffer. The same object gives the same bytes."""
    import flatbuffers

    s = schema()

    class AlignedBuffer(s.BufferT):  # type: ignore[misc, name-defined]
        def Pack(self, builder: Any) -> Any:
            if self.data is not None and len(self.data):
                builder.Prep(_ALIGNMENT, len(self.data))
            return super().Pack(builder)

    total = 0
    for buffer in model.buffers:
        if buffer.data is not None:
            buffer.data = np.asarray(buffer.data, dtype=np.uint8)
            total += len(buffer.data)
        buffer.__class__ = AlignedBuffer
    builder = flatbuffers.Builder(total + (1 << 16))
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def indices(values: Any) -> list[int]:
    """Returns a tensor list of an operator as integers, without the optional absent ones."""
    return [int(v) for v in (values if values is not None else []) if v >= 0]


def builtin_code(model: Model, operator: Operator) -> int:
    """Returns the builtin code, wherever the writer put it (old files have only the old field)."""
    code = model.operatorCodes[operator.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))


def operator_name(model: Model, operator: Operator) -> str:
    """Returns the operator's name, such as `CONV_2D`, or `CUSTOM:name`."""
    code = builtin_code(model, operator)
    name = _names("BuiltinOperator").get(code, f"BUILTIN_{code}")
    if name == "CUSTOM":
        custom = model.operatorCodes[operator.opcodeIndex].customCode or b""
        return f"CUSTOM:{custom.decode('utf-8', 'replace')}"
    return name


def operator_version(model: Model, operator: Operator) -> int:
    """Returns the version of the operator's code."""
    return int(model.operatorCodes[operator.opcodeIndex].version)


def type_name(tensor: Tensor) -> str:
    """Returns the tensor's element type in lower case, such as `float32`."""
    return _names("TensorType").get(tensor.type, str(tensor.type)).lower()


def tensor_name(tensor: Tensor) -> str:
    """Returns the tensor's name as text."""
    return text(tensor.name)


def text(value: Any) -> str:
    """Decodes a string of the flatbuffer; absent strings are empty."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else (value or "")


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Returns the tensor's shape; scalars have none."""
    return tuple(int(d) for d in tensor.shape) if tensor.shape is not None else ()


def quantization(tensor: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns (scales, zero points) of a quantized tensor: one each, or one per channel."""
    q = tensor.quantization
    if q is None or q.scale is None or len(q.scale) == 0:
        return None
    scales = np.asarray(q.scale, dtype=np.float32)
    zeros = q.zeroPoint if q.zeroPoint is not None else np.zeros(len(scales))
    return scales, np.asarray(zeros, dtype=np.int64)


_NUMPY_TYPES = {
    "float32": np.float32, "float16": np.float16, "float64": np.float64, "int8": np.int8,
    "uint8": np.uint8, "int16": np.int16, "uint16": np.uint16, "int32": np.int32,
    "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64, "bool": np.bool_,
}  # fmt: skip


def constant(model: Model, tensor: Tensor) -> np.ndarray | None:
    """Returns a constant tensor's values, or None for an activation or an exotic type."""
    data = model.buffers[tensor.buffer].data
    dtype = _NUMPY_TYPES.get(type_name(tensor))
    if data is None or len(data) == 0 or dtype is None:
        return None
    return np.frombuffer(bytes(data), dtype).reshape(shape(tensor))


def is_constant(model: Model, tensor: Tensor) -> bool:
    """Tells whether the tensor's values lie in the file."""
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


def option(operator: Operator, name: str, default: Any = None) -> Any:
    """Returns a field of the operator's options, or the default where it has none."""
    return getattr(operator.builtinOptions, name, default)


def multiply_accumulates(model: Model, subgraph: SubGraph, operator: Operator) -> int:
    """Counts the multiply-accumulates of one operator; 0 for those that have none.

    Convolutions: output positions × kernel × input channels; FULLY_CONNECTED and BATCH_MATMUL:
    output elements × inner dimension. Elementwise work is not counted, as in vendors' figures.
    """
    name = operator_name(model, operator)
    outputs = indices(operator.outputs)
    if not outputs:
        return 0
    size = int(np.prod(shape(subgraph.tensors[outputs[0]]), dtype=np.int64))
    inputs = operator.inputs

    def dims(position: int) -> tuple[int, ...]:
        return shape(subgraph.tensors[inputs[position]])

    if name in ("CONV_2D", "CONV_3D"):
        weights = dims(1)
        return size * int(np.prod(weights[1:] if name == "CONV_2D" else weights[:-1]))
    if name == "DEPTHWISE_CONV_2D":
        return size * int(np.prod(dims(1)[1:3]))
    if name == "TRANSPOSE_CONV":
        return int(np.prod(dims(2))) * int(np.prod(dims(1)[:3]))
    if name == "FULLY_CONNECTED":
        return size * dims(1)[-1]
    if name == "BATCH_MATMUL":
        return size * dims(0)[-2 if option(operator, "adjX", False) else -1]
    return 0


def total_multiply_accumulates(model: Model) -> int:
    """Counts the multiply-accumulates of the main subgraph."""
    main = model.subgraphs[0]
    return sum(multiply_accumulates(model, main, op) for op in main.operators)


def signatures(model: Model) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Returns for each signature its inputs and outputs as {name: tensor index}."""
    found = {}
    for definition in model.signatureDefs or []:
        inputs = {text(i.name): int(i.tensorIndex) for i in definition.inputs or []}
        outputs = {text(o.name): int(o.tensorIndex) for o in definition.outputs or []}
        found[text(definition.signatureKey)] = (inputs, outputs)
    return found
