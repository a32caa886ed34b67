"""The order of things: from a model to an artefact.

source → graph passes → float flatbuffer → quantized flatbuffer → flatbuffer passes → compiler →
validation → report. Each stage gets the stage before it and the target's data, nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgeport import __version__, flatbuffer
from edgeport.artifact import Artifact
from edgeport.calling import Caller
from edgeport.capture import captured
from edgeport.converters.borders import FileBorder, class_outputs, to_numpy
from edgeport.converters.convert import (
    Rewritten,
    convert,
    file_borders,
    rewrite,
    run_flatbuffer_passes,
)
from edgeport.errors import from_os_error
from edgeport.feeding import Feed, SampleSets
from edgeport.gates import OutputSpans, differing_integers, float_leftovers, judge, narrowed_inputs
from edgeport.measure import Stages
from edgeport.options import Options
from edgeport.quantize.apply import quantize
from edgeport.quantize.dead_channels import keep_biases
from edgeport.quantize.ranges import observe
from edgeport.quantize.weights import keep_outputs
from edgeport.report import (
    Accuracy,
    FileInfo,
    ModelInfo,
    PassChange,
    Report,
    TensorInfo,
)
from edgeport.runtime_check.runner import get_runner
from edgeport.runtime_check.validate import (
    Compared,
    check_conversion,
    validate,
)
from edgeport.source import Source
from edgeport.targets.base import Compilation

_PACKAGES = (
    "torch", "litert-torch", "litert-converter", "ai-edge-litert",
    "ai-edge-quantizer", "numpy",
)  # fmt: skip


def run(load: Callable[[], Source], options: Options, stages: Stages) -> Artifact:
    """Converts a model for a target, validates it and reports.

    Args:
        load: Reads or traces the model; called inside, so that it is timed and captured.
        options: What was asked for, already checked.
        stages: Measures the stages.

    Returns:
        The artefact, not yet written anywhere.

    Raises:
        EdgeportError: With the exit code of its class.
    """
    try:
        work = Path(tempfile.mkdtemp(prefix="edgeport-"))
    except OSError as e:
        raise from_os_error(e, "making a temporary folder") from None
    log = work / "edgeport.log"
    try:
        log.touch()
        with captured(log, verbose=options.verbose):
            return _Run(options, stages, work, log).run(load)
    except OSError as e:
        raise from_os_error(e, "converting") from e
    finally:
        shutil.rmtree(work, ignore_errors=True)


@dataclass(slots=True)
class _Run:
    """One conversion. Holds what several stages look at; everything else is handed on."""

    options: Options
    stages: Stages
    work: Path
    log: Path
    spans: OutputSpans = field(default_factory=OutputSpans)

    def run(self, load: Callable[[], Source]) -> Artifact:
        options, stage = self.options, self.stages.stage
        target, recipe = options.target, options.recipe
        with stage("load"):
            source = load()
        warnings = list(source.warnings)
        samples = SampleSets.of(source, options, warnings)
        with stage("graph passes"):
            rewritten = rewrite(
                source, target.graph_passes, options.layout, check_passes=options.check_passes
            )
        with stage("convert"):
            floats = convert(rewritten)
        inputs, outputs = file_borders(rewritten, floats)
        warnings += narrowed_inputs(inputs)
        if options.validate:
            with stage("check the float file"):
                check_conversion(
                    get_runner("host"), floats, self._compare(rewritten, inputs, outputs),
                    samples.example,
                )  # fmt: skip
        ranges = None
        adjusted: tuple[PassChange, ...] = ()
        if recipe.needs_calibration:
            feed = Feed(samples.calibration, inputs)
            if options.effort in _WEIGHT_SAMPLES and not samples.from_example:
                with stage("adjust weights"):
                    floats, adjusted = self._adjust_weights(floats, feed)
            with stage("calibrate"):
                ranges = observe(floats, feed, threads=_threads(), progress=self._count)
            floats, kept = keep_biases(floats, ranges)
            if kept:
                adjusted = (*adjusted, PassChange("keep_biases", "flatbuffer", kept, _KEPT))
            warnings += samples.after_calibration(ranges.samples)
            warnings += [
                f"activation `{n}` is not finite on some samples" for n in ranges.not_finite
            ]
        with stage("quantize"):
            quantized = quantize(floats, recipe, ranges, float_borders=options.io_type == "float32")
        with stage("flatbuffer passes"):
            final, changes = run_flatbuffer_passes(quantized, target.flatbuffer_passes)
        warnings += float_leftovers(final) if recipe.fully_integer else []
        with stage("compile"):
            compilation = target.compiler.compile(final, source.name, self._folder("compile"))
        inputs, outputs = file_borders(rewritten, final)
        accuracy: tuple[Accuracy, ...] = ()
        if options.validate:
            with stage("validate"):
                accuracy, refused = self._validate(rewritten, inputs, outputs, final, samples)
            warnings += refused
            warnings += differing_integers(accuracy, source, options)
            warnings += self.spans.lost_detail(outputs, _class_names(rewritten))
        gates = judge(accuracy, source, options)
        contents = self._contents(source.name, floats, final, compilation)
        report = Report(
            verdict="not checked" if not accuracy
            else "passed" if all(g.passed for g in gates) else "failed",
            target=target.name,
            recipe=recipe.name,
            model=_model_info(source, inputs, outputs, final),
            stages=tuple(self.stages.done),
            passes=(*rewritten.changes, *adjusted, *changes),
            compiler=compilation.report,
            placement=compilation.placement,
            accuracy=accuracy,
            gates=gates,
            files=tuple(
                FileInfo(role, name, len(content), hashlib.sha256(content).hexdigest())
                for role, (name, content) in contents.items()
            ),
            warnings=tuple(dict.fromkeys(warnings)),
            options=options.to_dict(),
            versions=_versions(),
        )  # fmt: skip
        caller = Caller(final, source, inputs, outputs, get_runner("host"))
        files = {name: content for name, content in contents.values()}
        files["report.json"] = report.to_json().encode()
        return Artifact(files, report, None, caller)

    def _count(self, done: int) -> None:
        self.stages.progress.update(done, None)

    def _adjust_weights(self, floats: bytes, feed: Feed) -> tuple[bytes, tuple[PassChange, ...]]:
        """Moves biases, and with effort `best` weights, so that rounding costs less accuracy."""
        learn = self.options.effort == "best"
        adjusted, layers = keep_outputs(
            floats,
            feed.first(_WEIGHT_SAMPLES[self.options.effort]),
            threads=_threads(),
            learn_rounding=learn,
            progress=self._count,
        )
        if not layers:
            return floats, ()
        changes = [PassChange("correct_biases", "flatbuffer", layers, _BIASES)]
        if learn:
            changes.insert(0, PassChange("learn_rounding", "flatbuffer", layers, _ROUNDING))
        return adjusted, tuple(changes)

    def _folder(self, name: str) -> Path:
        folder = self.work / name
        folder.mkdir()
        return folder

    def _compare(
        self,
        rewritten: Rewritten,
        inputs: tuple[FileBorder, ...],
        outputs: tuple[FileBorder, ...],
    ) -> Compared:
        """Says how samples reach the file and the original, and how their outputs compare."""
        source = rewritten.source

        def reference(sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            import torch
            from torch.utils import _pytree as pytree

            leaves = list(source.example)
            for border in source.inputs:
                value = torch.from_numpy(np.array(sample[border.name]))
                leaves[border.position] = value.to(border.dtype)
            results = pytree.tree_leaves(source.reference(leaves))
            found = {b.name: to_numpy(results[b.position]) for b in source.outputs}
            self.spans.add(found)
            return found

        return Compared(
            reference=reference,
            to_file=lambda sample: {b.name: b.to_file(sample[b.name]) for b in inputs},
            from_file=lambda found: {b.name: b.from_file(found[b.name]) for b in outputs},
            outputs=tuple(b.name for b in source.outputs),
            classes=_class_names(rewritten),
        )

    def _validate(
        self,
        rewritten: Rewritten,
        inputs: tuple[FileBorder, ...],
        outputs: tuple[FileBorder, ...],
        model: bytes,
        samples: SampleSets,
    ) -> tuple[tuple[Accuracy, ...], list[str]]:
        import torch

        compared = self._compare(rewritten, inputs, outputs)
        limits = {"host": _HOST_SAMPLES, "reference": _REFERENCE_SAMPLES}
        # torch's threads wait for each other by spinning: one too many on a busy machine makes
        # every inference several times slower.
        threads = torch.get_num_threads()
        torch.set_num_threads(max(1, threads - 1))
        refused: list[str] = []
        try:
            accuracy = validate(
                [
                    (get_runner(name), limits.get(name, _REFERENCE_SAMPLES)[self.options.effort])
                    for name in self.options.target.runners
                ],
                model,
                compared,
                samples.sets(),
                progress=self.stages.progress.update,
                refused=refused,
            )
        finally:
            torch.set_num_threads(threads)
        return accuracy, refused

    def _contents(
        self, name: str, floats: bytes, final: bytes, compilation: Compilation
    ) -> dict[str, tuple[str, bytes]]:
        """Returns all files but the report as {role: (name, content)}, the one to ship first."""
        flatbuffer_role = "flatbuffer" if "model" in compilation.files else "model"
        files = dict(compilation.files)
        files[flatbuffer_role] = (f"{name}.tflite", final)
        if self.options.keep_stages:
            files["float"] = (f"{name}_float.tflite", floats)
        files["log"] = ("edgeport.log", self.log.read_bytes())
        return dict(sorted(files.items(), key=lambda item: item[0] != "model"))


# Calibration samples that weights and biases are adjusted on; effort `fast` leaves them.
_WEIGHT_SAMPLES = {"balanced": 32, "best": 64}
_BIASES = "Mean error of the rounded weights on the calibration samples, taken off the bias"
_KEPT = "Channels whose weights were too small for their bias, one weight raised"
_ROUNDING = "Weights rounded so that the layer's outputs on the calibration samples change least"

# Samples that each kind of runner validates: reference kernels take seconds for an inference.
_HOST_SAMPLES = {"fast": 32, "balanced": 512, "best": None}
_REFERENCE_SAMPLES = {"fast": 1, "balanced": 4, "best": None}


def _class_names(rewritten: Rewritten) -> frozenset[str]:
    """Returns the outputs that are scores of classes."""
    positions = class_outputs(rewritten.graph)
    return frozenset(b.name for b in rewritten.source.outputs if b.position in positions)


def _threads() -> int:
    return os.cpu_count() or 1


def _model_info(
    source: Source,
    inputs: tuple[FileBorder, ...],
    outputs: tuple[FileBorder, ...],
    model: bytes,
) -> ModelInfo:
    def info(border: FileBorder) -> TensorInfo:
        return TensorInfo(
            name=border.name,
            dtype=str(border.dtype),
            shape=border.shape,
            layout=border.layout,
            original_dtype=str(border.original.dtype).removeprefix("torch."),
            original_shape=border.original.shape,
            scale=border.scale,
            zero_point=border.zero_point,
        )

    return ModelInfo(
        name=source.name,
        source=source.origin,
        sha256=source.sha256,
        parameters=sum(p.numel() for p in source.program.parameters()),
        macs=flatbuffer.total_multiply_accumulates(flatbuffer.parse(model)),
        inputs=tuple(map(info, inputs)),
        outputs=tuple(map(info, outputs)),
    )


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "edgeport": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions
