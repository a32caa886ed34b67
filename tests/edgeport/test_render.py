"""Texts from models and tools are shown as they are: they are no markup of the terminal's."""

from pathlib import Path

import pytest

from edgeport.cli.render import show_report
from edgeport.report import (
    CompilerReport,
    FileInfo,
    ModelInfo,
    OperatorPlacement,
    Placement,
    Report,
    TensorInfo,
)


def report_with(text: str) -> Report:
    """Makes a report that holds a text wherever a model or a tool can bring one in."""
    tensor = TensorInfo(f"tensor {text}", "int8", (1,), "as the model", "float32", (1,), 0.5, 3)
    operator = OperatorPlacement(0, "ADD", 1, "cpu", f"reason {text}", f"source {text}")
    return Report(
        verdict="passed",
        target="cpu",
        recipe="float32",
        model=ModelInfo(f"model {text}", "x", None, 1, 1, (tensor,), ()),
        stages=(),
        passes=(),
        compiler=CompilerReport("a compiler", None, "compiled", f"message {text}"),
        placement=Placement((operator,), 0),
        accuracy=(),
        gates=(),
        files=(FileInfo("model", f"file {text}", 1, "0"),),
        warnings=(f"warning {text}",),
        options={},
        versions={},
    )


@pytest.mark.parametrize("text", ["[v2]", "[bold]", "[/x]", "[/]", "[red]a[/red]", "\\[b]"])
def test_brackets_are_shown(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_report(report_with(text), Path(f"folder {text}"))
    shown = capsys.readouterr().out
    for kind in ("model", "reason", "source", "message", "warning", "tensor", "file", "folder"):
        assert f"{kind} {text}" in shown, kind
