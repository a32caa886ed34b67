"""Rounding weights for a layer's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeport.quantize.rounding import channel_scales, round_for_outputs, round_to_nearest


def correlated_inputs(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    mixing = rng.standard_normal((size, size))
    return np.asarray(rng.standard_normal((count, size)) @ mixing + 1.0)


def output_error(rows: np.ndarray, rounded: np.ndarray, x: np.ndarray) -> float:
    return float(((x @ (rows - rounded).T) ** 2).sum())


@settings(max_examples=30, deadline=None)
@given(out=st.integers(1, 9), size=st.integers(1, 150), seed=st.integers(0, 999))
def test_weights_lie_on_the_grid_that_the_largest_weight_spans(
    out: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((out, size)).astype(np.float32)
    x = correlated_inputs(rng, 2 * size + 8, size)
    rounded = round_for_outputs(rows, x.T @ x)
    steps = rounded / channel_scales(rows.astype(np.float64))[:, np.newaxis]
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    assert np.abs(steps).max() <= 127 + 1e-6
    # The same scale is found again from the rounded weights.
    np.testing.assert_allclose(np.abs(rounded).max(axis=1), np.abs(rows).max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("size", [9, 100, 200])
def test_outputs_change_less_than_with_rounding_to_nearest(size: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((16, size))
    x = correlated_inputs(rng, 4 * size, size)
    learned = output_error(rows, round_for_outputs(rows, x.T @ x), x)
    nearest = output_error(rows, round_to_nearest(rows), x)
    assert learned < 0.7 * nearest


def test_inputs_without_correlation_leave_rounding_to_the_nearest() -> None:
    rows = np.random.default_rng(2).standard_normal((5, 80))
    np.testing.assert_allclose(round_for_outputs(rows, np.eye(80)), round_to_nearest(rows))


def test_depthwise_rows_have_inputs_of_their_own() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((6, 9))
    moments = np.stack([(x := correlated_inputs(rng, 50, 9)).T @ x for _ in range(6)])
    # The order of columns is common to all rows, so a row alone may be rounded in another one.
    together = round_for_outputs(rows, moments)
    error = np.einsum("oi,oij,oj->o", rows - together, moments, rows - together)
    plain = rows - round_to_nearest(rows)
    nearest = np.einsum("oi,oij,oj->o", plain, moments, plain)
    assert error.sum() < nearest.sum()


def test_rows_and_inputs_of_zeros_stay_finite() -> None:
    rows = np.array([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]])
    rounded = round_for_outputs(rows, np.zeros((3, 3)))
    assert np.isfinite(rounded).all()
    np.testing.assert_array_equal(rounded[0], 0.0)
    np.testing.assert_allclose(rounded[1], rows[1], atol=2 / 127)


def test_the_moments_given_are_not_changed() -> None:
    moments = np.eye(4)
    round_for_outputs(np.ones((2, 4)), moments)
    np.testing.assert_array_equal(moments, np.eye(4))
