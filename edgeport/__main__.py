"""`edgeport` and `python -m edgeport`: runs the command line and turns errors into exit codes."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click

from edgeport.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_USAGE, EdgeportError


def main() -> None:
    """Runs the command line; ends the process with the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: Without the program's name.
    """
    from edgeport.cli import edgeport

    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        code = edgeport.main(args=arguments, prog_name="edgeport", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        if type(e).__name__ == "NoArgsIsHelpError":  # since click 8.2
            click.echo(e.format_message(), err=True)
            return EXIT_USAGE
        _print_error(e.format_message(), None, _usage_hint(e))
        return EXIT_USAGE
    except EdgeportError as e:
        if verbose:
            _print_traceback()
        _print_error(e.what, e.where, e.hint)
        return e.exit_code
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted; nothing was written", None, None)
        return EXIT_INTERRUPTED
    except Exception as e:
        if verbose:
            _print_traceback()
        _print_error(
            f"edgeport failed ({type(e).__name__}: {e})",
            None,
            "this is a fault of edgeport's; please report it with the output of the same command "
            "with -v",
        )
        return EXIT_BUG


def _stop(number: int, frame: FrameType | None) -> None:
    """Ends the command; a second signal must not disturb the tidying up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _usage_hint(error: click.ClickException) -> str | None:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` shows how" if context else None


def _print_error(what: str, where: str | None, hint: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    line = Text("error: ", style="bold red")
    line.append(f"{_plain(where)}: " if where else "", style="bold")
    line.append(_plain(what), style="default")
    console.print(line)
    if hint:
        console.print(Text("  hint: ", style="bold cyan").append(hint, style="default"))


def _plain(text: str) -> str:
    """Keeps text on one line, and what a file name may do to a terminal off it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


if __name__ == "__main__":
    main()
