"""An artefact against the original model: on which runners, with which samples."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgeport.errors import ConversionError, NotCheckedError, RunnerRefusedError
from edgeport.report import Accuracy
from edgeport.runtime_check.compare import OutputComparison
from edgeport.runtime_check.runner import Arrays, Runner, Session

SampleSet = Literal["example", "calibration", "evaluation"]

# A float file that is farther from the original than this computes something else. Models in
# bfloat16 (8 bits of precision) reach 40 dB.
LEAST_FLOAT_SQNR = 20.0

_BLOCK = 16  # samples held in memory at a time


@dataclass(frozen=True, slots=True)
class Compared:
    """How samples reach the file and the original, and how their outputs are compared.

    Attributes:
        reference: Runs the original model on a sample.
        to_file: Turns a sample into the file's inputs.
        from_file: Turns the file's outputs into the original's layout, dequantized.
        outputs: Names of the outputs.
        classes: Those that hold scores of classes.
    """

    reference: Callable[[Mapping[str, np.ndarray]], Arrays]
    to_file: Callable[[Mapping[str, np.ndarray]], Arrays]
    from_file: Callable[[Arrays], Arrays]
    outputs: tuple[str, ...]
    classes: frozenset[str]


def validate(
    runners: Sequence[tuple[Runner, int | None]],
    model: bytes,
    compared: Compared,
    sets: Iterable[tuple[SampleSet, Iterable[Mapping[str, np.ndarray]]]],
    *,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
    refused: list[str] | None = None,
) -> tuple[Accuracy, ...]:
    """Runs the original once, and the file on every runner, over all samples.

    Args:
        runners: Each with the most samples of a set that it gets (None: all).
        model: The flatbuffer.
        compared: How to compare.
        sets: Named sets of samples.
        progress: Told the number of samples done.
        refused: Takes the refusals of runners after the first one, which then are left out.

    Raises:
        NotCheckedError: A runner can't run the model.
    """
    results = []
    done = 0
    with ExitStack() as stack:
        sessions: list[tuple[Runner, int | None, Session]] = []
        for runner, limit in runners:
            try:
                sessions.append((runner, limit, stack.enter_context(runner.open(model))))
            except RunnerRefusedError as e:
                if refused is None or not sessions:
                    raise
                refused.append(f"not checked on `{runner.name}`: {e.what.splitlines()[0]}")
        limits = [limit for _, limit in runners]
        most = None if None in limits else max((n for n in limits if n is not None), default=0)
        for name, samples in sets:
            comparisons = {
                runner.name: [
                    OutputComparison(o, classes=o in compared.classes) for o in compared.outputs
                ]
                for runner, _, _ in sessions
            }
            times: dict[str, list[float]] = {runner.name: [] for runner, _, _ in sessions}
            # In blocks, so that torch's threads and the runtime's do not wait for each other in turn.
            bounded = itertools.islice(enumerate(samples), most)
            while block := list(itertools.islice(bounded, _BLOCK)):
                expected = [compared.reference(sample) for _, sample in block]
                inputs = [compared.to_file(sample) for _, sample in block]
                for runner, limit, session in sessions:
                    for (number, _), right, given in zip(block, expected, inputs, strict=True):
                        if limit is not None and number >= limit:
                            break
                        outputs, seconds = session.run(given)
                        found = compared.from_file(outputs)
                        for comparison in comparisons[runner.name]:
                            comparison.add(right[comparison.name], found[comparison.name])
                        times[runner.name].append(seconds)
                done += len(block)
                progress(done, None)
            for runner, _, _ in sessions:
                if times[runner.name]:
                    results.append(
                        Accuracy(
                            runner=runner.name,
                            samples=name,
                            count=len(times[runner.name]),
                            outputs=tuple(c.result() for c in comparisons[runner.name]),
                            median_ms=round(statistics.median(times[runner.name]) * 1e3, 3),
                        )
                    )
    return tuple(results)


def check_conversion(
    runner: Runner,
    model: bytes,
    compared: Compared,
    samples: Iterable[Mapping[str, np.ndarray]],
) -> None:
    """Checks a float file before it is quantized, so that the two kinds of error stay apart.

    Raises:
        ConversionError: LiteRT can't run it, or its outputs are not the original's.
    """
    try:
        measured = validate([(runner, None)], model, compared, [("example", samples)])
    except NotCheckedError as e:
        raise ConversionError(
            f"LiteRT can't run the converted file: {e.what}",
            hint="the converter wrote an operator in a way that no kernel takes; nothing was "
            "written. With validation switched off you get the file to look at",
        ) from e
    for accuracy in measured:
        for output in accuracy.outputs:
            if not output.sqnr_db >= LEAST_FLOAT_SQNR:
                raise ConversionError(
                    f"the converted float file computes something else than the original: output "
                    f"`{output.output}` has an SQNR of {output.sqnr_db:.1f} dB on the example "
                    f"inputs (largest difference {output.max_abs_difference:.3g})",
                    hint="a random operator, or a fault of the converter; nothing was written",
                )
