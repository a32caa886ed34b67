"""What a user sees who gets something wrong: one line, the right exit code, and no traces."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeport.errors import EXIT_CANNOT_CONVERT, EXIT_USAGE
from tests import tiny
from tests.command import Ended, edgeport, files_in


@dataclass(frozen=True, slots=True)
class Place:
    """A working folder and an empty folder for temporary files."""

    work: Path
    temporary: Path

    def run(self, *arguments: str | Path, options: tuple[str, ...] = ()) -> Ended:
        return edgeport(*arguments, cwd=self.work, temporary=self.temporary, options=options)

    def fails(self, code: int, *arguments: str | Path) -> Ended:
        """Runs a command that has to fail cleanly, and checks everything but its words."""
        before = {name: _content(self.work / name) for name in files_in(self.work)}
        ended = self.run(*arguments)
        assert ended.code == code, ended.err
        assert len(ended.errors) == 1, ended.err
        assert "Traceback" not in ended.err
        assert ended.out == ""
        assert {name: _content(self.work / name) for name in files_in(self.work)} == before
        assert files_in(self.temporary) == set()
        return ended


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


@pytest.fixture
def place(tmp_path: Path) -> Place:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    return Place(work, temporary)


@pytest.fixture
def zip_start(place: Place) -> str:
    """A file that passes for a model as long as only its first bytes are looked at."""
    (place.work / "model.pt2").write_bytes(b"PK\x03\x04" + bytes(64))
    return "model.pt2"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny.save_archive(tmp_path_factory.mktemp("archive") / "model.pt2").read_bytes()


# --- the model file


def test_a_file_that_is_not_there(place: Place) -> None:
    ended = place.fails(EXIT_USAGE, "convert", "nowhere.pt2")
    assert ended.errors == ["nowhere.pt2: no such file"]


def test_a_folder_instead_of_a_file(place: Place) -> None:
    (place.work / "model.pt2").mkdir()
    ended = place.fails(EXIT_USAGE, "convert", "model.pt2")
    assert "model.pt2: this is a folder" in ended.errors[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(bytes(range(7, 207)), "not a model that edgeport knows", id="random"),
        pytest.param(pickle.dumps({"weights": [1.0]}), "pickle", id="pickle"),
        pytest.param(pickle.dumps([1.0], protocol=2), "pickle", id="pickle of protocol 2"),
        pytest.param(b"PK\x03\x04", "truncated or damaged", id="four bytes of an archive"),
        pytest.param(b"#!/usr/bin/env python\n", "script", id="script"),
        pytest.param(b"\x1c\0\0\0TFL3" + bytes(32), "LiteRT flatbuffer already", id="flatbuffer"),
    ],
)
def test_a_file_that_is_no_model(place: Place, content: bytes, told: str) -> None:
    (place.work / "model.pt2").write_bytes(content)
    ended = place.fails(EXIT_CANNOT_CONVERT, "convert", "model.pt2")
    assert ended.errors[0].startswith("model.pt2: ")
    assert told in ended.errors[0]


def test_half_of_an_archive(place: Place, archive: bytes) -> None:
    (place.work / "model.pt2").write_bytes(archive[: len(archive) // 2])
    ended = place.fails(EXIT_CANNOT_CONVERT, "convert", "model.pt2")
    assert "truncated or damaged" in ended.errors[0]


@pytest.mark.parametrize("where", [0.3, 0.6, 0.9])
def test_an_archive_with_a_hole(place: Place, archive: bytes, where: float) -> None:
    start = int(len(archive) * where)
    (place.work / "model.pt2").write_bytes(archive[:start] + archive[start + 500 :])
    ended = place.fails(EXIT_CANNOT_CONVERT, "convert", "model.pt2")
    assert ended.errors[0].startswith("model.pt2: ")


def test_a_checkpoint_of_weights_alone(place: Place) -> None:
    import torch

    torch.save(tiny.make_module().state_dict(), place.work / "weights.pt")
    ended = place.fails(EXIT_CANNOT_CONVERT, "convert", "weights.pt")
    assert "pickled checkpoint" in ended.errors[0]
    assert "torch.export.save" in ended.err


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_torchscript_archive(place: Place) -> None:
    import torch

    traced = torch.jit.trace(  # type: ignore[no-untyped-call]
        torch.nn.Linear(3, 2), torch.rand(1, 3)
    )
    torch.jit.save(traced, place.work / "script.pt")
    ended = place.fails(EXIT_CANNOT_CONVERT, "convert", "script.pt")
    assert "TorchScript" in ended.errors[0]


# --- names and options


def test_a_mistyped_target(place: Place, zip_start: str) -> None:
    ended = place.fails(EXIT_USAGE, "convert", zip_start, "--target", "edgetpuu")
    assert "`edgetpuu`" in ended.errors[0]
    assert "did you mean `edgetpu`" in ended.err


def test_a_mistyped_recipe(place: Place, zip_start: str) -> None:
    ended = place.fails(EXIT_USAGE, "convert", zip_start, "--recipe", "w8a88")
    assert "`w8a88`" in ended.errors[0]
    assert "did you mean `w8a8`" in ended.err


def test_a_recipe_that_the_target_does_not_take(place: Place, zip_start: str) -> None:
    ended = place.fails(
        EXIT_USAGE, "convert", zip_start, "--target", "edgetpu", "--recipe", "float32"
    )
    assert "`edgetpu`" in ended.errors[0]
    assert "`float32`" in ended.errors[0]
    assert "`static_wi8_ai8`" in ended.err


@pytest.mark.parametrize(
    ("arguments", "told", "offered"),
    [
        pytest.param(["convrt", "m"], "convrt", "convert", id="command"),
        pytest.param(["convert", "m", "--targt", "cpu"], "--targt", "--target", id="option"),
        pytest.param(["convert", "m", "--effort", "fastt"], "fastt", "`fast`", id="effort"),
        pytest.param(
            ["convert", "m", "--layout", "chanels-last"], "chanels-last", "`channels-last`",
            id="layout",
        ),
        pytest.param(
            ["convert", "m", "--recipe", "w8a8", "--io-type", "int88"], "int88", "`int8`",
            id="io type",
        ),
        pytest.param(["convert"], "MODEL", "--help", id="no model"),
        pytest.param(["convert", "m", "n"], "n", "--help", id="two models"),
        pytest.param(["convert", "m", "--target"], "--target", "requires", id="no value"),
        pytest.param(["convert", "m", "--min-sqnr", "high"], "high", "--help", id="no number"),
        pytest.param(["check", "m.tflite"], "--target", "--help", id="check without a target"),
        pytest.param(["check", "m.tflite", "--target", "cpuu"], "cpuu", "`cpu`", id="check"),
    ],
)  # fmt: skip
def test_a_mistyped_word(place: Place, arguments: list[str], told: str, offered: str) -> None:
    ended = place.fails(EXIT_USAGE, *arguments)
    assert told in ended.errors[0]
    assert offered in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--min-top1-agreement", "7"], "between 0 and 1", id="share of 7"),
        pytest.param(["--min-top1-agreement", "-0.1"], "between 0 and 1", id="negative share"),
        pytest.param(["--min-top1-agreement", "nan"], "between 0 and 1", id="share of NaN"),
        pytest.param(["--min-sqnr", "nan"], "--min-sqnr", id="NaN dB"),
        pytest.param(["--min-sqnr", "inf"], "--min-sqnr", id="infinite dB"),
        pytest.param(["--no-validate", "--min-sqnr", "3"], "validation", id="gate unchecked"),
        pytest.param(
            ["--no-validate", "--min-top1-agreement", "0.5"], "validation", id="share unchecked"
        ),
        pytest.param(["--recipe", "float32", "--io-type", "int8"], "float32", id="int8 borders"),
        pytest.param(["--calibration", "."], "no calibration", id="calibration of a float recipe"),
        pytest.param(["--preprocessing", "nowhere.toml"], "nowhere.toml", id="no such description"),
        pytest.param(["--evaluation", "nowhere"], "nowhere", id="no such evaluation folder"),
    ],
)
def test_options_that_make_no_sense(
    place: Place, zip_start: str, arguments: list[str], told: str
) -> None:
    # Refused before the model is looked at, which would be an error of another kind.
    ended = place.fails(EXIT_USAGE, "convert", zip_start, *arguments)
    assert told in ended.errors[0]


def test_no_arguments_at_all_show_the_help(place: Place) -> None:
    ended = place.run()
    assert "Usage: edgeport" in ended.out + ended.err
    assert ended.errors == []


def test_a_name_with_a_line_break_stays_one_error(place: Place) -> None:
    ended = place.fails(EXIT_USAGE, "convert", "a\nerror: b")
    assert "no such file" in ended.err


# --- samples


def test_a_calibration_folder_that_is_not_there(place: Place, zip_start: str) -> None:
    ended = place.fails(
        EXIT_USAGE, "convert", zip_start, "--recipe", "w8a8", "--calibration", "nowhere"
    )
    assert ended.errors == ["nowhere: no such file or folder"]


def test_a_calibration_folder_without_samples(place: Place, zip_start: str) -> None:
    (place.work / "samples").mkdir()
    (place.work / "samples" / "notes.txt").write_text("nothing here")
    ended = place.fails(
        EXIT_USAGE, "convert", zip_start, "--recipe", "w8a8", "--calibration", "samples"
    )
    assert "samples: the folder holds no samples" in ended.errors[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("meen = [0.5]", "unknown key `meen`"),
        ("std = 0", "`std` must not be 0"),
        ("crop = 'large'", "wrong value"),
        ("= 3", "not a TOML file"),
    ],
)
def test_a_wrong_preprocessing_description(
    place: Place, zip_start: str, text: str, told: str
) -> None:
    tiny.save_samples(place.work / "samples", 1)
    (place.work / "how.toml").write_text(text)
    ended = place.fails(
        EXIT_USAGE, "convert", zip_start, "--recipe", "w8a8", "--calibration", "samples",
        "--preprocessing", "how.toml",
    )  # fmt: skip
    assert ended.errors[0].startswith("how.toml: ")
    assert told in ended.errors[0]


def _wrong_shape() -> np.ndarray:
    return np.zeros((1, 3, 16, 17), np.float32)


def _not_a_number() -> np.ndarray:
    return np.full(tiny.SHAPE, np.nan, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(_wrong_shape, "1×3×16×17", id="shape"),
        pytest.param(_not_a_number, "768 NaN", id="NaN"),
    ],
)
def test_a_sample_that_does_not_fit(
    place: Place, archive: bytes, make: Callable[[], np.ndarray], told: str
) -> None:
    (place.work / "model.pt2").write_bytes(archive)
    (place.work / "samples").mkdir()
    np.save(place.work / "samples" / "x.npy", make())
    ended = place.fails(
        EXIT_USAGE, "convert", "model.pt2", "--recipe", "w8a8", "--calibration", "samples"
    )
    assert "x.npy" in ended.errors[0]
    assert "`pixels`" in ended.errors[0]
    assert told in ended.errors[0]
    # Before the conversion, for which the user would have waited in vain.
    assert "convert …" not in ended.err


# --- the output


def test_an_output_whose_parent_is_a_file(place: Place, zip_start: str) -> None:
    (place.work / "taken").write_text("something else")
    ended = place.fails(EXIT_USAGE, "convert", zip_start, "-o", "taken/out")
    assert "taken" in ended.errors[0]


def test_an_output_that_is_a_file(place: Place, zip_start: str) -> None:
    (place.work / "taken").write_text("something else")
    ended = place.fails(EXIT_USAGE, "convert", zip_start, "-o", "taken")
    assert "taken: the output is a folder" in ended.errors[0]


@pytest.mark.parametrize("name", ["report.json", "edgeport.log"])
def test_an_output_folder_with_somebody_elses_file_of_a_name_of_ours(
    place: Place, zip_start: str, name: str
) -> None:
    # These names are known before any work is done.
    (place.work / "out").mkdir()
    (place.work / "out" / name).write_text("{}")
    ended = place.fails(EXIT_USAGE, "convert", zip_start, "-o", "out")
    assert f"out/{name}" in ended.errors[0]


@pytest.mark.slow
def test_an_output_folder_with_somebody_elses_model_of_the_same_name(
    place: Place, archive: bytes
) -> None:
    (place.work / "model.pt2").write_bytes(archive)
    (place.work / "out").mkdir()
    (place.work / "out" / "model.tflite").write_bytes(b"theirs")
    ended = place.fails(EXIT_USAGE, "convert", "model.pt2", "-o", "out", "--no-validate")
    assert "out/model.tflite: the file exists already" in ended.errors[0]


# --- the cheap ones are quick


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["convert", "nowhere.pt2"], id="missing file"),
        pytest.param(["convert", "model.pt2", "--target", "edgetpuu"], id="target"),
        pytest.param(["convert", "model.pt2", "--recipe", "w8a88"], id="recipe"),
        pytest.param(["convert", "model.pt2", "--effort", "bst"], id="effort"),
        pytest.param(["convert", "model.pt2", "-o", "model.pt2"], id="output"),
        pytest.param(
            ["convert", "model.pt2", "--recipe", "w8a8", "--calibration", "nowhere"], id="samples"
        ),
        pytest.param(["check", "nowhere.tflite", "--target", "cpu"], id="check"),
    ],
)
def test_mistakes_are_told_without_loading_the_libraries(
    place: Place, zip_start: str, arguments: list[str]
) -> None:
    ended = place.run(*arguments, options=("-X", "importtime"))
    assert ended.code == EXIT_USAGE
    imported = {
        line.rpartition("|")[2].strip()
        for line in ended.err.splitlines()
        if line.startswith("import time:")
    }
    assert "edgeport.errors" in imported  # the listing is there
    assert imported.isdisjoint({"torch", "litert_torch", "ai_edge_litert", "jax"})
