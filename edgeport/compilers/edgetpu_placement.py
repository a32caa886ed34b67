"""Predicts which operators the Edge TPU compiler maps, where the compiler itself is absent.

The evidence is data (`edgetpu_operators.toml`); this module owns the rules over it: what the
parser refuses, whether one operator can be mapped, and which of those that can end up in the one
subgraph that the compiler makes. Where the evidence ends the answer is "uncertain".
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgeport import flatbuffer
from edgeport.flatbuffer import Model, Operator, SubGraph, Tensor
from edgeport.report import OperatorPlacement, Placement

# The compiler's own status texts.
MAPPED = "Mapped to Edge TPU"
NOT_SUPPORTED = "Operation not supported"
DATA_TYPE = "Operation is working on an unsupported data type"
DYNAMIC = "Attempting to use a dynamic-sized tensor"
RANK = "Tensor has unsupported rank (up to 3 innermost dimensions mapped)"
LIMITATION = "Operation is otherwise supported, but not mapped due to some unspecified limitation"
SECOND_SUBGRAPH = "More than one subgraph is not supported"
NOT_QUANTIZED = "Model not quantized"
REFUSED = "Didn't find op for builtin opcode '{name}' version '{version}'"
OUT_OF_RANGE = "Op builtin_code out of range: {code}"

DOCUMENT = "vendor document (coral.ai/docs/edgetpu/models-intro)"
THREADS = "google-coral/edgetpu issues"

_8_BIT = ("int8", "uint8")
_MAX_RANK = 3

Verdict = Literal["edgetpu", "cpu", "uncertain"]


@dataclass(frozen=True, slots=True)
class Support:
    """What is known of one operator; see the comments of `edgetpu_operators.toml`."""

    name: str
    runtime: int
    accepted: int
    source: str
    limits: tuple[str, ...]
    refused: int | None
    proven: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """How far the evidence goes, in elements, positions and factors."""

    activation_elements: int
    reshape_elements: int
    softmax_elements: int
    mean_positions: int
    resize_factor: int
    resize_factor_refused: int


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All of `edgetpu_operators.toml`."""

    operators: dict[str, Support]
    refused: dict[str, tuple[int, str]]
    unknown_code: int
    unknown_code_source: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Answer:
    """Where one operator would run, looked at alone, why, and who says so."""

    on: Verdict
    reason: str
    source: str


@functools.cache
def knowledge() -> Knowledge:
    """Reads the operator table."""
    name = "edgetpu_operators.toml"
    text = importlib.resources.files("edgeport.compilers").joinpath(name).read_text("utf-8")
    table = tomllib.loads(text)
    operators = {o["name"]: _support(o) for o in table["operator"]}
    refused = {o.name: (o.refused, o.source) for o in operators.values() if o.refused is not None}
    refused |= {r["name"]: (r["version"], r["source"]) for r in table["parser"]["refused"]}
    return Knowledge(
        operators=operators,
        refused=refused,
        unknown_code=table["parser"]["unknown_code"],
        unknown_code_source=_threads(table["parser"]["issues"]),
        evidence=Evidence(**table["evidence"]),
    )


def _support(entry: dict[str, Any]) -> Support:
    sources = [DOCUMENT if s == "vendor document" else s for s in entry["source"]]
    if entry.get("issues"):
        sources.append(_threads(entry["issues"]))
    sources += entry.get("logs", [])
    return Support(
        name=entry["name"],
        runtime=entry["runtime"],
        accepted=entry["accepted"],
        source="; ".join(sources),
        limits=tuple(entry["limits"]),
        refused=entry.get("refused"),
        proven=entry.get("proven", True),
    )


def _threads(numbers: Sequence[int]) -> str:
    return f"{THREADS} {', '.join(str(n) for n in numbers)}"


def predict(model: bytes) -> Placement:
    """Predicts what `edgetpu_compiler -m 14` makes of a flatbuffer.

    Three steps, as the compiler takes them. The parser refuses the whole file for a version or
    operator code that it doesn't know, or if nothing is quantized: then every operator is on the
    CPU with that reason. Each operator alone can or can't be mapped. Then only the first set of
    mappable operators is compiled (see `first_set`).

    An operator about which nothing is known is "uncertain", never "edgetpu"; so is a mappable
    one beyond the sizes that were seen. In the third step uncertain operators count as mapped,
    so that one of them does not throw all that follows to the CPU; the reason of those that
    depend on it says so.

    Args:
        model: A LiteRT flatbuffer; its first subgraph is looked at.

    Returns:
        The placement; `partitions` is the number of Edge TPU subgraphs, 0 or 1.

    Raises:
        ModelFileError: The bytes are no LiteRT flatbuffer.
    """
    parsed = flatbuffer.parse(model)
    subgraph = parsed.subgraphs[0]
    operators = list(subgraph.operators or [])
    refusal = _refusal(parsed)
    if refusal is not None:
        return _placement(parsed, operators, [refusal] * len(operators), partitions=0)

    answers = [_answer(parsed, subgraph, operator) for operator in operators]
    mappable = [answer.on != "cpu" for answer in answers]
    compiled = first_set(subgraph, mappable)
    final = [
        answer
        if answer.on == "cpu" or i in compiled
        else Answer("cpu", SECOND_SUBGRAPH, f"partition rule; {answer.source}")
        for i, answer in enumerate(answers)
    ]
    final = _mark_conditional(subgraph, final)
    return _placement(parsed, operators, final, partitions=1 if compiled else 0)


def first_set(subgraph: SubGraph, mappable: Sequence[bool]) -> set[int]:
    """Returns the operators that the compiler puts into its one subgraph.

    TFLite partitions a graph for a delegate in epochs: starting with the first operator that is
    ready, an epoch takes, in the order of the file and until nothing is added any more, every
    ready operator that is mappable like the first one, or is not like it. The first epoch of
    mappable operators is compiled. In a chain that is everything up to the first operator that
    can't be mapped; branches that don't depend on that one belong to it, and operators that
    can't be mapped at the head of the graph don't stop what follows.

    Args:
        subgraph: The graph.
        mappable: For each operator whether it can be mapped.
    """
    made = {
        i for operator in subgraph.operators or [] for i in flatbuffer.indices(operator.outputs)
    }
    needs = [made.intersection(flatbuffer.indices(o.inputs)) for o in subgraph.operators or []]
    makes = [flatbuffer.indices(o.outputs) for o in subgraph.operators or []]
    ready: set[int] = set()
    left = list(range(len(needs)))
    while left:
        kind: bool | None = None
        epoch: set[int] = set()
        grew = True
        while grew:
            grew = False
            for i in list(left):
                if needs[i] <= ready and kind in (None, mappable[i]):
                    kind = mappable[i]
                    epoch.add(i)
                    ready.update(makes[i])
                    left.remove(i)
                    grew = True
        if kind or not epoch:  # an empty epoch: the graph has a cycle and can't be run
            return epoch
    return set()


def _placement(
    model: Model, operators: Sequence[Operator], answers: Sequence[Answer], partitions: int
) -> Placement:
    placed = tuple(
        OperatorPlacement(
            index=i,
            operator=flatbuffer.operator_name(model, operator),
            version=flatbuffer.operator_version(model, operator),
            on=answer.on,
            reason=answer.reason,
            source=f"prediction: {answer.source}",
        )
        for i, (operator, answer) in enumerate(zip(operators, answers, strict=True))
    )
    return Placement(placed, partitions)


def _mark_conditional(subgraph: SubGraph, answers: Sequence[Answer]) -> list[Answer]:
    uncertain: set[int] = set()
    marked = []
    for operator, answer in zip(subgraph.operators or [], answers, strict=True):
        depends = not uncertain.isdisjoint(flatbuffer.indices(operator.inputs))
        if answer.on == "uncertain" or (answer.on == "edgetpu" and depends):
            uncertain.update(flatbuffer.indices(operator.outputs))
        if answer.on == "edgetpu" and depends:
            reason = f"{MAPPED}, provided that the uncertain operators before it are"
            answer = Answer(answer.on, reason, answer.source)
        marked.append(answer)
    return marked


def _refusal(model: Model) -> Answer | None:
    """Returns why the parser refuses the whole file, or None."""
    known = knowledge()
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or []:
            code = flatbuffer.builtin_code(model, operator)
            if code >= known.unknown_code:
                return Answer("cpu", OUT_OF_RANGE.format(code=code), known.unknown_code_source)
            name = flatbuffer.operator_name(model, operator)
            version = flatbuffer.operator_version(model, operator)
            lowest, source = known.refused.get(name, (version + 1, ""))
            if version >= lowest:
                reason = REFUSED.format(name=name, version=version)
                return Answer("cpu", reason, source)
    main = model.subgraphs[0]
    activations = [t for t in main.tensors if not flatbuffer.is_constant(model, t)]
    if not any(flatbuffer.type_name(t) in _8_BIT and _is_quantized(t) for t in activations):
        return Answer("cpu", NOT_QUANTIZED, f"{DOCUMENT}; {_threads([168, 213, 238, 290, 313])}")
    return None


def _is_quantized(tensor: Tensor) -> bool:
    return flatbuffer.quantization(tensor) is not None


def _answer(model: Model, subgraph: SubGraph, operator: Operator) -> Answer:
    view = _View(model, subgraph, operator)
    support = knowledge().operators.get(view.name)
    if not view.is_8_bit():
        return Answer("cpu", DATA_TYPE, DOCUMENT)
    if support is None:
        return Answer("cpu", NOT_SUPPORTED, f"not in the table of the {DOCUMENT}")
    if any(d < 1 for t in view.activations() for d in flatbuffer.shape(t)):
        return Answer("cpu", DYNAMIC, f"{DOCUMENT}; {_threads([586, 829])}")
    if any(_has_outer_dimensions(t) for t in view.activations()):
        return Answer("cpu", RANK, f"{DOCUMENT}; {_threads([30, 700])}")
    doubts = []
    for limit in support.limits:
        held = LIMITS[limit](view)
        if held is False:
            return Answer("cpu", LIMITATION, f"{support.source} (limit: {limit})")
        if held is None:
            doubts.append(limit.replace("_", " "))
    if view.version > support.accepted:
        doubts.append(f"version {view.version} above {support.accepted}")
    if not support.proven:
        doubts.append("the operator itself")
    if any(_elements(t) > knowledge().evidence.activation_elements for t in view.activations()):
        doubts.append("an activation this large")
    if doubts:
        return Answer("uncertain", f"no evidence for {', '.join(doubts)}", support.source)
    return Answer("edgetpu", MAPPED, support.source)


def _elements(tensor: Tensor) -> int:
    return math.prod(flatbuffer.shape(tensor))


def _has_outer_dimensions(tensor: Tensor) -> bool:
    return any(d > 1 for d in flatbuffer.shape(tensor)[:-_MAX_RANK])


class _View:
    """One operator with its tensors, as the limits look at it."""

    def __init__(self, model: Model, subgraph: SubGraph, operator: Operator) -> None:
        self.model = model
        self.operator = operator
        self.name = flatbuffer.operator_name(model, operator)
        self.version = flatbuffer.operator_version(model, operator)
        self.inputs: list[Tensor | None] = [
            subgraph.tensors[i] if i >= 0 else None for i in operator.inputs
        ]
        self.outputs: list[Tensor] = [
            subgraph.tensors[i] for i in flatbuffer.indices(operator.outputs)
        ]

    def activations(self) -> list[Tensor]:
        """Returns the inputs that are computed, without states, and the outputs."""
        inputs = [t for t in self.inputs if t is not None and not t.isVariable]
        return [t for t in inputs if not flatbuffer.is_constant(self.model, t)] + self.outputs

    def is_8_bit(self) -> bool:
        """Tells whether all activations are quantized to 8 bits."""
        return all(
            flatbuffer.type_name(t) in _8_BIT and _is_quantized(t) for t in self.activations()
        )

    def option(self, name: str) -> int:
        """Returns an option as a number."""
        return int(flatbuffer.option(self.operator, name, 0))

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Returns the shape of an input; empty where it is absent."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        return () if tensor is None else flatbuffer.shape(tensor)

    def output_shape(self) -> tuple[int, ...]:
        """Returns the shape of the first output."""
        return flatbuffer.shape(self.outputs[0]) if self.outputs else ()

    def constant(self, position: int) -> np.ndarray | None:
        """Returns the values of an input, or None where they are not in the file."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        return None if tensor is None else flatbuffer.constant(self.model, tensor)

    def axes(self, position: int, rank: int) -> set[int] | None:
        """Returns axes given by an input, counted from the front; None if not constant."""
        values = self.constant(position)
        if values is None or rank == 0:
            return None
        return {int(v) % rank for v in values.reshape(-1)}


# A limit: True: kept, False: broken, so not mapped; None: the evidence does not say.
Limit = Callable[[_View], bool | None]


def _no_fused_activation(view: _View) -> bool:
    return view.option("fusedActivationFunction") == 0


def _constant_parameters(view: _View) -> bool:
    parameters = (t for t in view.inputs[1:] if t is not None and not t.isVariable)
    return all(flatbuffer.is_constant(view.model, t) for t in parameters)


def _constant_transposed_weights(view: _View) -> bool:
    return view.constant(0) is not None and view.constant(1) is not None


def _constant_input_only_as_zero_padding(view: _View) -> bool:
    tensors = [t for t in view.inputs if t is not None]
    fixed = [t for t in tensors if flatbuffer.is_constant(view.model, t)]
    if not fixed:
        return True
    found = flatbuffer.quantization(fixed[0])
    values = flatbuffer.constant(view.model, fixed[0])
    if len(tensors) != 2 or len(fixed) != 1 or found is None or values is None:
        return False
    return bool((values == found[1][0]).all())


def _same_dilation(view: _View) -> bool:
    return view.option("dilationWFactor") == view.option("dilationHFactor")


def _not_grouped(view: _View) -> bool | None:
    return True if view.shape(0)[-1:] == view.shape(1)[-1:] else None


def _default_weights_format(view: _View) -> bool:
    return view.option("weightsFormat") == 0


def _one_dimensional_output(view: _View) -> bool:
    return math.prod(view.output_shape()[:-1]) == 1


def _one_dimensional_input(view: _View) -> bool:
    return math.prod(view.shape()[:-1]) == 1


def _short_softmax(view: _View) -> bool | None:
    return True if math.prod(view.shape()) <= knowledge().evidence.softmax_elements else None


def _small_reshape(view: _View) -> bool | None:
    return True if math.prod(view.shape()) <= knowledge().evidence.reshape_elements else None


def _not_over_batch(view: _View) -> bool | None:
    axes = view.axes(1, len(view.shape()))
    return None if axes is None else 0 not in axes


def _spatial_mean(view: _View) -> bool | None:
    shape = view.shape()
    is_spatial = len(shape) == 4 and view.axes(1, 4) == {1, 2}
    small = is_spatial and shape[1] * shape[2] <= knowledge().evidence.mean_positions
    return True if small else None


def _axis_not_batch(view: _View) -> bool | None:
    if view.name == "SPLIT":  # its axis is a tensor, and the data come second
        axes = view.axes(0, len(view.shape(1)))
        return None if axes is None else axes != {0}
    return view.option("axis") % max(len(view.output_shape()), 1) != 0


def _spatial_padding(view: _View) -> bool | None:
    amounts = view.constant(1)
    if amounts is None or amounts.shape != (4, 2):
        return None
    if amounts[0].any():
        return False
    return None if amounts[3].any() else True


def _resize_factor(view: _View) -> bool | None:
    if len(view.shape()) != 4 or len(view.output_shape()) != 4:
        return None
    factors = [
        new / old for new, old in zip(view.output_shape()[1:3], view.shape()[1:3], strict=True)
    ]
    evidence = knowledge().evidence
    if max(factors) >= evidence.resize_factor_refused:
        return False
    return True if min(factors) >= 1 and max(factors) <= evidence.resize_factor else None


def _unit_strides(view: _View) -> bool | None:
    strides = view.constant(3)
    return None if strides is None else bool((strides == 1).all())


def _plain_slice(view: _View) -> bool:
    return view.option("ellipsisMask") == 0 and view.option("newAxisMask") == 0


def _plain_lstm(view: _View) -> bool | None:
    """Four gates, biases, no peepholes, no projection, no layer norm: what the pairs show."""
    present = [t is not None for t in view.inputs]
    gates_and_biases = all(present[1:9]) and all(present[12:16])
    extras = any(present[9:12]) or any(present[16:18]) or any(present[20:])
    return True if gates_and_biases and not extras and not view.option("timeMajor") else None


LIMITS: dict[str, Limit] = {
    "no_fused_activation": _no_fused_activation,
    "constant_parameters": _constant_parameters,
    "constant_transposed_weights": _constant_transposed_weights,
    "constant_input_only_as_zero_padding": _constant_input_only_as_zero_padding,
    "same_dilation": _same_dilation,
    "not_grouped": _not_grouped,
    "default_weights_format": _default_weights_format,
    "one_dimensional_output": _one_dimensional_output,
    "one_dimensional_input": _one_dimensional_input,
    "short_softmax": _short_softmax,
    "small_reshape": _small_reshape,
    "not_over_batch": _not_over_batch,
    "spatial_mean": _spatial_mean,
    "axis_not_batch": _axis_not_batch,
    "spatial_padding": _spatial_padding,
    "resize_factor": _resize_factor,
    "unit_strides": _unit_strides,
    "plain_slice": _plain_slice,
    "plain_lstm": _plain_lstm,
}
