"""The command line, run as a user runs it: in a process of its own, with folders to look into."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines that tell of an error, without the word itself."""
        lines = self.err.splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]


def command(*arguments: str | Path, options: tuple[str, ...] = ()) -> list[str]:
    """Returns the argument list of `edgeport ARGUMENTS` run by this Python with `options`."""
    return [sys.executable, *options, "-m", "edgeport", *map(str, arguments)]


def environment(temporary: Path) -> dict[str, str]:
    """Returns this process's environment with another folder for temporary files."""
    path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")},
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def edgeport(
    *arguments: str | Path,
    cwd: Path,
    temporary: Path,
    options: tuple[str, ...] = (),
    timeout: float = 300,
) -> Ended:
    """Runs `edgeport ARGUMENTS` and waits for its end.

    Args:
        *arguments: Without the program's name.
        cwd: The working folder.
        temporary: The folder for temporary files.
        options: Options of Python's own.
        timeout: Seconds after which the test fails.
    """
    done = subprocess.run(
        command(*arguments, options=options),
        cwd=cwd,
        env=environment(temporary),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def files_in(folder: Path) -> set[str]:
    """Returns everything in a folder, hidden files and sub-folders included."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
