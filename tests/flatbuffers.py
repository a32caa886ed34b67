"""Builds small LiteRT models for tests.

A model is a list of operators over tensors:

    x = tensor("x", (1, 8, 8, 3))
    y = tensor("y", (1, 8, 8, 4))
    w = constant("w", np.ones((4, 3, 3, 3), np.int8))
    model = build([op("CONV_2D", [x, w, None], [y], version=3, strideW=1, strideH=1)])

Inputs and outputs of the model are found where they are not given: activations that nothing
makes, and tensors that nothing uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgeport import flatbuffer

Scales = float | Sequence[float] | None

# The class of the options of an operator, where it isn't the operator's name in camel case.
_OPTIONS = {
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "PADV2": "PadV2Options",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
}


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor; the same object (or the same name) stands for the same tensor everywhere.

    Attributes:
        name: Unique name.
        shape: Shape.
        dtype: Element type as the schema names it, in lower case.
        data: Values of a constant, or None.
        scale: One scale, one a channel, or None for a tensor that is not quantized.
        zero_point: Zero point for all scales.
        axis: Quantized dimension of scales by channel.
        variable: It is a state that outlives an inference.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    data: np.ndarray | None = None
    scale: Scales = 0.1
    zero_point: int = 0
    axis: int = 0
    variable: bool = False


@dataclass(frozen=True)
class OpSpec:
    """An operator; `options` are fields of its options as the schema's objects name them."""

    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    version: int = 1
    custom: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def tensor(name: str, shape: Sequence[int], dtype: str = "int8", **more: Any) -> TensorSpec:
    """Describes an activation; those that are not 8 or 16 bits wide are not quantized."""
    if dtype not in ("int8", "uint8", "int16"):
        more.setdefault("scale", None)
    return TensorSpec(name, tuple(shape), dtype, **more)


def constant(name: str, data: Any, **more: Any) -> TensorSpec:
    """Describes a constant; its type is that of the array, quantized only with a `scale`."""
    array = np.asarray(data)
    more.setdefault("scale", 0.1 if array.dtype in (np.int8, np.uint8) else None)
    return TensorSpec(name, array.shape, array.dtype.name, array, **more)


def op(
    name: str,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec],
    version: int = 1,
    custom: str = "",
    **options: Any,
) -> OpSpec:
    """Describes an operator; an absent optional input is None."""
    return OpSpec(name, tuple(inputs), tuple(outputs), version, custom, options)


def chain(
    *steps: tuple[str, int], shape: Sequence[int] = (1, 4, 4, 8), dtype: str = "int8"
) -> list[OpSpec]:
    """Describes operators of one input and output (name, version), one after the other."""
    tensors = [tensor(f"t{i}", shape, dtype) for i in range(len(steps) + 1)]
    return [
        op(name, [tensors[i]], [tensors[i + 1]], version=version)
        for i, (name, version) in enumerate(steps)
    ]


def build(
    operators: Sequence[OpSpec],
    inputs: Sequence[TensorSpec] | None = None,
    outputs: Sequence[TensorSpec] | None = None,
    *,
    metadata: dict[str, bytes] | None = None,
    shared_codes: bool = True,
    signature: bool = False,
) -> Any:
    """Builds a model and returns it as `edgeport.flatbuffer.parse` would.

    Every constant gets a buffer of its own, even if its bytes occur already.

    Args:
        operators: The operators in execution order.
        inputs: Inputs of the model; found when None.
        outputs: Outputs of the model; found when None.
        metadata: Metadata entries and their bytes.
        shared_codes: Operators of one kind share an operator code with the highest of their
            versions, as TensorFlow's converter writes them; otherwise each has its own.
        signature: Give it a signature `serving_default` with the tensors' names.
    """
    s = flatbuffer.schema()
    model = s.ModelT()
    model.version = 3
    model.description = "built by a test"
    model.buffers = [s.BufferT()]
    index: dict[str, int] = {}
    graph = s.SubGraphT()
    graph.name = "main"
    graph.tensors = []
    specs = [t for o in operators for t in (*o.inputs, *o.outputs) if t is not None]
    for spec in (*(inputs or ()), *specs):
        if spec.name not in index:
            index[spec.name] = len(graph.tensors)
            graph.tensors.append(_tensor(model, spec))
    model.operatorCodes = []
    graph.operators = [_operator(model, o, index, shared_codes) for o in operators]
    made = {t.name for o in operators for t in o.outputs}
    used = {t.name for o in operators for t in o.inputs if t is not None}
    found = {t.name: t for t in specs if t.data is None and not t.variable}
    if inputs is None:
        inputs = [t for name, t in found.items() if name not in made]
    if outputs is None:
        outputs = [t for name, t in found.items() if name not in used]
    graph.inputs = [index[t.name] for t in inputs]
    graph.outputs = [index[t.name] for t in outputs]
    model.subgraphs = [graph]
    if signature:
        definition = s.SignatureDefT()
        definition.signatureKey = "serving_default"
        definition.inputs = [_named(t.name, index) for t in inputs]
        definition.outputs = [_named(t.name, index) for t in outputs]
        model.signatureDefs = [definition]
    model.metadata = []
    for key, content in (metadata or {}).items():
        entry = s.MetadataT()
        entry.name, entry.buffer = key, len(model.buffers)
        model.buffers.append(_buffer(content))
        model.metadata.append(entry)
    return flatbuffer.parse(flatbuffer.serialize(model))


def build_bytes(operators: Sequence[OpSpec], **more: Any) -> bytes:
    """Builds a model as `build` does and returns the flatbuffer."""
    return flatbuffer.serialize(build(operators, **more))


def run(model: bytes, *values: np.ndarray) -> list[np.ndarray]:
    """Runs a flatbuffer on LiteRT's reference kernels and returns its outputs."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for details, value in zip(interpreter.get_input_details(), values, strict=True):
        interpreter.set_tensor(details["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()]


def _named(name: str, index: dict[str, int]) -> Any:
    entry = flatbuffer.schema().TensorMapT()
    entry.name, entry.tensorIndex = name, index[name]
    return entry


def _buffer(content: bytes) -> Any:
    buffer = flatbuffer.schema().BufferT()
    buffer.data = np.frombuffer(content, np.uint8)
    return buffer


def _tensor(model: Any, spec: TensorSpec) -> Any:
    s = flatbuffer.schema()
    made = s.TensorT()
    made.name = spec.name
    made.shape = list(spec.shape)
    made.type = getattr(s.TensorType, spec.dtype.upper())
    made.isVariable = spec.variable
    made.buffer = len(model.buffers)
    data = None if spec.data is None else np.ascontiguousarray(spec.data).tobytes()
    model.buffers.append(s.BufferT() if data is None else _buffer(data))
    if spec.scale is not None:
        scales = [spec.scale] if isinstance(spec.scale, int | float) else list(spec.scale)
        made.quantization = s.QuantizationParametersT()
        made.quantization.scale = scales
        made.quantization.zeroPoint = [spec.zero_point] * len(scales)
        made.quantization.quantizedDimension = spec.axis
    return made


def _operator(model: Any, spec: OpSpec, index: dict[str, int], shared: bool) -> Any:
    s = flatbuffer.schema()
    made = s.OperatorT()
    made.opcodeIndex = _code(model, spec, shared)
    made.inputs = [-1 if t is None else index[t.name] for t in spec.inputs]
    made.outputs = [index[t.name] for t in spec.outputs]
    camel = "".join(part.capitalize() for part in spec.name.split("_")) + "Options"
    kind = _OPTIONS.get(spec.name, camel)
    if hasattr(s, kind + "T"):
        made.builtinOptionsType = getattr(s.BuiltinOptions, kind)
        made.builtinOptions = getattr(s, kind + "T")()
        for name in ("dilationWFactor", "dilationHFactor", "strideW", "strideH", "depthMultiplier"):
            if hasattr(made.builtinOptions, name):
                setattr(made.builtinOptions, name, 1)
        for name, value in spec.options.items():
            if not hasattr(made.builtinOptions, name):
                raise AttributeError(f"{kind} has no field {name}")
            setattr(made.builtinOptions, name, value)
    elif spec.options:
        raise AttributeError(f"{spec.name} has no options")
    return made


def _code(model: Any, spec: OpSpec, shared: bool) -> int:
    s = flatbuffer.schema()
    builtin = getattr(s.BuiltinOperator, spec.name)
    for i, code in enumerate(model.operatorCodes if shared else ()):
        if code.builtinCode == builtin and (code.customCode or "") == spec.custom:
            code.version = max(code.version, spec.version)
            return i
    code = s.OperatorCodeT()
    code.builtinCode = builtin
    code.deprecatedBuiltinCode = min(builtin, 127)
    code.version = spec.version
    code.customCode = spec.custom or None
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1
