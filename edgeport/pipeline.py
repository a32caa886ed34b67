"""The order of things: from a model to an artefact.

source → graph passes → float flatbuffer → quantized flatbuffer → flatbuffer passes → compiler →
validation → report. Each stage gets the stage before it and the target's data, nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgeport import flatbuffer
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
from edgeport.measure import Stages
from edgeport.options import Options
from edgeport.quantize.apply import quantize
from edgeport.quantize.dead_channels import keep_biases
from edgeport.quantize.ranges import observe
from edgeport.quantize.samples import Expected, Sample, Samples
from edgeport.quantize.weights import keep_outputs
from edgeport.report import (
    Accuracy,
    FileInfo,
    Gate,
    ModelInfo,
    PassChange,
    Report,
    TensorInfo,
)
from edgeport.runtime_check.runner import get_runner
from edgeport.runtime_check.validate import (
    LEAST_FLOAT_SQNR,
    Compared,
    check_conversion,
    validate,
)
from edgeport.source import Source
from edgeport.targets.base import Compilation

_PACKAGES = (
    "edgeport", "torch", "litert-torch", "litert-converter", "ai-edge-litert",
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

    def run(self, load: Callable[[], Source]) -> Artifact:
        options, stage = self.options, self.stages.stage
        target, recipe = options.target, options.recipe
        with stage("load"):
            source = load()
        warnings = list(source.warnings)
        samples = _Samples.of(source, options, warnings)
        with stage("graph passes"):
            rewritten = rewrite(
                source, target.graph_passes, options.layout, check_passes=options.check_passes
            )
        with stage("convert"):
            floats = convert(rewritten)
        inputs, outputs = file_borders(rewritten, floats)
        warnings += _narrowed(inputs)
        if options.validate:
            with stage("check the float file"):
                check_conversion(
                    get_runner("host"), floats, self._compare(rewritten, inputs, outputs),
                    samples.example,
                )  # fmt: skip
        ranges = None
        adjusted: tuple[PassChange, ...] = ()
        if recipe.needs_calibration:
            feed = _Feed(samples.calibration, inputs)
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
        warnings += _float_leftovers(final) if recipe.fully_integer else []
        with stage("compile"):
            compilation = target.compiler.compile(final, source.name, self._folder("compile"))
        inputs, outputs = file_borders(rewritten, final)
        accuracy: tuple[Accuracy, ...] = ()
        if options.validate:
            with stage("validate"):
                accuracy, refused = self._validate(rewritten, inputs, outputs, final, samples)
            warnings += refused
            warnings += _differing_integers(accuracy, source, options)
        gates = _gates(accuracy, source, options)
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

    def _adjust_weights(self, floats: bytes, feed: _Feed) -> tuple[bytes, tuple[PassChange, ...]]:
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
        classes = class_outputs(rewritten.graph)

        def reference(sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            import torch
            from torch.utils import _pytree as pytree

            leaves = list(source.example)
            for border in source.inputs:
                value = torch.from_numpy(np.array(sample[border.name]))
                leaves[border.position] = value.to(border.dtype)
            results = pytree.tree_leaves(source.reference(leaves))
            return {b.name: to_numpy(results[b.position]) for b in source.outputs}

        return Compared(
            reference=reference,
            to_file=lambda sample: {b.name: b.to_file(sample[b.name]) for b in inputs},
            from_file=lambda found: {b.name: b.from_file(found[b.name]) for b in outputs},
            outputs=tuple(b.name for b in source.outputs),
            classes=frozenset(b.name for b in source.outputs if b.position in classes),
        )

    def _validate(
        self,
        rewritten: Rewritten,
        inputs: tuple[FileBorder, ...],
        outputs: tuple[FileBorder, ...],
        model: bytes,
        samples: _Samples,
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


class _Feed:
    """Samples as the file takes them. The first few can be looked at before all are read."""

    def __init__(self, samples: Iterable[Sample], inputs: tuple[FileBorder, ...]) -> None:
        self._rest = iter(samples)
        self._first: list[Sample] = []
        self._inputs = inputs

    def first(self, count: int) -> list[Sample]:
        """Returns the first samples, and keeps them for the reading of all."""
        self._first += (
            self._to_file(s) for s in itertools.islice(self._rest, count - len(self._first))
        )
        return self._first

    def __iter__(self) -> Iterator[Sample]:
        yield from self._first
        yield from map(self._to_file, self._rest)

    def _to_file(self, sample: Sample) -> Sample:
        return {b.name: b.to_file(sample[b.name]) for b in self._inputs}


def _threads() -> int:
    return os.cpu_count() or 1


@dataclass(slots=True)
class _Samples:
    """The samples of one conversion, in the original model's layout."""

    example: list[Sample]
    calibration: Iterable[Sample]
    evaluation: Iterable[Sample] | None
    from_example: bool
    readers: tuple[Samples, ...]

    @staticmethod
    def of(source: Source, options: Options, warnings: list[str]) -> _Samples:
        expected = [Expected(b.name, b.shape, b.dtype.is_floating_point) for b in source.inputs]
        example = [{b.name: to_numpy(source.example[b.position]) for b in source.inputs}]
        example += _varied(example[0])
        calibration: Iterable[Sample] = example
        evaluation = None
        readers = []
        if options.calibration is not None:
            reader = Samples(options.calibration, expected, options.preprocessing)
            readers.append(reader)
            calibration = reader
        if options.evaluation is not None:
            reader = Samples(options.evaluation, expected, options.preprocessing)
            readers.append(reader)
            evaluation = reader
        for reader in readers:
            warnings += reader.warnings
            if reader.repeatable:
                next(iter(reader), None)  # one that does not fit is told before the conversion
        from_example = options.calibration is None
        if not from_example and evaluation is None and options.validate:
            warnings.append(
                "accuracy is judged on the calibration samples themselves, which flatters; "
                "give others with `--evaluation`"
            )
        if from_example and options.recipe.needs_calibration:
            warnings.append(
                "no calibration samples were given: ranges come from the example inputs alone, "
                "which says little about real data; give some with `--calibration`"
            )
        return _Samples(example, calibration, evaluation, from_example, tuple(readers))

    def after_calibration(self, count: int) -> list[str]:
        """Warns when samples were few."""
        if not self.from_example and count < 16:
            return [f"only {count} calibration samples; ranges want 16 or more, better 100"]
        return []

    def sets(self) -> Iterator[tuple[Literal["example", "calibration", "evaluation"], Any]]:
        """Yields the sets to validate on, by name."""
        yield "example", self.example
        if not self.from_example and _repeatable(self.calibration):
            yield "calibration", self.calibration
        if self.evaluation is not None:
            yield "evaluation", self.evaluation


def _varied(example: Sample) -> list[Sample]:
    """Returns a second example where the first is constant, and so would hide most mistakes."""
    rng = np.random.default_rng(0)
    varied = dict(example)
    for name, values in example.items():
        if values.dtype.kind == "f" and values.size > 1 and np.all(values == values.flat[0]):
            noise = rng.standard_normal(values.shape)
            varied[name] = (noise * max(abs(float(values.flat[0])), 1.0)).astype(values.dtype)
    return [varied] if any(varied[n] is not example[n] for n in example) else []


def _repeatable(samples: Iterable[Sample]) -> bool:
    return not isinstance(samples, Samples) or samples.repeatable


def _narrowed(inputs: tuple[FileBorder, ...]) -> list[str]:
    """Tells which integers are narrower in the file."""
    return [
        f"input `{b.name}` is {_short(b.original.dtype)} and computed as {b.dtype} in the file; "
        "larger values wrap around inside it"
        for b in inputs
        if str(b.dtype) == "int32" and _short(b.original.dtype) == "int64"
    ]


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _differing_integers(
    accuracy: tuple[Accuracy, ...], source: Source, options: Options
) -> list[str]:
    """Tells which integer outputs of a quantized file, that no gate judges, differ much."""
    if not options.recipe.algorithm:
        return []
    integers = {b.name for b in source.outputs if not b.dtype.is_floating_point}
    worst: dict[str, float] = {}
    for measured in accuracy:
        for output in measured.outputs:
            if output.output in integers:
                worst[output.output] = min(worst.get(output.output, 200.0), output.sqnr_db)
    return [
        f"the integer output `{name}` differs from the original's (SQNR {value:.1f} dB)"
        for name, value in worst.items()
        if value < LEAST_FLOAT_SQNR
    ]


def _float_leftovers(model: bytes) -> list[str]:
    """Tells which operators of a model that should be all integers still compute in float."""
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    names: dict[str, int] = {}
    for operator in main.operators:
        name = flatbuffer.operator_name(parsed, operator)
        used = flatbuffer.indices(operator.outputs)
        if name not in ("QUANTIZE", "DEQUANTIZE") and any(
            flatbuffer.type_name(main.tensors[i]) == "float32" for i in used
        ):
            names[name] = names.get(name, 0) + 1
    if not names:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in names.items())
    return [f"operators that stay in float, since the quantizer does not know them: {listed}"]


# What rounding to an original's own precision costs alone: a file cannot be nearer to it.
_PRECISION_SQNR = {"torch.float16": 40.0, "torch.bfloat16": 25.0}


def _default_min_sqnr(source: Source, options: Options) -> float:
    """Returns the recipe's gate, or less where the original itself computes in half precision."""
    dtypes = {str(t.dtype) for t in source.program.state_dict.values()}
    dtypes |= {str(b.dtype) for b in (*source.inputs, *source.outputs)}
    limits = [_PRECISION_SQNR[d] for d in dtypes if d in _PRECISION_SQNR]
    return min([options.recipe.min_sqnr_db, *limits])


def _gates(accuracy: tuple[Accuracy, ...], source: Source, options: Options) -> tuple[Gate, ...]:
    """Judges the worst output and runner on the best set of samples there is.

    Example inputs are often noise, which says nothing about real data: they count only when
    there is nothing else. A few samples say little about agreement, so its default gate wants 20.
    Integer outputs, such as positions of maxima, must be right in a float file; in a quantized one
    two close scores may change places, so there only the float outputs are judged.
    """
    kinds = {a.samples for a in accuracy}
    best = next((k for k in ("evaluation", "calibration", "example") if k in kinds), None)
    if best is None:
        return ()
    judged = [a for a in accuracy if a.samples == best]
    floats = {b.name for b in source.outputs if b.dtype.is_floating_point}
    if not options.recipe.algorithm or not floats:
        floats = {b.name for b in source.outputs}
    gates = []
    sqnr = [o.sqnr_db for a in judged for o in a.outputs if o.output in floats]
    if sqnr:
        threshold = options.min_sqnr
        if threshold is None:
            threshold = _default_min_sqnr(source, options)
        gates.append(Gate("min_sqnr", threshold, min(sqnr), min(sqnr) >= threshold, best))
    asked = options.min_top1_agreement
    top1 = [
        o.top1_agreement
        for a in judged
        for o in a.outputs
        if o.top1_agreement is not None and (asked is not None or a.count >= 20)
    ]
    if top1:
        threshold = options.recipe.min_top1_agreement if asked is None else asked
        gates.append(Gate("min_top1_agreement", threshold, min(top1), min(top1) >= threshold, best))
    elif asked is not None:
        # Asked for, and nothing to judge: never a pass.
        gates.append(Gate("min_top1_agreement", asked, 0.0, False, best))
    return tuple(gates)


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
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            versions[package] = "unknown"
    return versions
