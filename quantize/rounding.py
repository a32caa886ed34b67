"""Choosing integer weights that keep a layer's outputs, instead of rounding each to the nearest.

Weights are symmetric int8 with a scale for each output channel, max|w| / 127: the grid on which
ai-edge-quantizer then finds them.
"""

from __future__ import annotations

import numpy as np

LEVELS = 127
_BLOCK = 64  # columns between two updates of all later ones
_DAMPING = 0.01  # of the mean diagonal: keeps the inverse of few samples sound


def channel_scales(rows: np.ndarray) -> np.ndarray:
    """Returns the scale of each row of weights, [out]; 1 for rows of zeros."""
    largest = np.abs(rows).max(axis=1)
    return np.where(largest > 0, largest / LEVELS, 1.0)


def round_to_nearest(rows: np.ndarray) -> np.ndarray:
    """Returns the weights [out, n] as int8 rounded to the nearest will hold them, as floats."""
    scales = channel_scales(rows)[:, np.newaxis]
    return np.asarray(np.clip(np.rint(rows / scales), -LEVELS, LEVELS) * scales)


def round_for_outputs(rows: np.ndarray, second_moments: np.ndarray) -> np.ndarray:
    """Rounds weights so that the layer's output changes least on its inputs.

    Weights are rounded one column after the other, and the error of each is made good by those
    that are still to come, as their correlation on the inputs allows (Frantar and others, GPTQ,
    2022, arXiv:2210.17323). The largest weight of each row keeps its value, and so the row its
    scale.

    Args:
        rows: Weights, [out, n].
        second_moments: Σ x·xᵀ over the layer's inputs, [n, n]; or [out, n, n] where each output
            has inputs of its own (depthwise).

    Returns:
        The weights on the int8 grid, as floats, [out, n].
    """
    moments = np.array(second_moments, dtype=np.float64)
    scales = channel_scales(rows.astype(np.float64))
    if moments.ndim == 2:
        moments = moments[np.newaxis]
    count = rows.shape[1]
    diagonal = np.einsum("...ii->...i", moments)
    damping = _DAMPING * diagonal.mean(axis=-1, keepdims=True) + 1e-12
    diagonal += damping  # a view into `moments`
    # One order for all rows, inputs that matter most first.
    order = np.argsort(-diagonal.sum(axis=0), kind="stable")
    moments = moments[:, order][:, :, order]
    upper = np.linalg.cholesky(np.linalg.inv(moments)).swapaxes(-1, -2)
    work = rows.astype(np.float64)[:, order]
    largest = np.abs(work).argmax(axis=1)
    rounded = np.zeros_like(work)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        errors = np.zeros((work.shape[0], end - start))
        for column in range(start, end):
            values = work[:, column]
            steps = np.clip(np.rint(values / scales), -LEVELS, LEVELS)
            kept = largest == column
            steps[kept] = np.sign(rows[kept, order[column]]) * LEVELS  # 0 in rows of zeros
            rounded[:, column] = steps * scales
            errors[:, column - start] = (values - rounded[:, column]) / upper[:, column, column]
            work[:, column + 1 : end] -= (
                errors[:, column - start, np.newaxis] * upper[:, column, column + 1 : end]
            )
        if end < count:
            if upper.shape[0] == 1:
                work[:, end:] -= errors @ upper[0, start:end, end:]
            else:
                work[:, end:] -= np.einsum("oe,oen->on", errors, upper[:, start:end, end:])
    result = np.empty_like(rounded)
    result[:, order] = rounded
    return result
