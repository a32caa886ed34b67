"""Which version an operator needs: a table over its options and tensor types.

Source of the facts: `tensorflow/lite/tools/versioning/op_version.cc` of tensorflow/tensorflow at
commit 02087409. Where that file reads a wrong tensor (16-bit convolutions) the table keeps the
version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeport import flatbuffer
from edgeport.flatbuffer import Model, Operator, SubGraph, Tensor

KEEP = 1 << 30  # above every version, so that the version in the file stays


@dataclass(frozen=True, slots=True)
class Signature:
    """What the version of an operator depends on; an absent optional input is None."""

    operator: Operator
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]

    @staticmethod
    def of(subgraph: SubGraph, operator: Operator) -> Signature:
        """Gathers the tensors of an operator."""

        def tensors(values: object) -> tuple[Tensor | None, ...]:
            listed = [] if values is None else [int(v) for v in values]  # type: ignore[attr-defined]
            return tuple(subgraph.tensors[i] if i >= 0 else None for i in listed)

        return Signature(operator, tensors(operator.inputs), tensors(operator.outputs))

    def input(self, position: int) -> str:
        """Returns the type of an input; empty where it is absent."""
        return _type(self.inputs, position)

    def output(self, position: int = 0) -> str:
        """Returns the type of an output; empty where it is absent."""
        return _type(self.outputs, position)

    def shape(self, position: int) -> tuple[int, ...]:
        """Returns the shape of an input; empty where it is absent."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        return () if tensor is None else flatbuffer.shape(tensor)

    def scales(self, tensor: Tensor | None) -> int:
        """Returns the number of scales of a tensor; 0 where it is not quantized."""
        found = None if tensor is None else flatbuffer.quantization(tensor)
        return 0 if found is None else len(found[0])

    def option(self, name: str) -> int:
        """Returns an option as a number; 0 is every option's default here."""
        return int(flatbuffer.option(self.operator, name, 0))


def _type(tensors: tuple[Tensor | None, ...], position: int) -> str:
    tensor = tensors[position] if position < len(tensors) else None
    return "" if tensor is None else flatbuffer.type_name(tensor)


Condition = Callable[[Signature], bool]
Rule = tuple[int, Condition]


def _input(*types: str, at: int = 0) -> Condition:
    return lambda s: s.input(at) in types


def _output(*types: str) -> Condition:
    return lambda s: s.output() in types


def _option(name: str) -> Condition:
    return lambda s: s.option(name) != 0


def _all(*conditions: Condition) -> Condition:
    return lambda s: all(c(s) for c in conditions)


def _any(*conditions: Condition) -> Condition:
    return lambda s: any(c(s) for c in conditions)


def _rank_above(rank: int) -> Condition:
    return lambda s: len(s.shape(0)) > rank


def _broadcasts_above_rank_4(s: Signature) -> bool:
    return s.shape(0) != s.shape(1) and max(len(s.shape(0)), len(s.shape(1))) > 4


def _types(x: str, weights: str, y: str) -> Condition:
    return lambda s: (s.input(0), s.input(1), s.output()) == (x, weights, y)


def _grouped(s: Signature) -> bool:
    # The weights of CONV_2D are [outputs, height, width, inputs of one group].
    x, weights = s.shape(0), s.shape(1)
    return len(x) == 4 and len(weights) == 4 and x[3] != weights[3]


def _per_channel(s: Signature) -> bool:
    return any(s.scales(t) > 1 for t in s.inputs[1:2])


def _has_sparse_weights(s: Signature) -> bool:
    return any(t is not None and t.sparsity is not None for t in s.inputs[1:2])


def _is_quantized(s: Signature) -> bool:
    return s.scales(s.inputs[0]) > 0


def _rescales_upwards(s: Signature) -> bool:
    found = [flatbuffer.quantization(t) for t in (*s.inputs[:2], s.outputs[0]) if t is not None]
    if len(found) != 3 or any(f is None for f in found):
        return False
    a, b, y = (float(f[0][0]) for f in found if f is not None)
    return a != 0 and b != 0 and y != 0 and a * b / y >= 1.0


def _has_bias(position: int) -> Condition:
    return lambda s: s.input(position) != ""


def _not(condition: Condition) -> Condition:
    return lambda s: not condition(s)


_INT8: Rule = (2, _input("int8"))
_INT16_3: Rule = (3, _input("int16"))
_HYBRID = _types("float32", "int8", "float32")
_FULL_INT8 = _types("int8", "int8", "int8")
_INT4_WEIGHTS = _types("int8", "int4", "int8")
# Weights of types that the source does not know, and 16-bit activations where it is unclear.
_UNKNOWN_WEIGHTS = _input("int2", "uint4", "float8_e4m3fn", "float8_e5m2", at=1)

_ARITHMETIC: tuple[Rule, ...] = ((4, _input("int16")), (3, _broadcasts_above_rank_4), _INT8)
_REDUCTION: tuple[Rule, ...] = (_INT16_3, _INT8)
_POOLING: tuple[Rule, ...] = (_INT16_3, _INT8)
_PADDING: tuple[Rule, ...] = ((4, _rank_above(4)), _INT16_3, _INT8)
_RESIZING: tuple[Rule, ...] = ((4, _input("int16")), (3, _option("halfPixelCenters")))
_ONLY_INT8: tuple[Rule, ...] = (_INT8,)
_ALWAYS_1: tuple[Rule, ...] = ()

# The first rule whose condition holds gives the version; 1 where none does.
RULES: dict[str, tuple[Rule, ...]] = {
    "CONV_2D": (
        (KEEP, _any(_input("int16"), _UNKNOWN_WEIGHTS)),
        (6, _grouped),
        (3, _FULL_INT8),
        (7, _INT4_WEIGHTS),
        (5, _all(_HYBRID, _per_channel)),
        (2, _HYBRID),
    ),
    "DEPTHWISE_CONV_2D": (
        (KEEP, _any(_input("int16"), _UNKNOWN_WEIGHTS)),
        (6, _all(_HYBRID, _per_channel)),
        (4, _HYBRID),
        (3, _FULL_INT8),
        (7, _INT4_WEIGHTS),
        (2, lambda s: s.option("dilationWFactor") > 1 or s.option("dilationHFactor") > 1),
    ),
    "FULLY_CONNECTED": (
        (KEEP, _any(_input("int16"), _UNKNOWN_WEIGHTS)),
        (12, _all(_HYBRID, _per_channel)),
        (8, _has_sparse_weights),
        (6, lambda s: len(s.inputs) == 2),
        (5, _option("keepNumDims")),
        (4, _FULL_INT8),
        (10, _INT4_WEIGHTS),
        (9, _all(_HYBRID, _option("asymmetricQuantizeInputs"))),
        (3, _HYBRID),
        (2, _option("weightsFormat")),
    ),
    "TRANSPOSE_CONV": (
        (KEEP, _any(_input("int16", at=2), _UNKNOWN_WEIGHTS)),
        (4, _option("fusedActivationFunction")),
        (3, _has_bias(3)),
        (2, _input("int8", at=1)),
    ),
    "ADD": (
        (5, _all(_input("int16"), _not(_is_quantized))),
        (4, _input("int64")),
        (3, _all(_input("int16"), _output("int16"), _not(_option("potScaleInt16")))),
        _INT8,
    ),
    "SUB": (
        (5, _all(_input("int16"), _output("int16"), _not(_option("potScaleInt16")))),
        (4, _input("int64")),
        (3, _broadcasts_above_rank_4),
        _INT8,
    ),
    "MUL": (
        (7, _any(_input("uint32"), _all(_input("int16"), _not(_is_quantized)))),
        (6, _input("complex64")),
        (5, _input("int64")),
        (4, _input("int16")),
        (3, _rescales_upwards),
        _INT8,
    ),
    "MAXIMUM": _ARITHMETIC,
    "MINIMUM": _ARITHMETIC,
    "SQUARED_DIFFERENCE": _ONLY_INT8,
    "AVERAGE_POOL_2D": _POOLING,
    "MAX_POOL_2D": _POOLING,
    "CONCATENATION": ((4, _input("uint32")), _INT16_3, _INT8),
    "RESHAPE": _ALWAYS_1,
    "EXPAND_DIMS": _ALWAYS_1,
    "SQUEEZE": ((2, _input("string")),),
    "PACK": ((4, _input("uint32")), _INT16_3, _INT8),
    "SOFTMAX": _REDUCTION,
    "LOGISTIC": _REDUCTION,
    "TANH": _REDUCTION,
    "RSQRT": _REDUCTION,
    "RELU": (_INT16_3, (2, _input("int8", "uint8"))),
    "RELU6": _REDUCTION,
    "PRELU": _ALWAYS_1,
    "LEAKY_RELU": ((2, _input("int16")),),
    "HARD_SWISH": _ALWAYS_1,
    "L2_NORMALIZATION": ((2, _output("int8")),),
    "PAD": _PADDING,
    "PADV2": _PADDING,
    "MIRROR_PAD": _REDUCTION,
    "MEAN": _REDUCTION,
    "REDUCE_MAX": _REDUCTION,
    "REDUCE_MIN": _REDUCTION,
    "SUM": ((KEEP, _input("int16")), _INT8),
    "SPLIT": ((4, _input("int16", at=1)), (3, _input("int32", at=1)), (2, _input("int8", at=1))),
    "SLICE": (
        (6, _input("uint32")),
        (5, _rank_above(4)),
        (4, _input("int16")),
        (3, _input("string")),
        _INT8,
    ),
    "STRIDED_SLICE": (
        (8, _option("offset")),
        (7, _input("uint32")),
        (6, _any(_option("ellipsisMask"), _option("newAxisMask"))),
        (5, _input("string")),
        (4, _rank_above(4)),
        (3, _input("bool")),
        _INT8,
    ),
    "TRANSPOSE": (
        (6, _rank_above(5)),
        (5, _input("int16")),
        (4, _rank_above(4)),
        (3, _input("bool")),
        _INT8,
    ),
    "RESIZE_BILINEAR": (*_RESIZING, _INT8),
    "RESIZE_NEAREST_NEIGHBOR": (*_RESIZING, (3, _option("alignCorners")), _INT8),
    "QUANTIZE": (
        (4, _any(_input("int4"), _output("int4"))),
        (3, lambda s: s.scales(s.outputs[0]) > 1),
        (2, _output("int16")),
    ),
    "DEQUANTIZE": (
        (6, _input("int4")),
        (KEEP, _input("int2", "uint4")),
        (3, _input("int16", "float16")),
        (5, _all(_input("int8"), lambda s: s.scales(s.inputs[0]) > 1)),
        _INT8,
    ),
    "SPACE_TO_DEPTH": _ONLY_INT8,
    "DEPTH_TO_SPACE": _ONLY_INT8,
    "BATCH_MATMUL": (
        _INT16_3,
        _INT8,
        (4, _all(_HYBRID, _option("asymmetricQuantizeInputs"))),
        (KEEP, _any(_input("int4", at=1), _UNKNOWN_WEIGHTS)),
    ),
    "GATHER": (
        (7, _input("int4")),
        (6, _input("int16", at=1)),
        (5, _option("batchDims")),
        (4, _input("int16")),
        (3, _input("bool")),
        _INT8,
    ),
    "ARG_MAX": ((3, _input("bool")), _INT8),
}


def needed_version(model: Model, subgraph: SubGraph, operator: Operator) -> int | None:
    """Returns the least version that the operator needs, or None for one not in the table.

    Args:
        model: The model.
        subgraph: The subgraph with the operator's tensors.
        operator: The operator.
    """
    rules = RULES.get(flatbuffer.operator_name(model, operator))
    if rules is None:
        return None
    signature = Signature.of(subgraph, operator)
    return next((version for version, holds in rules if holds(signature)), 1)
