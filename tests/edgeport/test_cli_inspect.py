import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgeport.cli.inspect import inspect
from edgeport.errors import ModelFileError, UsageError
from tests import flatbuffers
from tests.flatbuffers import constant, op, tensor


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(inspect, arguments, catch_exceptions=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with a fully connected layer whose output has an odd name."""
    weights = constant("weights", np.ones((5, 4), np.int8), scale=[0.1] * 5)
    x = tensor("pixels", (1, 4), scale=0.25, zero_point=3)
    y = tensor("[red]\x1b[31mscores", (1, 5))
    operators = [
        op("FULLY_CONNECTED", [x, weights, None], [y], version=4, fusedActivationFunction=1)
    ]
    file = tmp_path / "model.tflite"
    file.write_bytes(
        flatbuffers.build_bytes(operators, metadata={"min_runtime_version": b"1.14.0\0\0"})
    )
    return str(file)


def test_the_tables_tell_operators_border_and_sizes(path: str) -> None:
    result = invoke(path)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "0 FULLY_CONNECTED 4 int8[1,5] RELU 20" in lines
    assert "Operators 1, 20 multiply-accumulates" in lines
    assert "Runtime 1.14.0 or later" in lines
    assert "in int8[1,4] pixels" in lines
    assert "FULLY_CONNECTED 4 1 20" in lines
    assert "min_runtime_version 8" in lines
    assert "weights" not in result.stdout


def test_texts_of_the_file_are_shown_and_not_obeyed(path: str) -> None:
    result = invoke(path)
    assert r"[red]\x1b[31mscores" in result.stdout
    assert "\x1b" not in result.stdout


def test_tensors_are_listed_on_request(path: str) -> None:
    lines = [" ".join(line.split()) for line in invoke(path, "--tensors").stdout.splitlines()]
    assert "0 pixels int8[1,4] 0.25, 3" in lines
    assert "1 weights int8[5,4] 20 5 along axis 0" in lines


def test_json_is_all_there_is_on_stdout(path: str) -> None:
    result = invoke(path, "--json")
    data = json.loads(result.stdout)
    assert result.stderr == ""
    assert data["file"] == path
    assert data["subgraphs"][0]["operators"][0]["name"] == "FULLY_CONNECTED"
    assert data["subgraphs"][0]["tensors"][0]["name"] == "pixels"


def test_the_lines_fit_a_terminal_of_80_columns(path: str) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(inspect, [path, "--tensors"])
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        invoke(str(tmp_path / "missing.tflite"))
    assert caught.value.exit_code == 2


def test_a_file_of_another_kind_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no flatbuffer at all")
    with pytest.raises(ModelFileError) as caught:
        invoke(str(file))
    assert caught.value.exit_code == 3
