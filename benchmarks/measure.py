"""Runs a command as a child process and measures it from outside."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one command.

    Attributes:
        seconds: Wall time from start to end.
        peak_bytes: Largest resident size that any single process of the child's tree reached.
    """

    seconds: float
    peak_bytes: int


def measure(command: Sequence[str], log: Path) -> Measurement:
    """Runs a command to its end, with its output in a log.

    Peak memory is `ru_maxrss` as `wait4` reports it, which covers the child and those of its
    descendants that it waited for. It is never less than this process's own, since Linux counts
    the time between fork and exec as well; that is why nothing heavy is imported here.

    Raises:
        SystemExit: The command failed; the end of its log is shown.
    """
    with log.open("wb") as sink:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-20:])
        sys.exit(f"{' '.join(command)}\nfailed with {child.returncode}:\n{tail}")
    return Measurement(seconds, usage.ru_maxrss * 1024)


def measure_in_turn(
    commands: dict[str, Sequence[str]], rounds: int, log: Path
) -> dict[str, list[Measurement]]:
    """Runs all commands once a round, every other round in reverse order.

    Whatever else the machine does then falls on all of them alike. A round before the first one
    warms the file cache and is not counted.
    """
    found: dict[str, list[Measurement]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        order = list(commands) if number % 2 else list(reversed(commands))
        for name in order:
            measurement = measure(commands[name], log)
            if number > 0:
                found[name].append(measurement)
    return found


def median_seconds(measurements: Sequence[Measurement]) -> float:
    """Returns the median wall time."""
    return statistics.median(m.seconds for m in measurements)


def median_peak(measurements: Sequence[Measurement]) -> float:
    """Returns the median peak memory in bytes."""
    return statistics.median(m.peak_bytes for m in measurements)
