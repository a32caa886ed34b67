"""Readers that go away, as in `edgeport targets | head`."""

from __future__ import annotations

import contextlib
import os

import click


def print_result(text: str) -> None:
    """Prints to stdout; a reader that went away is no failure (click would exit with 1)."""
    try:
        click.echo(text)
    except BrokenPipeError:
        silence_stdout()


def silence_stdout() -> None:
    """Sends what is still printed nowhere, so that the command ends with its own exit code."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
