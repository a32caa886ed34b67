import errno
import json
import os
import tempfile
from pathlib import Path

import pytest

from edgeport.errors import EXIT_CANNOT_CONVERT, EXIT_USAGE, OutputError, OutputLocationError
from edgeport.output import check_writable, write_all
from tests.command import files_in


def report_on(*names: str) -> bytes:
    files = [{"role": "model", "name": name} for name in names]
    return json.dumps({"schema_version": "1.0", "files": files}).encode()


def artifact(content: bytes = b"new", *names: str) -> dict[str, bytes]:
    names = names or ("m.tflite",)
    return {**dict.fromkeys(names, content), "report.json": report_on(*names)}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_in(folder)}


def test_a_new_folder_holds_exactly_the_files(tmp_path: Path) -> None:
    write_all(tmp_path / "a" / "b", artifact())
    assert contents(tmp_path / "a" / "b") == artifact()
    assert files_in(tmp_path) == {"a", "a/b", "a/b/m.tflite", "a/b/report.json"}


def test_a_new_folder_has_the_permissions_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_all(tmp_path / "out", artifact())
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "out" / "m.tflite").stat().st_mode & 0o777 == 0o640


def test_an_earlier_artifact_is_replaced_and_its_stale_files_go(tmp_path: Path) -> None:
    write_all(tmp_path, artifact(b"old", "m.tflite", "m_float.tflite"))
    write_all(tmp_path, artifact(b"new", "m.tflite"))
    assert contents(tmp_path) == artifact(b"new", "m.tflite")


def test_other_peoples_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "data").mkdir()
    write_all(tmp_path, artifact(b"old", "m.tflite", "m_float.tflite"))
    write_all(tmp_path, artifact())
    assert files_in(tmp_path) == {"notes.txt", "data", "m.tflite", "report.json"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["m.tflite", "report.json"], ids=["a file", "a report of something else"]
)
def test_a_file_of_somebody_elses_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(OutputLocationError, match="not from edgeport") as caught:
        write_all(tmp_path, artifact())
    assert caught.value.where == str(tmp_path / name)
    assert caught.value.exit_code == EXIT_USAGE
    assert contents(tmp_path) == {name: b"{}"}


def test_a_link_to_nowhere_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").symlink_to("nowhere")
    with pytest.raises(OutputLocationError):
        write_all(tmp_path, artifact())
    assert os.readlink(tmp_path / "m.tflite") == "nowhere"


def test_a_link_in_an_earlier_artifact_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    out = tmp_path / "out"
    write_all(out, artifact(b"old"))
    (out / "m.tflite").unlink()
    (out / "m.tflite").symlink_to("../precious")
    write_all(out, artifact(b"new"))
    assert (tmp_path / "precious").read_text() == "mine"
    assert contents(out) == artifact(b"new")


@pytest.mark.parametrize("name", ["../precious", "..", ".", "", "sub/precious"])
def test_a_report_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("mine")
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "sub" / "precious").write_text("mine")
    (out / "report.json").write_bytes(report_on(name))
    write_all(out, artifact())
    assert (tmp_path / "precious").read_text() == "mine"
    assert files_in(out) == {"sub", "sub/precious", "m.tflite", "report.json"}


def test_a_report_that_names_an_absolute_path_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.json").write_bytes(report_on(str(tmp_path / "precious")))
    write_all(out, artifact())
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    "report", [b"\xff\xfe", b"[]", b'"files"', b'{"schema_version": 1, "files": 3}', b"{"]
)
def test_a_report_that_is_none_counts_as_somebody_elses(tmp_path: Path, report: bytes) -> None:
    (tmp_path / "report.json").write_bytes(report)
    with pytest.raises(OutputLocationError):
        write_all(tmp_path, artifact())
    assert contents(tmp_path) == {"report.json": report}


@pytest.mark.parametrize("failing", ["replace", "rename", "fsync"])
def test_nothing_is_left_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    existing = tmp_path / "existing"
    write_all(existing, artifact(b"old"))
    monkeypatch.setattr(os, failing, fail)
    for folder in (existing, tmp_path / "new" / "folder"):
        if (failing, folder.name) in (("replace", "folder"), ("rename", "existing")):
            continue  # not the call that serves this folder
        with pytest.raises(OutputError, match="no space left") as caught:
            write_all(folder, artifact(b"new"))
        assert caught.value.exit_code == EXIT_CANNOT_CONVERT
    assert files_in(tmp_path) == {"existing", "existing/m.tflite", "existing/report.json"}
    assert contents(existing) == artifact(b"old")


def test_nothing_is_left_when_writing_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path / "new" / "folder", artifact())
    assert files_in(tmp_path) == set()


def test_the_report_comes_last_into_an_existing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    replace = os.replace

    def watch(source: Path, target: Path) -> None:
        moved.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_all(tmp_path, {"report.json": report_on("a", "b"), "a": b"", "b": b""})
    assert moved == ["a", "b", "report.json"]


def test_only_the_output_folder_needs_to_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a folder that an administrator, or a container's volume, made for the user."""
    out = tmp_path / "out"
    out.mkdir()
    made_in = []
    mkdtemp = tempfile.mkdtemp

    def only_in_out(suffix: str | None = None, prefix: str = "", dir: Path | None = None) -> str:
        made_in.append(dir)
        if dir != out:
            raise PermissionError(errno.EACCES, "Permission denied")
        return str(mkdtemp(suffix, prefix, dir))

    monkeypatch.setattr(tempfile, "mkdtemp", only_in_out)
    check_writable(out)
    write_all(out, artifact())
    assert made_in
    assert contents(out) == artifact()


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)
    assert files_in(tmp_path) == set()


def test_a_file_is_no_output_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputLocationError, match="this is a file"):
        check_writable(tmp_path / "taken")


def test_a_file_holds_no_output_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputLocationError):
        check_writable(tmp_path / "taken" / "out" / "deeper")


@pytest.mark.parametrize("kind", [errno.EACCES, errno.EROFS])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    def refuse(*arguments: object, **named: object) -> str:
        raise OSError(kind, os.strerror(kind))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(OutputLocationError, match=os.strerror(kind)) as caught:
        check_writable(tmp_path / "out")
    assert caught.value.where == str(tmp_path / "out")


def test_relative_folders_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_all(Path("out"), artifact())
    write_all(Path("."), artifact(b"here"))
    assert files_in(tmp_path) == {"out", "out/m.tflite", "out/report.json", "m.tflite",
                                  "report.json"}  # fmt: skip
