"""Ctrl-C and `kill`: the command ends at once, with the right exit code, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeport.errors import EXIT_INTERRUPTED
from tests import tiny
from tests.command import command, environment, files_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc"),
]

# The libraries are imported in `load`; the runners' child processes live in `validate`.
MOMENTS = ("load …", "convert …", "validate …")
EXIT_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Place:
    archive: Path
    samples: Path
    work: Path
    temporary: Path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    tiny.save_archive(folder / "model.pt2")
    tiny.save_samples(folder / "samples", 2000)  # enough to be met in the middle of them
    return folder


@pytest.fixture
def place(inputs: Path, tmp_path: Path) -> Place:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    return Place(inputs / "model.pt2", inputs / "samples", work, temporary)


def in_session(session: int) -> set[int]:
    """Returns the processes of a session that are not just waiting to be reaped."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            state, _, _, its_session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # ended just now
            continue
        if int(its_session) == session and state != "Z":
            found.add(int(process.name))
    return found


class Running:
    """A conversion in a session of its own, so that nobody else meets its signals."""

    def __init__(self, place: Place) -> None:
        arguments = command(
            "convert", place.archive, "-o", "new/out", "--evaluation", place.samples, "--effort",
            "best",
        )  # fmt: skip
        self.process = subprocess.Popen(
            arguments,
            cwd=place.work,
            env=environment(place.temporary),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._too_long = threading.Timer(300, self.process.kill)
        self._too_long.start()
        self.lines: list[str] = []

    def wait_for(self, wanted: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if self.lines[-1] == wanted:
                return
        raise AssertionError(f"ended before {wanted!r}: {self.lines}")

    def end(self) -> tuple[int, str]:
        """Waits for the end; returns the exit code and stdout."""
        out, err = self.process.communicate()
        self.lines += err.splitlines()
        return self.process.returncode, out

    def clear(self) -> None:
        self._too_long.cancel()
        for process in in_session(self.process.pid):
            os.kill(process, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def running(place: Place) -> Iterator[Running]:
    started = Running(place)
    yield started
    started.clear()


def assert_nothing_is_left(running: Running, place: Place) -> None:
    assert in_session(running.process.pid) == set()
    assert files_in(place.work) == set()
    assert files_in(place.temporary) == set()


@pytest.mark.parametrize("moment", MOMENTS)
def test_control_c_leaves_nothing(running: Running, place: Place, moment: str) -> None:
    running.wait_for(moment)
    os.killpg(running.process.pid, signal.SIGINT)  # a terminal sends it to children as well
    code, out = running.end()
    assert code == EXIT_INTERRUPTED, running.lines
    assert out == ""
    assert running.lines[-1] == "error: interrupted; nothing was written"
    assert "Traceback" not in "\n".join(running.lines)
    assert_nothing_is_left(running, place)


@pytest.mark.parametrize("moment", MOMENTS)
def test_terminating_leaves_nothing(running: Running, place: Place, moment: str) -> None:
    running.wait_for(moment)
    running.process.terminate()  # as `timeout` and containers do: this process only
    code, out = running.end()
    assert code == EXIT_TERMINATED, running.lines
    assert out == ""
    assert "Traceback" not in "\n".join(running.lines)
    assert_nothing_is_left(running, place)


def test_an_interrupt_to_the_main_process_alone_ends_its_children(
    running: Running, place: Place
) -> None:
    running.wait_for("validate …")
    running.process.send_signal(signal.SIGINT)
    code, _ = running.end()
    assert code == EXIT_INTERRUPTED, running.lines
    assert_nothing_is_left(running, place)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_impatient_user_does_not_disturb_the_tidying_up(
    running: Running, place: Place, number: signal.Signals
) -> None:
    running.wait_for("convert …")
    while running.process.poll() is None:
        running.process.send_signal(number)
        time.sleep(0.02)
    code, _ = running.end()
    assert code == 128 + number, running.lines
    assert "Traceback" not in "\n".join(running.lines)
    assert_nothing_is_left(running, place)
