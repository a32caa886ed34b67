"""The report's JSON form and its schema agree."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest

from edgeport.report import (
    SCHEMA_VERSION,
    Accuracy,
    CompilerReport,
    FileInfo,
    Gate,
    ModelInfo,
    OperatorPlacement,
    OutputAccuracy,
    PassChange,
    Placement,
    Report,
    Stage,
    TensorInfo,
    json_schema,
    to_json,
)


def make_report(**changes: Any) -> Report:
    tensor = TensorInfo(
        "image", "int8", (1, 8, 8, 3), "channels-last", "float32", (1, 3, 8, 8), 0.5, -3
    )
    report = Report(
        verdict="passed",
        target="edgetpu",
        recipe="static_wi8_ai8",
        model=ModelInfo("m", "m.pt", "0" * 64, 10, 20, (tensor,), (tensor,)),
        stages=(Stage("load", 0.1, 1000),),
        passes=(PassChange("fold_batch_norm", "graph", 1, "folded"),),
        compiler=CompilerReport("vela", "5.2", "compiled", "done", {"cycles": 5.0}),
        placement=Placement(
            (
                OperatorPlacement(0, "CONV_2D", 3, "npu", "supported", "vela 5.2"),
                OperatorPlacement(1, "GELU", 1, "cpu", "not supported", "vela 5.2"),
            ),
            1,
        ),
        accuracy=(
            Accuracy("host", "example", 1, (OutputAccuracy("logits", 20.0, 0.9, 0.1, 1.0),), 2.0),
        ),
        gates=(Gate("min_sqnr", 10.0, 20.0, True, "example"),),
        files=(FileInfo("model", "m.tflite", 4, "0" * 64),),
        warnings=("few samples",),
        options={"layout": "keep"},
        versions={"python": "3.11"},
    )
    return dataclasses.replace(report, **changes)


def test_a_report_fits_its_schema_and_says_its_version_first() -> None:
    data = json.loads(make_report().to_json())
    jsonschema.validate(data, json_schema(), cls=jsonschema.Draft202012Validator)
    assert next(iter(data)) == "schema_version"
    assert data["schema_version"] == SCHEMA_VERSION


def test_every_field_of_the_report_is_required_by_the_schema() -> None:
    whole = json.loads(make_report().to_json())
    for field in whole:
        data = {k: v for k, v in whole.items() if k != field}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, json_schema())


@pytest.mark.parametrize(
    "changes",
    [{"verdict": "great"}, {"gates": (Gate("x", 1.0, 2.0, "yes", "example"),)}],  # type: ignore[arg-type]
)
def test_the_schema_refuses_what_a_report_can_not_say(changes: dict[str, Any]) -> None:
    data = json.loads(make_report(**changes).to_json())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema())


def test_infinite_figures_never_reach_the_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"sqnr": float("inf")})


def test_placement_counts_operators_by_unit() -> None:
    assert make_report().placement.count() == {"npu": 1, "cpu": 1}
