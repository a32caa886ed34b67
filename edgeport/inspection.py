"""What is inside a .tflite file, as plain data.

Reads the file and computes everything that `edgeport inspect` shows. Sizes are bytes. The file is
never run, and what it holds is not trusted: damage ends in `ModelFileError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeport import flatbuffer
from edgeport.errors import ModelFileError, UsageError

SCHEMA_VERSION = "1.0"

# What a field of an operator's options, or a tensor, may hold once it is plain.
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

_FIRST_SCALES = 4  # shown of a tensor that is quantized by channel
_METADATA_KEY = "TFLITE_METADATA"  # TFLite Model Metadata, a flatbuffer of its own
_METADATA_IDENTIFIER = b"M001"

# Fields of operators' options that hold a value of one of the schema's enumerations.
_ENUMERATIONS = {
    "padding": "Padding",
    "fusedActivationFunction": "ActivationFunctionType",
    "weightsFormat": "FullyConnectedOptionsWeightsFormat",
    "kernelType": "LSTMKernelType",
    "combiner": "CombinerType",
    "mode": "MirrorPadMode",
    "reduceFunction": "ReduceWindowFunction",
    "comparisonDirection": "StablehloComparisonDirection",
    "compareType": "StablehloComparisonType",
    "algorithm": "RngAlgorithm",
    "compositeAttributesFormat": "CustomOptionsFormat",
    "inDataType": "TensorType",
    "outDataType": "TensorType",
    "outType": "TensorType",
    "outputType": "TensorType",
    "idxOutType": "TensorType",
    "keyDtype": "TensorType",
    "valueDtype": "TensorType",
    "quantizedBiasType": "TensorType",
}

_BITS = {
    "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "bool": 8,
    "float8e4m3fn": 8, "float8e5m2": 8, "int16": 16, "uint16": 16, "float16": 16, "bfloat16": 16,
    "int32": 32, "uint32": 32, "float32": 32, "int64": 64, "uint64": 64, "float64": 64,
    "complex64": 64, "complex128": 128,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a tensor's integers stand for real numbers: scale × (value − zero point).

    Attributes:
        scales: The first few scales.
        zero_points: Zero points of these.
        count: Number of scales: 1, or one for each index along `axis`.
        axis: Dimension along which the scales differ; None when there is one for the tensor.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    count: int
    axis: int | None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a subgraph.

    Attributes:
        index: Position among the subgraph's tensors.
        name: Its name; may be empty, and may repeat.
        type: Element type in lower case, such as `int8`.
        shape: Shape in the file.
        shape_signature: Shape with −1 for dimensions that may change; None when all are fixed.
        constant_bytes: Bytes of its values in the file; 0 for an activation.
        quantization: None for a tensor that is not quantized.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...] | None
    constant_bytes: int
    quantization: Quantization | None


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a subgraph.

    Attributes:
        index: Position in execution order.
        name: Name such as `CONV_2D`, `CUSTOM:name`, or `BUILTIN_250` for an unknown code.
        version: Operator version.
        inputs: Tensor indices; −1 for an optional input that is absent.
        outputs: Tensor indices.
        input_names: Names of the inputs; None for one that is absent.
        output_names: Names of the outputs.
        options: The operator's options by the schema's names.
        custom_options_bytes: Size of a custom operator's options.
        macs: Multiply-accumulates; None where the shapes do not tell.
    """

    index: int
    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_names: tuple[str | None, ...]
    output_names: tuple[str | None, ...]
    options: dict[str, Plain]
    custom_options_bytes: int
    macs: int | None


@dataclass(frozen=True, slots=True)
class SubgraphEntry:
    """A subgraph. The first one is the model; others are bodies of its operators, or signatures."""

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorEntry, ...]
    tensors: tuple[TensorEntry, ...]
    macs: int


@dataclass(frozen=True, slots=True)
class SignatureTensor:
    """An input or output of a signature: its name there and the tensor that it is."""

    name: str
    tensor: int
    tensor_name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignatureEntry:
    """A named entry point of the model."""

    key: str
    subgraph: int
    inputs: tuple[SignatureTensor, ...]
    outputs: tuple[SignatureTensor, ...]


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """A metadata buffer by its name."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class OperatorCount:
    """How often an operator of one version occurs, in all subgraphs."""

    name: str
    version: int
    count: int
    macs: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Where the bytes are.

    Attributes:
        constants: Constant tensors; buffers that several tensors share count once.
        behind_flatbuffer: Buffers that lie behind the flatbuffer, where older tools don't look.
        largest_activation: The largest tensor of the main subgraph that is not constant.
        largest_activation_tensor: Its index; None where there is none.
        peak_activations: The most that inputs, outputs and intermediates of the main subgraph
            need at one time, run in the file's order, nothing in place: a floor for the arena.
    """

    constants: int
    behind_flatbuffer: int
    largest_activation: int
    largest_activation_tensor: int | None
    peak_activations: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that `edgeport inspect` tells about a file.

    Attributes:
        file: Path as given; None for bytes.
        size: Bytes of the file.
        sha256: Digest of the file.
        version: Schema version, 3 for all files of today.
        description: Whom the file says it is by.
        min_runtime_version: Oldest runtime that can run it, as its writer recorded.
        subgraphs: The subgraphs; the first is the model.
        signatures: The signatures, in the file's order.
        metadata: Names and sizes of the metadata buffers.
        has_model_metadata: It carries TFLite Model Metadata.
        associated_files: Names of the files packed behind the model, such as labels.
        histogram: Operators and versions, the most frequent first.
        sizes: Where the bytes are.
        macs: Multiply-accumulates of the main subgraph, where they can be counted.
    """

    file: str | None
    size: int
    sha256: str
    version: int
    description: str
    min_runtime_version: str | None
    subgraphs: tuple[SubgraphEntry, ...]
    signatures: tuple[SignatureEntry, ...]
    metadata: tuple[MetadataEntry, ...]
    has_model_metadata: bool
    associated_files: tuple[str, ...]
    histogram: tuple[OperatorCount, ...]
    sizes: Sizes
    macs: int

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON-ready data; numbers that JSON lacks (NaN, infinity) become null."""
        data = _plain(dataclasses.asdict(self))
        assert isinstance(data, dict)
        return {"schema_version": SCHEMA_VERSION, **data}


def inspect(source: str | Path | bytes) -> Inspection:
    """Reads a LiteRT flatbuffer and describes what is in it.

    Args:
        source: A file, or its bytes.

    Raises:
        UsageError: The file can't be opened.
        ModelFileError: It is no LiteRT flatbuffer, or is damaged.
    """
    if isinstance(source, bytes):
        content, file = source, None
    else:
        file = str(source)
        try:
            content = Path(source).read_bytes()
        except OSError as e:
            raise UsageError(e.strerror or str(e), where=file, hint="give a .tflite file") from None
    model = flatbuffer.parse(content, where=file or "model")
    try:
        return _inspect(model, content, file)
    # Indices and types in the file lead to these where they are wrong.
    except (AttributeError, IndexError, TypeError, ValueError, OverflowError) as e:
        raise ModelFileError(
            f"the flatbuffer is damaged ({type(e).__name__}: {e})",
            where=file or "model",
            hint="copy or convert it again",
        ) from e


def _inspect(model: flatbuffer.Model, content: bytes, file: str | None) -> Inspection:
    if not model.subgraphs:
        raise ValueError("it has no subgraph")
    subgraphs = tuple(_subgraph(model, i) for i in range(len(model.subgraphs)))
    metadata = [(flatbuffer.text(m.name), _data(model, m.buffer)) for m in model.metadata or []]
    named = dict(metadata)
    runtime = named.get("min_runtime_version", b"").rstrip(b"\0").decode("utf-8", "replace")
    return Inspection(
        file=file,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        version=int(model.version),
        description=flatbuffer.text(model.description),
        min_runtime_version=runtime or None,
        subgraphs=subgraphs,
        signatures=tuple(_signature(model, s) for s in model.signatureDefs or []),
        metadata=tuple(MetadataEntry(name, len(data)) for name, data in metadata),
        has_model_metadata=named.get(_METADATA_KEY, b"")[4:8] == _METADATA_IDENTIFIER,
        associated_files=_associated_files(content),
        histogram=_histogram(subgraphs),
        sizes=_sizes(model, subgraphs[0], content),
        macs=subgraphs[0].macs,
    )


def _data(model: flatbuffer.Model, index: int) -> bytes:
    data = model.buffers[index].data
    return b"" if data is None else bytes(data)


def _subgraph(model: flatbuffer.Model, index: int) -> SubgraphEntry:
    subgraph = model.subgraphs[index]
    operators = tuple(
        _operator(model, subgraph, i, o) for i, o in enumerate(subgraph.operators or [])
    )
    return SubgraphEntry(
        index=index,
        name=flatbuffer.text(subgraph.name),
        inputs=_integers(subgraph.inputs),
        outputs=_integers(subgraph.outputs),
        operators=operators,
        tensors=tuple(_tensor(model, i, t) for i, t in enumerate(subgraph.tensors)),
        macs=sum(o.macs or 0 for o in operators),
    )


def _operator(
    model: flatbuffer.Model, subgraph: flatbuffer.SubGraph, index: int, operator: Any
) -> OperatorEntry:
    def names(tensors: tuple[int, ...]) -> tuple[str | None, ...]:
        return tuple(
            flatbuffer.tensor_name(subgraph.tensors[i]) if i >= 0 else None for i in tensors
        )

    custom = operator.customOptions
    inputs, outputs = _integers(operator.inputs), _integers(operator.outputs)
    return OperatorEntry(
        index=index,
        name=flatbuffer.operator_name(model, operator),
        version=flatbuffer.operator_version(model, operator),
        inputs=inputs,
        outputs=outputs,
        input_names=names(inputs),
        output_names=names(outputs),
        options={**_options(operator.builtinOptions), **_options(operator.builtinOptions2)},
        custom_options_bytes=int(operator.largeCustomOptionsSize)
        or (0 if custom is None else len(custom)),
        macs=_macs(model, subgraph, operator),
    )


def _macs(
    model: flatbuffer.Model, subgraph: flatbuffer.SubGraph, operator: flatbuffer.Operator
) -> int | None:
    try:
        macs = flatbuffer.multiply_accumulates(model, subgraph, operator)
    except (IndexError, TypeError, ValueError):  # inputs are missing or have other ranks
        return None
    return macs if macs >= 0 else None  # -1 in a shape is a dimension that is not known


def _tensor(model: flatbuffer.Model, index: int, tensor: flatbuffer.Tensor) -> TensorEntry:
    signature = _integers(tensor.shapeSignature)
    return TensorEntry(
        index=index,
        name=flatbuffer.tensor_name(tensor),
        type=flatbuffer.type_name(tensor),
        shape=flatbuffer.shape(tensor),
        shape_signature=signature or None,
        constant_bytes=len(_data(model, tensor.buffer)),
        quantization=_quantization(tensor),
    )


def _quantization(tensor: flatbuffer.Tensor) -> Quantization | None:
    found = flatbuffer.quantization(tensor)
    if found is None:
        return None
    scales, zeros = found
    return Quantization(
        scales=tuple(float(s) for s in scales[:_FIRST_SCALES]),
        zero_points=_integers(zeros[:_FIRST_SCALES]),
        count=len(scales),
        axis=int(tensor.quantization.quantizedDimension) if len(scales) > 1 else None,
    )


def _signature(model: flatbuffer.Model, signature: Any) -> SignatureEntry:
    subgraph = model.subgraphs[signature.subgraphIndex]

    def tensors(entries: Any) -> Iterator[SignatureTensor]:
        for entry in entries or []:
            tensor = subgraph.tensors[entry.tensorIndex]
            yield SignatureTensor(
                name=flatbuffer.text(entry.name),
                tensor=int(entry.tensorIndex),
                tensor_name=flatbuffer.tensor_name(tensor),
                type=flatbuffer.type_name(tensor),
                shape=flatbuffer.shape(tensor),
            )

    return SignatureEntry(
        key=flatbuffer.text(signature.signatureKey),
        subgraph=int(signature.subgraphIndex),
        inputs=tuple(tensors(signature.inputs)),
        outputs=tuple(tensors(signature.outputs)),
    )


def _options(options: Any) -> dict[str, Plain]:
    """Returns the fields of an operator's options by the schema's own names."""
    if options is None:
        return {}
    found: dict[str, Plain] = {}
    for name, value in vars(options).items():
        enumeration = _ENUMERATIONS.get(name)
        if enumeration is not None and isinstance(value, int):
            value = _enumerated(enumeration, value)
        found[re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()] = _plain(value)
    return found


def _enumerated(enumeration: str, value: int) -> str | int:
    names: dict[str, int] = vars(getattr(flatbuffer.schema(), enumeration))
    for name, number in names.items():
        if number == value and not name.startswith("_"):
            return name.lower() if enumeration == "TensorType" else name
    return value


def _plain(value: Any) -> Plain:
    """Turns what the schema's objects hold into what JSON can say."""
    if isinstance(value, np.ndarray):
        # Bytes here are a format of their own, not a list that people read.
        return f"{value.size} bytes" if value.dtype == np.uint8 else _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return {**_options(value)}


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values) if values is not None else ()


def _histogram(subgraphs: tuple[SubgraphEntry, ...]) -> tuple[OperatorCount, ...]:
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for operator in (o for s in subgraphs for o in s.operators):
        count, macs = counts.get((operator.name, operator.version), (0, 0))
        counts[operator.name, operator.version] = count + 1, macs + (operator.macs or 0)
    found = [OperatorCount(*key, *value) for key, value in counts.items()]
    return tuple(sorted(found, key=lambda c: (-c.count, c.name, c.version)))


def _sizes(model: flatbuffer.Model, main: SubgraphEntry, content: bytes) -> Sizes:
    used = {int(t.buffer) for s in model.subgraphs for t in s.tensors}
    sizes = {t.index: _activation_size(t) for t in main.tensors if not t.constant_bytes}
    largest = max(sizes, key=lambda i: sizes[i], default=None)
    root = flatbuffer.schema().Model.GetRootAs(content, 0)
    buffers = (root.Buffers(i) for i in range(root.BuffersLength()))
    return Sizes(
        constants=sum(len(_data(model, b)) for b in used),
        behind_flatbuffer=sum(b.Size() for b in buffers if b.Offset() > 1),
        largest_activation=0 if largest is None else sizes[largest],
        largest_activation_tensor=largest,
        peak_activations=_peak(main, sizes),
    )


def _activation_size(tensor: TensorEntry) -> int:
    """Returns the bytes of a tensor; those of an unknown type (strings) or shape count as 0."""
    elements = math.prod(tensor.shape) if min(tensor.shape, default=0) >= 0 else 0
    return (elements * _BITS.get(tensor.type, 0) + 7) // 8


def _peak(main: SubgraphEntry, sizes: dict[int, int]) -> int:
    """Returns the largest sum of sizes of activations that live at one time."""
    made = {i for o in main.operators for i in o.outputs}
    read = {i for o in main.operators for i in o.inputs}
    # States and scratch space: nothing makes them, so they are there all the time.
    lasting = sum(sizes.get(i, 0) for i in read - made - set(main.inputs))
    last_use = {i: n for n, o in enumerate(main.operators) for i in (*o.outputs, *o.inputs)}
    last_use |= dict.fromkeys(main.outputs, len(main.operators))
    live = {i for i in main.inputs if i in sizes}
    peak = sum(sizes[i] for i in live)
    for number, operator in enumerate(main.operators):
        live.update(i for i in operator.outputs if i in sizes)
        peak = max(peak, sum(sizes[i] for i in live))
        live = {i for i in live if last_use.get(i, -1) > number}
    return peak + lasting


def _associated_files(content: bytes) -> tuple[str, ...]:
    """Returns the names in the zip archive that Model Metadata's tools append to the file."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return tuple(archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError):
        return ()  # nearly every file: there is none
