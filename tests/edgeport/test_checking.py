"""`edgeport check` on finished files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgeport.__main__ import run
from edgeport.checking import check_file
from edgeport.errors import ModelFileError, UsageError
from tests.flatbuffers import build_bytes, constant, op, tensor


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A convolution, then an operator that no accelerator here takes."""
    x, y, z = tensor("x", (1, 8, 8, 8)), tensor("y", (1, 8, 8, 8)), tensor("z", (1, 8, 8, 8))
    w = constant("w", np.ones((8, 3, 3, 8), np.int8), scale=[0.1] * 8)
    operators = [
        op("CONV_2D", [x, w, constant("b", np.ones(8, np.int32))], [y], version=3,
           strideW=1, strideH=1, padding=0),
        op("ELU", [y], [z]),
    ]  # fmt: skip
    path = tmp_path / "small.tflite"
    path.write_bytes(build_bytes(operators))
    return path


def test_every_operator_is_placed_with_reason_and_source(small: Path) -> None:
    checked = check_file(small, "edgetpu")
    placed = [(o.index, o.operator, o.on) for o in checked.placement.operators]
    assert placed == [(0, "CONV_2D", "edgetpu"), (1, "ELU", "cpu")]
    assert all(o.reason and o.source for o in checked.placement.operators)
    assert checked.placement.partitions == 1


def test_a_cpu_runs_everything(small: Path) -> None:
    checked = check_file(small, "cpu")
    assert {o.on for o in checked.placement.operators} == {"cpu"}
    assert checked.placement.partitions == 0


def test_json_has_the_documented_placement_and_nothing_else_on_stdout(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(small), "--target", "ethos-u55-128", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    first = data["placement"]["operators"][0]
    assert set(first) == {"index", "operator", "version", "on", "reason", "source"}
    assert (first["operator"], first["version"], first["on"]) == ("CONV_2D", 3, "npu")
    assert first["source"].startswith("vela ")
    assert data["placement"]["partitions"] == 1
    assert data["compiler"]["metrics"]["cycles_total"] > 0


def test_the_table_names_what_falls_to_the_cpu(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(small), "--target", "edgetpu"]) == 0
    out = capsys.readouterr().out
    assert "ELU × 1 cpu: Operation not supported" in out


def test_quiet_prints_nothing(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(small), "--target", "cpu", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_only_flatbuffers_are_checked(tmp_path: Path) -> None:
    other = tmp_path / "model.pt"
    other.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ModelFileError, match="reads .tflite files"):
        check_file(other, "cpu")
    with pytest.raises(UsageError, match="folder"):
        check_file(tmp_path, "cpu")
    with pytest.raises(UsageError, match="no such file"):
        check_file(tmp_path / "none.tflite", "cpu")
