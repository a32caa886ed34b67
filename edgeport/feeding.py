"""The samples of one conversion: what is calibrated on, and what accuracy is judged on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgeport.converters.borders import FileBorder, to_numpy
from edgeport.options import Options
from edgeport.quantize.samples import Expected, Sample, Samples
from edgeport.source import Source


class Feed:
    """Samples as the file takes them. The first few can be looked at before all are read."""

    def __init__(self, samples: Iterable[Sample], inputs: tuple[FileBorder, ...]) -> None:
        self._rest = iter(samples)
        self._first: list[Sample] = []
        self._inputs = inputs

    def first(self, count: int) -> list[Sample]:
        """Returns the first samples, and keeps them for the reading of all."""
        self._first += (
            self._to_file(s) for s in itertools.islice(self._rest, count - len(self._first))
        )
        return self._first

    def __iter__(self) -> Iterator[Sample]:
        yield from self._first
        yield from map(self._to_file, self._rest)

    def _to_file(self, sample: Sample) -> Sample:
        return {b.name: b.to_file(sample[b.name]) for b in self._inputs}


@dataclass(slots=True)
class SampleSets:
    """The samples of one conversion, in the original model's layout."""

    example: list[Sample]
    given: Samples | None
    evaluation: Samples | None

    @property
    def from_example(self) -> bool:
        """Whether there is nothing but the example inputs to calibrate on."""
        return self.given is None

    @property
    def calibration(self) -> Iterable[Sample]:
        """What to calibrate on."""
        return self.example if self.given is None else self.given

    @staticmethod
    def of(source: Source, options: Options, warnings: list[str]) -> SampleSets:
        """Opens the samples that were asked for, and reads the first of each.

        Args:
            source: The model.
            options: What was asked for.
            warnings: Takes what the user should know about the samples.

        Raises:
            CalibrationError: They do not fit the model.
        """
        expected = [Expected(b.name, b.shape, b.dtype.is_floating_point) for b in source.inputs]
        example = [{b.name: to_numpy(source.example[b.position]) for b in source.inputs}]
        example += _varied(example[0])

        def opened(asked: Any) -> Samples | None:
            if asked is None:
                return None
            reader = Samples(asked, expected, options.preprocessing)
            warnings.extend(reader.warnings)
            if reader.repeatable:
                next(iter(reader), None)  # one that does not fit is told before the conversion
            return reader

        sets = SampleSets(example, opened(options.calibration), opened(options.evaluation))
        if not sets.from_example and sets.evaluation is None and options.validate:
            warnings.append(
                "accuracy is judged on the calibration samples themselves, which flatters; "
                "give others with `--evaluation`"
            )
        if sets.from_example and options.recipe.needs_calibration:
            warnings.append(
                "no calibration samples were given: ranges come from the example inputs alone, "
                "which says little about real data; give some with `--calibration`"
            )
        return sets

    def after_calibration(self, count: int) -> list[str]:
        """Warns when samples were few."""
        if not self.from_example and count < 16:
            return [f"only {count} calibration samples; ranges want 16 or more, better 100"]
        return []

    def sets(self) -> Iterator[tuple[Literal["example", "calibration", "evaluation"], Any]]:
        """Yields the sets to validate on, by name."""
        yield "example", self.example
        if self.given is not None and self.given.repeatable:
            yield "calibration", self.given
        if self.evaluation is not None:
            yield "evaluation", self.evaluation


def _varied(example: Sample) -> list[Sample]:
    """Returns a second example where the first is constant, and so would hide most mistakes."""
    rng = np.random.default_rng(0)
    varied = dict(example)
    for name, values in example.items():
        if values.dtype.kind == "f" and values.size > 1 and np.all(values == values.flat[0]):
            noise = rng.standard_normal(values.shape)
            varied[name] = (noise * max(abs(float(values.flat[0])), 1.0)).astype(values.dtype)
    return [varied] if any(varied[n] is not example[n] for n in example) else []
