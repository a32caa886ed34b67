"""Every error that edgeport raises on purpose.

An error says what happened, where (a file, a tensor, a line of the user's model) and what to do
next; its class decides the exit code of the command line. Anything else that escapes is a bug of
edgeport's and exits with 70.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

EXIT_GOOD = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT_CONVERT = 3
EXIT_NOT_CHECKED = 4
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class EdgeportError(Exception):
    """Base class of all errors of edgeport.

    Args:
        what: One sentence that says what happened, without a final period.
        where: The file, tensor or line that it is about.
        hint: What the user can do next.
    """

    exit_code = EXIT_BUG

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class UsageError(EdgeportError):
    """The call is wrong: an unknown target, a missing file, an option that does not fit."""

    exit_code = EXIT_USAGE


class CalibrationError(UsageError):
    """The calibration or evaluation samples do not fit the model."""


class InputError(UsageError):
    """Inputs given to a model or an artefact do not fit its signature."""


class ConversionError(EdgeportError):
    """The model can't be converted."""

    exit_code = EXIT_CANNOT_CONVERT


class ModelFileError(ConversionError):
    """A file is not a model that edgeport can read, or is not safe to read."""


class CompilerError(ConversionError):
    """A vendor's compiler refused the model, crashed or did not end in time."""


class OutputError(ConversionError):
    """The outputs can't be written."""


class OutputLocationError(OutputError):
    """The output folder can't be used at all, which is known before any work is done."""

    exit_code = EXIT_USAGE


class NotCheckedError(EdgeportError):
    """A check could not be made: the device, simulator or runtime is missing or failed."""

    exit_code = EXIT_NOT_CHECKED


class RunnerRefusedError(NotCheckedError):
    """A runtime can't load a model, such as kernels that lack one of its operators."""


class MissingDependencyError(NotCheckedError):
    """A package that an extra brings is not installed."""

    def __init__(self, package: str, *, needed_for: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs the package `{package}`, which is not installed",
            hint=f"pip install 'edgeport[{extra}]'",
        )


def unknown_name(kind: str, name: str, known: Iterable[str], *, see: str) -> UsageError:
    """Builds the error for a mistyped name, with the nearest valid ones.

    Args:
        kind: What is named, such as `target`.
        name: What the user wrote.
        known: All valid names and aliases.
        see: Where the user finds all of them.
    """
    names = list(known)
    near = [n for n in names if n.startswith(name.lower())] if name else []
    near = near[:4] or difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    guess = "did you mean " + " or ".join(f"`{n}`" for n in near) + "? " if near else ""
    return UsageError(f"unknown {kind} `{name}`", hint=f"{guess}{see}")


def from_os_error(error: OSError, doing: str) -> OutputError:
    """Turns an `OSError` met while writing into an error a user can act on."""
    where = str(error.filename) if error.filename else None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            f"no space left on the device while {doing}",
            where=where,
            hint="free some space or choose another place with `--output` (or TMPDIR); "
            "nothing was left behind",
        )
    return OutputError(f"{error.strerror or error} while {doing}", where=where)
