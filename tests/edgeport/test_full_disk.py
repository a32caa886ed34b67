"""A disk that is full: one clear error, and nothing left behind, neither in the output nor aside."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeport.errors import EXIT_CANNOT_CONVERT, EXIT_GOOD, OutputError, OutputLocationError
from edgeport.output import check_writable, write_all
from tests import tiny
from tests.command import edgeport, files_in

SIZE = 64 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; mounting needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    arguments = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "edgeport-test", str(folder)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        refused = done.stderr.strip() if done.returncode else ""
    except FileNotFoundError as e:
        refused = str(e)
    if refused:
        told = f"a small file system can't be mounted here (root is needed): {refused}"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Writes until there is no space."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(folder).f_bavail == 0


def artifact(size: int) -> dict[str, bytes]:
    report = b'{"schema_version": "1.0", "files": [{"name": "m.tflite"}]}'
    return {"m.tflite": bytes(size), "report.json": report}


@pytest.mark.parametrize("out", ["out", "made/on/the/way", "."])
def test_a_file_that_does_not_fit_leaves_nothing(disk: Path, out: str) -> None:
    with pytest.raises(OutputError, match="no space left on the device") as caught:
        write_all(disk / out, artifact(2 * SIZE))
    assert caught.value.exit_code == EXIT_CANNOT_CONVERT
    assert "--output" in str(caught.value.hint)
    assert files_in(disk) == set()
    write_all(disk / out, artifact(SIZE // 4))  # so the space is free again


def test_an_earlier_artifact_survives(disk: Path) -> None:
    write_all(disk / "out", artifact(SIZE // 4))
    with pytest.raises(OutputError, match="no space left on the device"):
        write_all(disk / "out", artifact(SIZE))
    assert files_in(disk) == {"out", "out/m.tflite", "out/report.json"}
    assert (disk / "out" / "m.tflite").read_bytes() == bytes(SIZE // 4)


def test_an_output_folder_may_be_a_disk_of_its_own(disk: Path) -> None:
    """As a container's volume is; its parent is another file system."""
    check_writable(disk)
    write_all(disk, artifact(100))
    assert files_in(disk) == {"m.tflite", "report.json"}
    assert files_in(disk.parent) == {"disk", "disk/m.tflite", "disk/report.json"}


def test_a_disk_that_can_only_be_read_is_told_before_the_work(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(OutputLocationError, match="Read-only file system"):
        check_writable(disk / "out")
    with pytest.raises(OutputLocationError, match="Read-only file system"):
        check_writable(disk)


@pytest.mark.slow
def test_the_command_tells_of_a_full_disk_and_leaves_nothing(disk: Path, tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    tiny.save_archive(work / "model.pt2")
    fill(disk)
    ended = edgeport(
        "convert", "model.pt2", "--no-validate", "-o", disk / "out", cwd=work, temporary=temporary
    )
    assert ended.code == EXIT_CANNOT_CONVERT, ended.err
    assert len(ended.errors) == 1
    assert "no space left on the device" in ended.errors[0]
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert files_in(disk) == {"filler"}
    assert files_in(work) == {"model.pt2"}
    assert files_in(temporary) == set()


@pytest.mark.slow
def test_the_command_tells_of_a_temporary_folder_that_fills_up(disk: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    tiny.save_archive(work / "model.pt2")
    fill(disk)
    # Python itself looks for another folder when this one is full from the start.
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - 4096)
    ended = edgeport("convert", "model.pt2", "-o", "out", cwd=work, temporary=disk)
    assert ended.code == EXIT_CANNOT_CONVERT, ended.err
    assert len(ended.errors) == 1
    assert "no space left on the device" in ended.errors[0]
    assert "TMPDIR" in ended.err
    assert "Traceback" not in ended.err
    assert files_in(disk) == {"filler"}
    assert files_in(work) == {"model.pt2"}


@pytest.mark.slow
def test_the_command_writes_into_a_disk_of_its_own(disk: Path, tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    tiny.save_archive(work / "model.pt2")
    ended = edgeport(
        "convert", "model.pt2", "--no-validate", "-o", disk, cwd=work, temporary=temporary
    )
    assert ended.code == EXIT_GOOD, ended.err
    assert files_in(disk) == {"model.tflite", "report.json", "edgeport.log"}
