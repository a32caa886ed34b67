"""Ranges of activations: the smallest and largest value of each tensor over all samples.

One pass over the samples, and memory that does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edgeport.errors import CalibrationError
from edgeport.quantize.activations import ActivationReader


@dataclass(frozen=True, slots=True)
class Ranges:
    """Smallest and largest finite value of each float activation, by tensor name."""

    minimum: dict[str, float]
    maximum: dict[str, float]
    samples: int
    not_finite: tuple[str, ...]

    def to_quantize(self, name: str) -> tuple[float, float]:
        """Returns the range that an activation is quantized for.

        One that was always zero gets 0…1: any range holds zero exactly, but one without width has
        a scale so small that the biases of the layers that read it no longer fit into int32.
        """
        low, high = self.minimum[name], self.maximum[name]
        return (0.0, 1.0) if low == high == 0.0 else (low, high)


def observe(
    model: bytes,
    samples: Iterable[dict[str, np.ndarray]],
    *,
    threads: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Ranges:
    """Runs the model on all samples and keeps the ranges of its float activations.

    Args:
        model: A float flatbuffer with one signature.
        samples: Inputs by signature name, in the file's shapes and types.
        threads: Threads for LiteRT's kernels; the ranges do not depend on it.
        progress: Told the number of samples done.

    Raises:
        CalibrationError: There are no samples.
        ConversionError: LiteRT can't run the model.
    """
    reader = ActivationReader(model, threads)
    names = reader.names
    minimum = dict.fromkeys(names.values(), np.inf)
    maximum = dict.fromkeys(names.values(), -np.inf)
    not_finite: dict[str, None] = {}
    count = 0
    for sample in samples:
        reader.run(sample)
        for index, tensor_name in names.items():
            values = reader.activation(index)
            if values.size == 0:
                continue
            low, high = float(values.min()), float(values.max())
            if not (np.isfinite(low) and np.isfinite(high)):
                not_finite[tensor_name] = None
                finite = values[np.isfinite(values)]
                if finite.size == 0:
                    continue
                low, high = float(finite.min()), float(finite.max())
            minimum[tensor_name] = min(minimum[tensor_name], low)
            maximum[tensor_name] = max(maximum[tensor_name], high)
        count += 1
        progress(count)
    if count == 0:
        raise CalibrationError("there are no calibration samples")
    for name in names.values():  # never seen with a finite value
        if minimum[name] > maximum[name]:
            minimum[name] = maximum[name] = 0.0
    return Ranges(minimum, maximum, count, tuple(not_finite))
