"""The Python API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeport.artifact import Artifact
from edgeport.errors import UsageError
from edgeport.measure import NoProgress, Progress, Stages
from edgeport.options import Effort, Options
from edgeport.output import check_writable

if TYPE_CHECKING:
    import torch

    from edgeport.source import Source


def convert(
    model_or_path: torch.nn.Module | torch.export.ExportedProgram | str | Path,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "cpu",
    recipe: str | None = None,
    calibration: Any = None,
    effort: Effort = "balanced",
    output: str | Path | None = None,
    evaluation: Any = None,
    preprocessing: str | Path | None = None,
    layout: Literal["channels-last", "keep"] | None = None,
    io_type: Literal["float32", "int8"] | None = None,
    min_sqnr: float | None = None,
    min_top1_agreement: float | None = None,
    validate: bool = True,
    check_passes: bool = False,
    keep_stages: bool = False,
    verbose: bool = False,
    progress: Progress | None = None,
) -> Artifact:
    """Brings a PyTorch model to an edge target and checks that it still computes the same.

    Args:
        model_or_path: An nn.Module, an ExportedProgram, or the path of an ExportedProgram archive
            (`torch.export.save`), whatever its ending.
        example_inputs: For a module: a tensor or a tuple of inputs, whose shapes become the
            file's.
        example_kwargs: For a module: keyword inputs.
        target: Where it shall run; `edgeport targets` lists them.
        recipe: Number formats, such as `static_wi8_ai8` or `w8a8`; the target's first by default.
        calibration: Real inputs that fix the ranges of a static recipe: a folder of images (with
            its `preprocessing.toml`) or of .npy/.npz files, a list of such files, or an iterable
            of inputs (tensors, arrays, tuples in order, dicts by name; a DataLoader's batches,
            with a label behind the inputs).
        effort: How much time may be spent: `fast` rounds weights to the nearest, `balanced` also
            corrects biases on the calibration samples, `best` also chooses the rounding of weights
            for the layers' outputs; each validates on more samples than the one before.
        output: Folder to write to; nothing is written without it (see `Artifact.save`).
        evaluation: Samples as for `calibration`, never used for it, that accuracy is judged on.
        preprocessing: TOML description of what to do with images; by default the folder's own.
        layout: `channels-last` turns image inputs and outputs to N×H×W×C, `keep` leaves them as
            in the model; the target's habit by default.
        io_type: Type of float inputs and outputs with a fully integer recipe; the target's habit
            by default.
        min_sqnr: Gate: least SQNR of the worst output in dB; the recipe's by default.
        min_top1_agreement: Gate: least share of samples with the same best class, in 0…1.
        validate: Run the file and compare it with the original; without it the verdict is
            `not checked`.
        check_passes: Compare the outputs after each graph pass; for finding faults of edgeport.
        keep_stages: Also keep the float file.
        verbose: Let the libraries underneath print.
        progress: Told about the stages.

    Returns:
        The artefact. A gate that failed does not raise: see `artifact.report.verdict`.

    Raises:
        UsageError: An argument is wrong.
        ConversionError: The model can't be converted.
        NotCheckedError: The file could not be run; `validate=False` converts all the same.
    """
    options = Options.resolve(
        target=target,
        recipe=recipe,
        layout=layout,
        io_type=io_type,
        effort=effort,
        calibration=calibration,
        evaluation=evaluation,
        preprocessing=preprocessing,
        min_sqnr=min_sqnr,
        min_top1_agreement=min_top1_agreement,
        validate=validate,
        check_passes=check_passes,
        keep_stages=keep_stages,
        verbose=verbose,
    )
    _check_samples(options)
    if output is not None:
        check_writable(Path(output))
    is_path = isinstance(model_or_path, str | Path)
    if is_path:
        if example_inputs is not None or example_kwargs:
            raise UsageError(
                "an archive carries its own example inputs",
                hint="give example inputs with an nn.Module only",
            )
        from edgeport.converters.readable import check_readable

        check_readable(Path(model_or_path))  # type: ignore[arg-type] # is_path says so

    def load() -> Source:
        from edgeport.converters.load import load_any

        return load_any(model_or_path, example_inputs, example_kwargs)

    stages = Stages(progress or NoProgress())
    with stages.stage("import torch"):
        from edgeport.pipeline import run

    artifact = run(load, options, stages)
    if output is not None:
        artifact = dataclasses.replace(artifact, folder=artifact.save(output).absolute())
    return artifact


def _check_samples(options: Options) -> None:
    """Refuses samples that can't be any, before a model is loaded."""
    from edgeport.quantize.samples import check_source

    for source in (options.calibration, options.evaluation):
        check_source(source)
    if options.preprocessing is not None:
        from edgeport.quantize.images import Preprocessing

        Preprocessing.read(options.preprocessing)
