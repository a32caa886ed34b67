"""Figures of accuracy are what their definitions say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgeport.report import OutputAccuracy
from edgeport.runtime_check.compare import SQNR_LIMIT, OutputComparison

floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def compare(*pairs: tuple[object, object], classes: bool = False) -> OutputAccuracy:
    comparison = OutputComparison("y", classes=classes)
    for reference, actual in pairs:
        comparison.add(np.asarray(reference), np.asarray(actual))
    return comparison.result()


def test_figures_by_hand() -> None:
    found = compare(([3.0, 0.0], [3.0, 1.0]), ([0.0, 1.0], [0.0, 1.0]))
    assert found.sqnr_db == pytest.approx(10.0)  # 10 of signal, 1 of noise
    assert found.cosine == pytest.approx(10 / math.sqrt(10 * 11))
    assert found.max_abs_difference == 1.0
    assert found.top1_agreement is None
    assert found.output == "y"


@given(arrays.arrays(np.float32, (4, 6), elements=floats))
def test_equal_outputs_are_exact(values: np.ndarray) -> None:
    found = compare((values, values), classes=True)
    assert (found.sqnr_db, found.max_abs_difference) == (SQNR_LIMIT, 0.0)
    assert found.cosine == pytest.approx(1.0)
    assert (found.top1_agreement, found.top5_agreement) == (1.0, 1.0)


def test_the_best_five_of_five_classes_say_nothing() -> None:
    scores = np.arange(10, dtype=np.float32).reshape(2, 5)
    found = compare((scores, scores), classes=True)
    assert (found.top1_agreement, found.top5_agreement) == (1.0, None)


@given(
    st.lists(
        st.tuples(
            arrays.arrays(np.float32, (3, 7), elements=floats),
            arrays.arrays(np.float32, (3, 7), elements=floats),
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_samples_count_as_one_long_vector(
    pairs: list[tuple[np.ndarray, np.ndarray]],
) -> None:
    found = compare(*pairs, classes=True)
    r = np.concatenate([p[0].ravel() for p in pairs]).astype(np.float64)
    a = np.concatenate([p[1].ravel() for p in pairs]).astype(np.float64)
    signal, noise = float(r @ r), float((r - a) @ (r - a))
    if signal and noise:
        expected = np.clip(10 * math.log10(signal / noise), -SQNR_LIMIT, SQNR_LIMIT)
        assert found.sqnr_db == pytest.approx(expected, abs=1e-6)
    assert found.max_abs_difference == np.abs(r - a).max()
    assert -1 <= found.cosine <= 1
    assert found.top1_agreement is not None
    assert found.top5_agreement is not None
    assert 0 <= found.top1_agreement <= found.top5_agreement <= 1


@given(arrays.arrays(np.float32, (2, 3), elements=floats), st.floats(0.5, 2))
def test_scaled_outputs_point_the_same_way(values: np.ndarray, factor: float) -> None:
    found = compare((values, values.astype(np.float64) * factor))
    if values.any():
        assert found.cosine == pytest.approx(1.0)


def test_agreement_counts_rows() -> None:
    reference = np.eye(8)[[0, 1, 2, 3]]
    actual = np.eye(8)[[0, 1, 2, 7]] + np.arange(8)[::-1] * 0.01
    found = compare((reference, actual), classes=True)
    assert found.top1_agreement == 0.75
    assert found.top5_agreement == 1.0  # class 3 is the fourth of the others


def test_equal_scores_keep_the_order_of_the_classes() -> None:
    assert compare(([[0, 2, 1]], [[1, 5, 5]]), classes=True).top1_agreement == 1.0
    assert compare(([[0, 1, 2]], [[1, 5, 5]]), classes=True).top1_agreement == 0.0
    assert compare(([[0] * 6 + [1]], [[3] * 7]), classes=True).top5_agreement == 0.0


def test_infinities_and_nan_in_the_same_places_are_no_difference() -> None:
    values = [np.nan, np.inf, -np.inf, 1.0]
    found = compare((values, values))
    assert found.sqnr_db == SQNR_LIMIT
    assert found.max_abs_difference == 0.0


@pytest.mark.parametrize(
    ("reference", "actual"),
    [
        ([1.0, 2.0], [1.0, np.nan]), ([1.0, 2.0], [1.0, np.inf]), ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, np.inf], [1.0, 3e38]), ([np.inf], [-np.inf]), ([np.inf], [np.nan]),
        ([1.0, 2.0], [1.0]), ([[1.0]], [1.0]),
    ],
)  # fmt: skip
def test_anything_else_that_is_not_finite_counts_as_broken(
    reference: object, actual: object
) -> None:
    found = compare(([1.0], [1.0]), (reference, actual))
    assert found.sqnr_db == -SQNR_LIMIT
    assert found.cosine == 0.0
    assert found.max_abs_difference > 1e300
    assert math.isfinite(found.max_abs_difference)


def test_zeros_are_exact_only_against_zeros() -> None:
    assert compare(([0.0], [0.0])) == OutputAccuracy("y", SQNR_LIMIT, 1.0, 0.0)
    assert compare(([0.0], [0.1])).sqnr_db == -SQNR_LIMIT
    assert compare(([0.0], [0.1])).cosine == 0.0


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float16])
def test_other_types_are_compared_as_numbers(dtype: type) -> None:
    found = compare((np.array([1, 0, 1], dtype), np.array([1, 1, 1], dtype)))
    assert found.sqnr_db == pytest.approx(10 * math.log10(2))


def test_scalars_and_empty_outputs_are_compared() -> None:
    assert compare((np.float32(2), np.float32(2))).sqnr_db == SQNR_LIMIT
    assert compare((np.ones((0, 3)), np.ones((0, 3))), classes=True).top1_agreement is None


def test_huge_values_give_finite_figures() -> None:
    found = compare(([1e200, 1.0], [2e200, 1.0]))
    assert all(map(math.isfinite, (found.sqnr_db, found.cosine, found.max_abs_difference)))
    assert found.sqnr_db == -SQNR_LIMIT
