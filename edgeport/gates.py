"""What a conversion is judged on, and what is only told."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeport import flatbuffer
from edgeport.converters.borders import FileBorder
from edgeport.options import Options
from edgeport.report import Accuracy, Gate
from edgeport.runtime_check.validate import LEAST_FLOAT_SQNR
from edgeport.source import Source

# What rounding to an original's own precision costs alone: a file cannot be nearer to it.
_PRECISION_SQNR = {"torch.float16": 40.0, "torch.bfloat16": 25.0}


def _default_min_sqnr(source: Source, options: Options) -> float:
    """Returns the recipe's gate, or less where the original itself computes in half precision."""
    dtypes = {str(t.dtype) for t in source.program.state_dict.values()}
    dtypes |= {str(b.dtype) for b in (*source.inputs, *source.outputs)}
    limits = [_PRECISION_SQNR[d] for d in dtypes if d in _PRECISION_SQNR]
    return min([options.recipe.min_sqnr_db, *limits])


def judge(accuracy: tuple[Accuracy, ...], source: Source, options: Options) -> tuple[Gate, ...]:
    """Judges the worst output and runner on the best set of samples there is.

    Example inputs are often noise, which says nothing about real data: they count only when
    there is nothing else. A few samples say little about agreement, so its default gate wants 20.
    Integer outputs, such as positions of maxima, must be right in a float file; in a quantized one
    two close scores may change places, so there only the float outputs are judged.
    """
    kinds = {a.samples for a in accuracy}
    best = next((k for k in ("evaluation", "calibration", "example") if k in kinds), None)
    if best is None:
        return ()
    judged = [a for a in accuracy if a.samples == best]
    floats = {b.name for b in source.outputs if b.dtype.is_floating_point}
    if not options.recipe.algorithm or not floats:
        floats = {b.name for b in source.outputs}
    gates = []
    sqnr = [o.sqnr_db for a in judged for o in a.outputs if o.output in floats]
    if sqnr:
        threshold = options.min_sqnr
        if threshold is None:
            threshold = _default_min_sqnr(source, options)
        gates.append(Gate("min_sqnr", threshold, min(sqnr), min(sqnr) >= threshold, best))
    asked = options.min_top1_agreement
    top1 = [
        o.top1_agreement
        for a in judged
        for o in a.outputs
        if o.top1_agreement is not None and (asked is not None or a.count >= 20)
    ]
    if top1:
        threshold = options.recipe.min_top1_agreement if asked is None else asked
        gates.append(Gate("min_top1_agreement", threshold, min(top1), min(top1) >= threshold, best))
    elif asked is not None:
        # Asked for, and nothing to judge: never a pass.
        gates.append(Gate("min_top1_agreement", asked, 0.0, False, best))
    return tuple(gates)


def narrowed_inputs(inputs: tuple[FileBorder, ...]) -> list[str]:
    """Tells which integers are narrower in the file."""
    return [
        f"input `{b.name}` is {_short(b.original.dtype)} and computed as {b.dtype} in the file; "
        "larger values wrap around inside it"
        for b in inputs
        if str(b.dtype) == "int32" and _short(b.original.dtype) == "int64"
    ]


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def differing_integers(
    accuracy: tuple[Accuracy, ...], source: Source, options: Options
) -> list[str]:
    """Tells which integer outputs of a quantized file, that no gate judges, differ much."""
    if not options.recipe.algorithm:
        return []
    integers = {b.name for b in source.outputs if not b.dtype.is_floating_point}
    worst: dict[str, float] = {}
    for measured in accuracy:
        for output in measured.outputs:
            if output.output in integers:
                worst[output.output] = min(worst.get(output.output, 200.0), output.sqnr_db)
    return [
        f"the integer output `{name}` differs from the original's (SQNR {value:.1f} dB)"
        for name, value in worst.items()
        if value < LEAST_FLOAT_SQNR
    ]


def float_leftovers(model: bytes) -> list[str]:
    """Tells which operators of a model that should be all integers still compute in float."""
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    names: dict[str, int] = {}
    for operator in main.operators:
        name = flatbuffer.operator_name(parsed, operator)
        used = flatbuffer.indices(operator.outputs)
        if name not in ("QUANTIZE", "DEQUANTIZE") and any(
            flatbuffer.type_name(main.tensors[i]) == "float32" for i in used
        ):
            names[name] = names.get(name, 0) + 1
    if not names:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in names.items())
    return [f"operators that stay in float, since the quantizer does not know them: {listed}"]


# Fewer steps than this over all samples are too few to tell classes apart.
_FEWEST_STEPS = 16


class OutputSpans:
    """Between which values the original's outputs lie, channel by channel, over all samples."""

    def __init__(self) -> None:
        self._low: dict[str, np.ndarray] = {}
        self._high: dict[str, np.ndarray] = {}

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds one sample's outputs; channels are axis 1, behind the batch."""
        for name, values in outputs.items():
            if values.dtype.kind != "f" or values.ndim < 2 or not values.size:
                continue
            axes = tuple(a for a in range(values.ndim) if a != 1)
            low, high = values.min(axis=axes), values.max(axis=axes)
            self._low[name] = np.minimum(self._low.get(name, low), low)
            self._high[name] = np.maximum(self._high.get(name, high), high)

    def lost_detail(self, outputs: tuple[FileBorder, ...], classes: frozenset[str]) -> list[str]:
        """Tells which integer outputs have steps too coarse for what some channels hold.

        One scale for values of different size, such as boxes in pixels beside scores, rounds the
        small ones to a constant, which SQNR over the whole output does not show. Scores of classes
        are judged together: most of a softmax is below one step, as it should be.
        """
        told = []
        for border in outputs:
            if border.scale is None or border.name not in self._low:
                continue
            low, high = self._low[border.name], self._high[border.name]
            if border.name in classes:
                span = float(high.max() - low.min())
                if 0 < span < _FEWEST_STEPS * border.scale:
                    told.append(
                        f"output `{border.name}` varies by {span:.3g}, only "
                        f"{span / border.scale:.1f} steps of its {border.dtype}: take off what is "
                        "constant in it, or use `static_wi8_ai16`"
                    )
                continue
            spans = high - low
            lost = int(((spans > 0) & (spans < border.scale)).sum())
            if lost:
                told.append(
                    f"output `{border.name}`: {lost} of {len(spans)} channels vary by less than "
                    f"one step ({border.scale:.3g}) of its {border.dtype} and become constant; "
                    "give values of different size outputs of their own, or one scale"
                )
        return told
