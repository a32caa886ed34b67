"""What the verdict is judged on."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edgeport.converters.borders import FileBorder
from edgeport.gates import OutputSpans, judge
from edgeport.options import Options
from edgeport.report import Accuracy, OutputAccuracy
from edgeport.source import Border


def options(recipe: str = "float32", **changes: Any) -> Options:
    target = "cpu"
    plain: dict[str, Any] = {
        "layout": None, "io_type": None, "effort": "balanced", "calibration": None,
        "evaluation": None, "preprocessing": None, "min_sqnr": None, "min_top1_agreement": None,
        "validate": True, "check_passes": False, "keep_stages": False, "verbose": False,
    }  # fmt: skip
    return Options.resolve(target=target, recipe=recipe, **(plain | changes))


def source(*dtypes: torch.dtype, weights: torch.dtype = torch.float32) -> Any:
    borders = tuple(Border(f"y{i}", i, (1, 4), dtype) for i, dtype in enumerate(dtypes))
    program = SimpleNamespace(state_dict={"w": torch.zeros(1, dtype=weights)})
    return SimpleNamespace(outputs=borders, inputs=(), program=program)


def measured(
    sqnr: tuple[float, ...], samples: Any = "example", count: int = 1, top1: float | None = None
) -> Accuracy:
    outputs = tuple(
        OutputAccuracy(f"y{i}", value, 1.0, 0.0, top1 if i == 0 else None)
        for i, value in enumerate(sqnr)
    )
    return Accuracy("host", samples, count, outputs, 1.0)


def verdicts(gates: Any) -> dict[str, bool]:
    return {gate.name: gate.passed for gate in gates}


def test_the_worst_output_is_judged() -> None:
    floats = source(torch.float32, torch.float32)
    assert verdicts(judge((measured((120.0, 70.0)),), floats, options())) == {"min_sqnr": True}
    assert verdicts(judge((measured((120.0, 50.0)),), floats, options())) == {"min_sqnr": False}


def test_evaluation_samples_are_judged_before_calibration_and_example() -> None:
    sets = (measured((5.0,)), measured((6.0,), "calibration"), measured((20.0,), "evaluation"))
    gates = judge(sets, source(torch.float32), options("w8a8"))
    assert [(g.name, g.value) for g in gates] == [("min_sqnr", 20.0)]


def test_wrong_integers_fail_a_float_file_and_are_not_judged_in_a_quantized_one() -> None:
    mixed = source(torch.float32, torch.int64)
    result = (measured((120.0, 0.0)),)
    assert verdicts(judge(result, mixed, options())) == {"min_sqnr": False}
    assert verdicts(judge(result, mixed, options("w8a8"))) == {"min_sqnr": True}
    assert verdicts(judge((measured((0.0,)),), source(torch.int64), options("w8a8"))) == {
        "min_sqnr": False
    }


@pytest.mark.parametrize(("dtype", "sqnr"), [(torch.bfloat16, 30.0), (torch.float16, 45.0)])
def test_an_original_in_half_precision_lowers_the_gate(dtype: torch.dtype, sqnr: float) -> None:
    result = (measured((sqnr,)),)
    assert verdicts(judge(result, source(torch.float32), options()))["min_sqnr"] is False
    assert verdicts(judge(result, source(torch.float32, weights=dtype), options()))["min_sqnr"]
    assert verdicts(judge(result, source(dtype), options()))["min_sqnr"]


def test_agreement_of_a_few_samples_is_judged_only_when_asked_for() -> None:
    few = (measured((30.0,), count=3, top1=0.3),)
    floats = source(torch.float32)
    assert verdicts(judge(few, floats, options("w8a8"))) == {"min_sqnr": True}
    asked = options("w8a8", min_top1_agreement=0.5)
    assert verdicts(judge(few, floats, asked))["min_top1_agreement"] is False
    many = (dataclasses.replace(few[0], count=20),)
    assert verdicts(judge(many, floats, options("w8a8")))["min_top1_agreement"] is False


def test_agreement_asked_for_where_there_are_no_classes_never_passes() -> None:
    asked = options("w8a8", min_top1_agreement=0.0)
    gates = judge((measured((30.0,)),), source(torch.float32), asked)
    assert verdicts(gates) == {"min_sqnr": True, "min_top1_agreement": False}


def test_nothing_measured_is_nothing_passed() -> None:
    assert judge((), source(torch.float32), options()) == ()


def border(name: str, scale: float | None) -> FileBorder:
    original = Border(name, 0, (1, 4), torch.float32)
    return FileBorder(original, False, np.dtype(np.int8), scale, 0 if scale else None)


def spans_of(*samples: np.ndarray) -> OutputSpans:
    spans = OutputSpans()
    for sample in samples:
        spans.add({"y": sample})
    return spans


def test_scores_beside_boxes_in_one_scale_are_told() -> None:
    boxes = np.array([[[0.0, 640.0], [10.0, 300.0], [0.1, 0.9], [0.5, 0.4]]], np.float32)
    (text,) = spans_of(boxes).lost_detail((border("y", 2.5),), frozenset())
    assert "2 of 4 channels" in text
    assert spans_of(boxes).lost_detail((border("y", 0.01),), frozenset()) == []
    assert spans_of(boxes).lost_detail((border("y", None),), frozenset()) == []


def test_channels_vary_over_samples_and_constant_ones_lose_nothing() -> None:
    first, second = np.zeros((1, 3), np.float32), np.array([[0.0, 0.5, 9.0]], np.float32)
    (text,) = spans_of(first, second).lost_detail((border("y", 1.0),), frozenset())
    assert "1 of 3 channels" in text


def test_classes_are_judged_together() -> None:
    softmax = np.array([[0.97, 0.01, 0.01, 0.01]], np.float32)
    other = softmax[:, ::-1].copy()
    outputs = (border("y", 1 / 256),)
    assert spans_of(softmax, other).lost_detail(outputs, frozenset({"y"})) == []
    offset = 100 + 0.01 * softmax
    (text,) = spans_of(offset).lost_detail((border("y", 0.4),), frozenset({"y"}))
    assert "only 0.0 steps" in text
