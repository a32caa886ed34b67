"""Time and peak memory of the stages, and the progress that people see."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from edgeport.report import Stage

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Progress(Protocol):
    """Shows what is going on."""

    def start(self, stage: str) -> None:
        """A stage begins."""

    def update(self, done: int, total: int | None) -> None:
        """A countable part of the stage is done."""

    def finish(self, stage: str, seconds: float) -> None:
        """The stage ended."""


class NoProgress:
    """Shows nothing."""

    def start(self, stage: str) -> None:
        """Shows nothing."""

    def update(self, done: int, total: int | None) -> None:
        """Shows nothing."""

    def finish(self, stage: str, seconds: float) -> None:
        """Shows nothing."""


class Stages:
    """Measures stages one after the other.

    Args:
        progress: Told when each begins and ends.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.done: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the block as a stage; one that fails is not kept."""
        self.progress.start(name)
        _reset_peak()
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.done.append(Stage(name, round(seconds, 3), peak_memory()))
        self.progress.finish(name, seconds)


def _reset_peak() -> None:
    """Lets the kernel forget the peak so far; where it can't, peaks are those of the process."""
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")


def peak_memory() -> int:
    """Returns the process's peak resident size in bytes since it was last reset."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
