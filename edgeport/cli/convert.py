"""`edgeport convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeport.errors import EXIT_GATE_FAILED, EXIT_GOOD


@click.command("convert")
@click.argument("model_or_path", metavar="MODEL")
@click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="NAME",
    help="Where it shall run; `edgeport targets` lists them.",
)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Number formats, such as static_wi8_ai8 or w8a8.  [default: the target's]",
)
@click.option(
    "--calibration",
    metavar="PATH",
    help="Real inputs that fix the ranges: a folder of images or .npy/.npz, or a file.",
)
@click.option("--evaluation", metavar="PATH", help="Other real inputs, for judging accuracy only.")
@click.option(
    "--preprocessing",
    metavar="FILE",
    help="TOML: resize, crop, scale, mean, std of images.  "
    "[default: preprocessing.toml in the folder]",
)
@click.option(
    "--effort",
    default="balanced",
    show_default=True,
    metavar="fast|balanced|best",
    help="Time for accuracy: balanced corrects biases, best also learns the rounding.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="Folder for the files.  [default: MODEL_TARGET[_RECIPE] in this folder]",
)
@click.option(
    "--layout",
    metavar="channels-last|keep",
    help="Layout of image inputs and outputs in the file.  [default: the target's]",
)
@click.option(
    "--io-type",
    metavar="int8|float32",
    help="Type of float inputs and outputs of an integer model.  [default: the target's]",
)
@click.option(
    "--min-sqnr",
    type=float,
    metavar="DB",
    help="Gate: least SQNR of the worst output.  [default: the recipe's]",
)
@click.option(
    "--min-top1-agreement",
    type=float,
    metavar="SHARE",
    help="Gate: least share (0…1) of equal best classes.  [default: the recipe's]",
)
@click.option(
    "--no-validate",
    "validate",
    flag_value=False,
    default=True,
    type=bool,
    help="Do not run the result; the verdict is `not checked`.",
)
@click.option("--check-passes", is_flag=True, help="Compare the outputs after each graph pass.")
@click.option("--keep-stages", is_flag=True, help="Also write the float file.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the libraries underneath print.")
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
def convert(output: str | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Convert MODEL for a target, validate it and report.

    MODEL is an ExportedProgram archive, as `torch.export.save` writes it, of any ending.
    Writes the model to ship, report.json and a log into a folder.
    """  # fmt: skip
    from edgeport.api import convert as convert_model
    from edgeport.cli.pipes import print_result
    from edgeport.cli.progress import make_progress

    folder = Path(output) if output else _default_output(options)
    with make_progress(quiet=quiet) as progress:
        artifact = convert_model(**options, output=folder, progress=progress)
    if as_json:
        print_result(artifact.report.to_json())
    elif not quiet:
        from edgeport.cli.render import show_report

        show_report(artifact.report, folder)
    failed = [gate for gate in artifact.report.gates if not gate.passed]
    for gate in failed:
        click.echo(
            f"gate failed: {gate.name} is {gate.value:.4g}, less than {gate.threshold:.4g}, on the "
            f"{gate.samples} samples; the files were written to {folder}",
            err=True,
        )
    return EXIT_GATE_FAILED if failed else EXIT_GOOD


def _default_output(options: dict[str, Any]) -> Path:
    """Names the folder after the model, the target and, where one was asked for, the recipe."""
    from edgeport.quantize.recipes import get_recipe
    from edgeport.targets import get_target

    parts = [Path(options["model_or_path"]).stem, get_target(options["target"]).name]
    if options["recipe"]:
        parts.append(get_recipe(options["recipe"]).name)
    return Path("_".join(parts).replace("-", "_"))
