"""`edgeport targets`."""

from __future__ import annotations

from typing import Any

import click

from edgeport.cli.pipes import print_result


@click.command("targets")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="List every configuration on its own.")
@click.option("-q", "--quiet", is_flag=True, help="Names only, one a line.")
def targets(as_json: bool, verbose: bool, quiet: bool) -> None:
    """List the targets: number formats, compiler and runners found or how to get them."""
    from edgeport.report import to_json
    from edgeport.targets import all_targets

    if quiet:
        for target in all_targets():
            print_result(target.name)
        return
    described = [_describe(target) for target in all_targets()]
    if as_json:
        print_result(to_json({"targets": described}))
        return
    _show(described, verbose)


def _describe(target: Any) -> dict[str, Any]:
    from edgeport.quantize.recipes import get_recipe
    from edgeport.runtime_check.runner import get_runner

    compiler = target.compiler.available()
    runners = [(name, get_runner(name).available()) for name in target.runners]
    formats = []
    for name in target.recipes:
        recipe = get_recipe(name)
        formats.append(
            {"recipe": name, "weights": recipe.weights, "activations": recipe.activations}
        )
    return {
        "name": target.name,
        "title": target.title,
        "aliases": list(target.aliases),
        "formats": formats,
        "layout": target.layout,
        "io_type": target.border_type,
        "compiler": {"found": compiler.ok, "what": compiler.what, "how": compiler.how},
        "runners": [
            {"name": name, "found": a.ok, "what": a.what, "how": a.how} for name, a in runners
        ],
    }


def _show(described: list[dict[str, Any]], verbose: bool) -> None:
    from edgeport.cli.render import console, table
    from edgeport.quantize.recipes import all_recipes

    out = console()
    shown = table("target", "aliases", "recipes", "compiler", "runs here on")
    hints: dict[str, None] = {}
    for target in described:
        compiler = target["compiler"]
        state = compiler["what"] if compiler["found"] else f"[yellow]missing:[/] {compiler['what']}"
        if compiler["how"]:
            hints[f"{compiler['what']}: {compiler['how']}"] = None
        runners = []
        for runner in target["runners"]:
            runners.append(runner["name"] if runner["found"] else f"[yellow]{runner['name']}[/]")
            if runner["how"]:
                hints[f"{runner['name']}: {runner['how']}"] = None
        shown.add_row(
            target["name"],
            ", ".join(target["aliases"]),
            "\n".join(f["recipe"] for f in target["formats"]) if verbose
            else ", ".join(f["recipe"] for f in target["formats"]),
            state,
            ", ".join(runners),
        )  # fmt: skip
    out.print(shown)
    for hint in hints:
        out.print(f"[yellow]missing[/] {hint}")
    recipes = table("recipe", "short", "")
    for recipe in all_recipes():
        recipes.add_row(recipe.name, ", ".join(recipe.aliases), recipe.summary)
    out.print(recipes)
    out.print(
        "`edgeport convert MODEL --target NAME [--recipe NAME]`; the first one is the default"
    )
