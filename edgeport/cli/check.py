"""`edgeport check`."""

from __future__ import annotations

import click

from edgeport.cli.pipes import print_result


@click.command("check")
@click.argument("file", metavar="FILE.tflite")
@click.option(
    "--target",
    required=True,
    metavar="NAME",
    help="Where it shall run; `edgeport targets` lists them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the compiler prints.")
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
def check(file: str, target: str, as_json: bool, verbose: bool, quiet: bool) -> None:
    """Tell where the operators of FILE.tflite would run on a target, and why."""  # fmt: skip
    from edgeport.checking import check_file
    from edgeport.report import to_json

    checked = check_file(file, target, verbose=verbose)
    if as_json:
        print_result(to_json(checked.to_dict()))
        return
    if quiet:
        return
    from rich.markup import escape

    from edgeport.cli.render import console, show_placement_summary, table

    out = console()
    shown = table(">#", "operator", ">version", "on", "reason")
    for o in checked.placement.operators:
        shown.add_row(str(o.index), escape(o.operator), str(o.version), o.on, escape(o.reason))
    out.print(shown)
    show_placement_summary(out, checked.placement, checked.compiler)
