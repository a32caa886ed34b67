"""Tests of the Edge TPU compiler's adapter, with a stand-in program that behaves as logs say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeport.compilers.edgetpu import EdgeTpuCompiler, parse_log
from edgeport.errors import CompilerError
from edgeport.targets.edgetpu import TARGETS
from tests.flatbuffers import OpSpec, build_bytes, constant, op, tensor

VERSION = "16.0.384591198"
HEAD = f"Edge TPU Compiler version {VERSION}\n"
STARTED = HEAD + "Started a compilation timeout timer of 180 seconds.\n"
ENDED = "Compilation child process completed within timeout period.\n"
SUCCESS = f"""{STARTED}
Model compiled successfully in 62 ms.

Input model: net.tflite
Input size: 9.87KiB
Output model: net_edgetpu.tflite
Output size: 56.59KiB
On-chip memory used for caching model parameters: 1.50MiB
On-chip memory remaining for caching model parameters: 7.68KiB
Off-chip memory used for streaming uncached model parameters: 0.00B
Number of Edge TPU subgraphs: 1
Total number of operations: 4
Operation log: net_edgetpu.log
"""
TABLE = "\nOperator                       Count      Status\n\n"
ROW = "{:31}{:<11}{}\n"
PROGRAM = """#!{python}
import json, pathlib, shutil, sys, time
here = pathlib.Path({here!r})
arguments = sys.argv[1:]
(here / "arguments.json").write_text(json.dumps(arguments))
sys.stdout.write((here / "log").read_text())
sys.stdout.flush()
if (here / "hang").exists():
    time.sleep(600)
if (here / "result").exists():
    stem = pathlib.Path(arguments[-1]).stem
    out = pathlib.Path(arguments[arguments.index("-o") + 1])
    shutil.copy(here / "result", out / (stem + "_edgetpu.tflite"))
sys.exit(int((here / "code").read_text()))
"""


class StandIn:
    """A program in place of the compiler: prints a log, writes a file, ends with a code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "edgetpu_compiler"
        self.path.write_text(PROGRAM.format(python=sys.executable, here=str(folder)))
        self.path.chmod(0o755)

    def does(self, log: str, *, result: bytes | None = None, code: int = 0) -> None:
        (self.folder / "log").write_text(log)
        (self.folder / "code").write_text(str(code))
        if result is not None:
            (self.folder / "result").write_bytes(result)

    def arguments(self) -> str:
        return (self.folder / "arguments.json").read_text()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = StandIn(folder)
    monkeypatch.setenv("EDGETPU_COMPILER", str(program.path))
    return program


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGETPU_COMPILER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


X = tensor("x", (1, 4, 4, 4))
A, B, C, D = (tensor(n, (1, 4, 4, 4)) for n in "abcd")
FLAT = tensor("flat", (1, 64))
WEIGHTS = constant("w", np.ones((4, 1, 1, 4), np.int8))
CONV = op("CONV_2D", [X, WEIGHTS, None], [A], version=3)
HARD_SWISH = op("HARD_SWISH", [A], [B])
RELU = op("RELU", [B], [C], version=2)
ADD = op("ADD", [C, B], [D], version=2)
CUSTOM = op("CUSTOM", [X], [A], custom="edgetpu-custom-op")
MODEL = build_bytes([CONV, HARD_SWISH, RELU, ADD])
FULL = build_bytes([op("CUSTOM", [X], [D], custom="edgetpu-custom-op")])
PARTIAL = build_bytes([CUSTOM, HARD_SWISH, RELU, ADD])


def test_a_fully_mapped_model(stand_in: StandIn, work: Path) -> None:
    rows = [ROW.format(name, 1, "Mapped to Edge TPU") for name in ("CONV_2D", "ADD", "RELU")]
    stand_in.does(SUCCESS + TABLE + "".join(rows) + ENDED, result=FULL)
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    assert made.files == {"model": ("net_edgetpu.tflite", FULL)}
    assert made.report.status == "compiled"
    assert made.report.version == VERSION
    assert made.report.metrics == {
        "on_chip_bytes": 1.5 * 1024 * 1024,
        "on_chip_free_bytes": 7.68 * 1024,
        "off_chip_bytes": 0.0,
        "edgetpu_subgraphs": 1.0,
    }
    assert made.placement.count() == {"edgetpu": 4}
    assert made.placement.partitions == 1
    assert {o.source for o in made.placement.operators} == {f"edgetpu_compiler {VERSION}"}
    assert "4 of 4" in made.report.message


def test_the_compiler_is_called_with_plain_arguments(stand_in: StandIn, work: Path) -> None:
    stand_in.does(SUCCESS, result=FULL)
    EdgeTpuCompiler().compile(MODEL, "net; rm -r x", work)
    expected = ["-s", "-o", str(work), "-m", "14", "-t", "180", str(work / "net; rm -r x.tflite")]
    assert stand_in.arguments() == str(expected).replace("'", '"')
    assert (work / "net; rm -r x.tflite").read_bytes() == MODEL
    assert (work / "edgetpu_compiler.log").read_text() == SUCCESS


def test_operators_left_ordinary_are_on_the_cpu(stand_in: StandIn, work: Path) -> None:
    table = (
        ROW.format("CONV_2D", 1, "Mapped to Edge TPU")
        + ROW.format("HARD_SWISH", 1, "Operation not supported")
        + ROW.format("RELU", 1, "More than one subgraph is not supported")
        + ROW.format("ADD", 1, "More than one subgraph is not supported")
    )
    stand_in.does(SUCCESS + TABLE + table + ENDED, result=PARTIAL)
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    assert [(o.on, o.reason) for o in made.placement.operators] == [
        ("edgetpu", "Mapped to Edge TPU"),
        ("cpu", "Operation not supported"),
        ("cpu", "More than one subgraph is not supported"),
        ("cpu", "More than one subgraph is not supported"),
    ]
    assert "1 of 4" in made.report.message


def test_a_kind_with_several_statuses_is_not_guessed(stand_in: StandIn, work: Path) -> None:
    table = (
        ROW.format("RELU", 1, "Operation not supported")
        + ROW.format("RELU", 1, "More than one subgraph is not supported")
        + ROW.format("ADD", 1, "Mapped to Edge TPU")
    )
    stand_in.does(SUCCESS + TABLE + table, result=PARTIAL)
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    reasons = {o.operator: o.reason for o in made.placement.operators}
    assert reasons["RELU"] == (
        "one of: Operation not supported; More than one subgraph is not supported"
    )
    assert reasons["ADD"] == "left on the CPU; the log does not say why"


def test_a_model_of_which_nothing_is_mapped(stand_in: StandIn, work: Path) -> None:
    stand_in.does(SUCCESS.replace("subgraphs: 1", "subgraphs: 0"), result=MODEL)
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    assert made.placement.count() == {"cpu": 4}
    assert made.placement.partitions == 0


def test_streamed_parameters_are_told(stand_in: StandIn, work: Path) -> None:
    log = SUCCESS.replace("parameters: 0.00B", "parameters: 3.45MiB")
    stand_in.does(log, result=FULL)
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    assert made.report.metrics["off_chip_bytes"] == pytest.approx(3.45 * 1024 * 1024)
    assert "3.45 MiB" in made.report.message


REFUSED = (
    "ERROR: {}\n\nERROR: Registration failed.\n\n"
    "Invalid model: net.tflite\nModel could not be parsed\n"
)
OLD_OP = (
    "Didn't find op for builtin opcode 'CONV_2D' version '6'. An older version of this builtin "
    "might be supported. Are you using an old TFLite binary with a newer model?"
)


@pytest.mark.parametrize(
    ("log", "words", "hint"),
    [
        (HEAD + REFUSED.format(OLD_OP), "version 6 of CONV_2D", "grouped"),
        (HEAD + REFUSED.format("Op builtin_code out of range: 150."), "operator 150", "GELU"),
        (HEAD + "Invalid model: net.tflite\nModel not quantized\n", "not quantized", "recipe"),
        (HEAD + "Invalid model: net.tflite\nModel could not be parsed\n", "parse", "by hand"),
        (HEAD + "\nInternal compiler error. Aborting! \n", "internal error", "another try"),
        (
            STARTED + "ERROR: Restored original execution plan after delegate application failure."
            "\nCompilation failed: Compilation failed due to large activation tensors in model.\n"
            + ENDED
            + "Compilation failed! \n",
            "large activations",
            "smaller input",
        ),
        (
            STARTED + "Compilation timeout. This is usually caused by large activations.\n"
            "Compilation failed! \n",
            "large activations",
            "smaller input",
        ),
        (
            STARTED + "ERROR: Attempting to use a delegate that only supports static-sized tensors "
            "with a graph that has dynamic-sized tensors.\n" + ENDED + "Compilation failed! \n",
            "dynamic size",
            "fixed shapes",
        ),
    ],
)
def test_failures_are_translated(
    stand_in: StandIn, work: Path, log: str, words: str, hint: str
) -> None:
    stand_in.does(log, code=1)
    with pytest.raises(CompilerError) as caught:
        EdgeTpuCompiler().compile(MODEL, "net", work)
    assert words in caught.value.what
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert caught.value.where == "net.tflite"


def test_an_unknown_failure_shows_its_last_telling_line(stand_in: StandIn, work: Path) -> None:
    line = "libc++abi: terminating: std::out_of_range: vector\n"
    stand_in.does(STARTED + line + ENDED + "Compilation failed! \n", code=1)
    with pytest.raises(CompilerError, match="exit code 1: libc.*out_of_range: vector"):
        EdgeTpuCompiler().compile(MODEL, "net", work)


def test_success_without_a_file_is_a_failure(stand_in: StandIn, work: Path) -> None:
    stand_in.does(STARTED + ENDED + "Internal compiler error. Aborting!\n", code=0)
    with pytest.raises(CompilerError, match="internal error"):
        EdgeTpuCompiler().compile(MODEL, "net", work)


def test_a_damaged_result_is_a_failure(stand_in: StandIn, work: Path) -> None:
    stand_in.does(SUCCESS, result=b"nonsense")
    with pytest.raises(CompilerError, match="bad file"):
        EdgeTpuCompiler().compile(MODEL, "net", work)


def test_a_hanging_compiler_is_stopped(stand_in: StandIn, work: Path) -> None:
    stand_in.does(STARTED)
    (stand_in.folder / "hang").touch()
    with pytest.raises(CompilerError, match="did not end"):
        EdgeTpuCompiler(time_limit=0.2).compile(MODEL, "net", work)


def test_a_program_for_another_machine_is_told(stand_in: StandIn, work: Path) -> None:
    stand_in.path.write_bytes(b"\x7fELF not really")
    with pytest.raises(CompilerError, match="can't be run") as caught:
        EdgeTpuCompiler().compile(MODEL, "net", work)
    assert "x86-64" in str(caught.value)


def test_the_compiler_is_found_by_variable_and_on_the_path(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EdgeTpuCompiler().available()
    assert found.ok
    assert str(stand_in.path) in found.what
    monkeypatch.delenv("EDGETPU_COMPILER")
    monkeypatch.setenv("PATH", str(stand_in.folder) + os.pathsep + os.environ["PATH"])
    assert EdgeTpuCompiler().available() == found


@pytest.mark.usefixtures("absent")
def test_an_absent_compiler_says_how_to_get_it() -> None:
    found = EdgeTpuCompiler().available()
    assert not found.ok
    for words in ("x86-64 Linux", "apt", "edgetpu_compiler -s -m 14"):
        assert words in found.how


@pytest.mark.usefixtures("absent")
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGETPU_COMPILER", "/nowhere/compiler")
    found = EdgeTpuCompiler().available()
    assert not found.ok
    assert "$EDGETPU_COMPILER names `/nowhere/compiler`" in found.what


@pytest.mark.usefixtures("absent")
def test_without_a_compiler_the_placement_is_predicted(work: Path) -> None:
    made = EdgeTpuCompiler().compile(MODEL, "net", work)
    assert made.report.status == "not found"
    assert "`edgetpu_compiler -s -m 14 net.tflite`" in made.report.message
    assert "x86-64 Linux" in made.report.message
    assert made.files == {}
    assert list(work.iterdir()) == []
    assert made.placement.count() == {"edgetpu": 1, "cpu": 3}


@pytest.mark.usefixtures("absent")
def test_a_predicted_refusal_is_in_the_message(work: Path) -> None:
    refused: OpSpec = op("CONV_2D", [X, WEIGHTS, None], [A], version=6)
    made = EdgeTpuCompiler().compile(build_bytes([refused]), "net", work)
    assert "'CONV_2D' version '6'" in made.report.message


def test_mapped_rows_give_no_status() -> None:
    log = parse_log("ADD    2   Mapped to Edge TPU\n")
    assert log.statuses == {}
    assert log.version is None


def test_the_target_is_fully_integer_and_channels_last() -> None:
    (target,) = TARGETS
    assert (target.name, target.border_type, target.layout) == ("edgetpu", "int8", "channels-last")
    assert target.recipes == ("static_wi8_ai8",)
    assert target.flatbuffer_passes[-1] == "lower_operator_versions"
