"""Comparing an artefact's outputs with the original model's, in one pass over the samples."""

from __future__ import annotations

import math

import numpy as np

from edgeport.report import OutputAccuracy

SQNR_LIMIT = 200.0  # dB; stands for exact, and keeps the report free of infinities
_TOP = 5


class OutputComparison:
    """Collects the differences of one output over many samples.

    Args:
        name: The output's name.
        classes: Whether the last axis holds the scores of classes.
    """

    def __init__(self, name: str, *, classes: bool) -> None:
        self.name = name
        self._classes = classes
        self._signal = self._noise = self._dot = self._other = 0.0
        self._worst = 0.0
        self._rows = self._columns = self._top1 = self._top5 = 0
        self._broken = False

    def add(self, reference: np.ndarray, actual: np.ndarray) -> None:
        """Adds one sample.

        Args:
            reference: Output of the original model.
            actual: Output of the artefact, of the same shape, dequantized.

        Where the reference is NaN or infinite the artefact must be the same; values that are
        not finite only in the artefact count as an infinite difference.
        """
        if reference.shape != actual.shape:
            self._broken = True
            return
        r = reference.astype(np.float64).ravel()
        a = actual.astype(np.float64).ravel()
        same = (r == a) | (np.isnan(r) & np.isnan(a))
        finite = np.isfinite(r) & np.isfinite(a)
        if not np.all(same | finite):
            self._broken = True
        r, a = r[finite], a[finite]
        difference = r - a
        with np.errstate(over="ignore", invalid="ignore"):  # told by the sums' being infinite
            self._signal += float(r @ r)
            self._noise += float(difference @ difference)
            self._other += float(a @ a)
            self._dot += float(r @ a)
        if difference.size:
            self._worst = max(self._worst, float(np.abs(difference).max()))
        if self._classes and reference.size:
            self._add_classes(reference, actual)

    def _add_classes(self, reference: np.ndarray, actual: np.ndarray) -> None:
        r = reference.reshape(-1, reference.shape[-1])
        a = actual.reshape(-1, actual.shape[-1])
        best = r.argmax(axis=1)
        self._columns = r.shape[1]
        # Equal scores, usual in int8, keep the order of the classes: the same on every runtime.
        order = np.argsort(-a.astype(np.float64), axis=1, kind="stable")[:, :_TOP]
        self._rows += len(best)
        self._top1 += int((order[:, 0] == best).sum())
        self._top5 += int((order == best[:, None]).any(axis=1).sum())

    def result(self) -> OutputAccuracy:
        """Returns the figures over all samples added."""
        sums = (self._signal, self._noise, self._other, self._dot)
        if self._broken or not all(map(math.isfinite, sums)):
            return OutputAccuracy(self.name, -SQNR_LIMIT, 0.0, float(np.finfo(np.float64).max))
        if self._noise == 0.0:
            sqnr = SQNR_LIMIT
        elif self._signal == 0.0:
            sqnr = -SQNR_LIMIT
        else:
            sqnr = 10.0 * math.log10(self._signal / self._noise)
            sqnr = min(max(sqnr, -SQNR_LIMIT), SQNR_LIMIT)
        norms = math.sqrt(self._signal) * math.sqrt(self._other)
        cosine = self._dot / norms if norms else float(self._noise == 0.0)
        return OutputAccuracy(
            output=self.name,
            sqnr_db=sqnr,
            cosine=min(max(cosine, -1.0), 1.0),
            max_abs_difference=self._worst,
            top1_agreement=self._top1 / self._rows if self._rows else None,
            top5_agreement=self._top5 / self._rows if self._rows and self._columns > _TOP else None,
        )
