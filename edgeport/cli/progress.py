"""Progress on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Self

from edgeport.measure import NoProgress, Progress

_WORTH_A_LINE = 1.0  # seconds


@contextmanager
def make_progress(*, quiet: bool) -> Iterator[Progress]:
    """Gives the progress that fits stderr.

    It writes to a copy of the descriptor, so that it is seen while the libraries' own output is
    captured.
    """
    if quiet:
        yield NoProgress()
        return
    stream, own = _real_stderr()
    try:
        if stream.isatty():
            with _LiveProgress(stream) as live:
                yield live
        else:
            yield _PlainProgress(stream)
    finally:
        if own:
            stream.close()


def _real_stderr() -> tuple[IO[str], bool]:
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8"), True
    except (OSError, ValueError, AttributeError):  # replaced by something without a descriptor
        return sys.stderr, False


class _PlainProgress:
    """One line when a stage begins, one when it took over a second."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._last = 0.0

    def start(self, stage: str) -> None:
        self._last = time.monotonic()
        print(f"{stage} …", file=self._stream, flush=True)

    def update(self, done: int, total: int | None) -> None:
        if time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            print(f"  {done} samples", file=self._stream, flush=True)

    def finish(self, stage: str, seconds: float) -> None:
        if seconds >= _WORTH_A_LINE:
            print(f"{stage}: {seconds:.1f} s", file=self._stream, flush=True)


class _LiveProgress:
    """A spinner with the stage and its time."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream)
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: Any = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def start(self, stage: str) -> None:
        self._task = self._bar.add_task(stage, total=None, detail="")

    def update(self, done: int, total: int | None) -> None:
        self._bar.update(self._task, detail=f"{done} samples")

    def finish(self, stage: str, seconds: float) -> None:
        self._bar.remove_task(self._task)
        if seconds >= _WORTH_A_LINE:
            self._console.print(f"[green]✓[/] {stage} [dim]{seconds:.1f} s[/]")
