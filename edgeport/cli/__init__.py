"""The command line: `edgeport VERB`. Each verb is a module here, loaded when it is called."""

from __future__ import annotations

import importlib

import click

from edgeport import __version__

_VERBS = {
    "check": "Tell where the operators of a .tflite file would run on a target.",
    "convert": "Convert a PyTorch model for a target, validate it and report.",
    "inspect": "Show what is in a .tflite file.",
    "targets": "List the targets, their compilers and runners.",
}


class _LazyGroup(click.Group):
    """A group that knows its verbs without importing them, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from edgeport.errors import unknown_name

            raise unknown_name("command", args[0], _VERBS, see="`edgeport --help` lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def edgeport() -> None:
    """Bring a PyTorch model to edge hardware that speaks LiteRT.

    Exit codes: 0 good, 1 a gate failed, 2 wrong usage, 3 can't convert, 4 could not be checked,
    130 interrupted.
    """
