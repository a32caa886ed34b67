"""Keeping what the libraries underneath print off the screen, and in a log.

litert-torch, JAX and LiteRT print from Python and from C++. While captured, the descriptors 1 and
2 of the whole process lead to the log; progress that was given its own descriptor before still
reaches the screen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def captured(log: Path, *, verbose: bool) -> Iterator[None]:
    """Sends all output of the block to a log file.

    Args:
        log: Appended to.
        verbose: Leave the output on the screen instead.
    """
    if verbose:
        yield
        return
    _flush()
    saved = [(fd, _duplicate(fd)) for fd in (1, 2)]
    with open(
        log, "a", buffering=1, encoding="utf-8", errors="replace", opener=_open_above_standard
    ) as file:
        try:
            for fd, _ in saved:
                os.dup2(file.fileno(), fd)
            with (
                contextlib.redirect_stdout(file),
                contextlib.redirect_stderr(file),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("default")  # shown, so in the log, and never an error
                yield
        finally:
            _flush()
            for fd, copy in saved:
                if copy is None:
                    os.close(fd)
                else:
                    os.dup2(copy, fd)
                    os.close(copy)


def _duplicate(fd: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:  # closed, as for daemons
        return None


def _open_above_standard(path: str, flags: int) -> int:
    """Opens a file; never as descriptor 0, 1 or 2, which may be closed and so be free."""
    fd = os.open(path, flags, 0o666)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
