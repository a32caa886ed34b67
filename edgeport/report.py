"""The report: plain data about one conversion, with a schema version.

The terminal, JSON and (later) HTML views render these dataclasses and compute nothing. The JSON
form is described by `report.schema.json` in this package. Times are seconds, sizes are bytes,
ratios lie in 0…1, SQNR is in dB.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = "1.0"

Verdict = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor at the model's border.

    Attributes:
        name: Its name in the signature.
        dtype: Its type in the file, such as `int8`.
        shape: Its shape in the file.
        layout: `as the model` or `channels-last`: how `shape` relates to the original model's.
        original_dtype: Its type in the original model.
        original_shape: Its shape in the original model.
        scale: Quantization step, or None for a tensor that is not quantized.
        zero_point: Quantized value that stands for 0.0, or None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    original_dtype: str
    original_shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that was converted. `macs` counts one inference of the converted graph."""

    name: str
    source: str
    sha256: str | None
    parameters: int
    macs: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline. `peak_memory` is the process's peak resident size in it."""

    name: str
    seconds: float
    peak_memory: int


@dataclass(frozen=True, slots=True)
class PassChange:
    """A pass that changed something, in how many places."""

    name: str
    kind: Literal["graph", "flatbuffer"]
    changes: int
    summary: str


@dataclass(frozen=True, slots=True)
class OperatorPlacement:
    """Where one operator runs.

    Attributes:
        index: Position in the file that was given to the compiler.
        operator: Name, such as `CONV_2D`.
        version: Operator version in the file.
        on: Unit that runs it, such as `npu`, `edgetpu` or `cpu`; `uncertain` where nobody knows,
            `removed` where the compiler found it without effect.
        reason: Why, in the compiler's own words where there are any.
        source: Who says so: a compiler and its version, or the document behind a prediction.
    """

    index: int
    operator: str
    version: int
    on: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where all operators run, and into how many accelerated parts the graph falls."""

    operators: tuple[OperatorPlacement, ...]
    partitions: int

    def count(self) -> dict[str, int]:
        """Returns the number of operators for each unit, in order of appearance."""
        counts: dict[str, int] = {}
        for operator in self.operators:
            counts[operator.on] = counts.get(operator.on, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class CompilerReport:
    """What became of the target's compiler.

    Attributes:
        name: The compiler, or `none`.
        version: Its version, where known.
        status: `compiled`, `not found` or `not needed`.
        message: One sentence for the user: what it did, or how to get it.
        metrics: Figures that the compiler gave, such as cycles or bytes of SRAM.
    """

    name: str
    version: str | None
    status: Literal["compiled", "not found", "not needed"]
    message: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """How one output of the artefact differs from the original model's, over all samples.

    SQNR is 10·log10(Σ reference² / Σ difference²), held to ±200 dB (200: exact). Agreement is
    the share of rows with the same best class, and of rows whose best class is among the
    artefact's best five; None where the output is no classification, or has no more than five.
    """

    output: str
    sqnr_db: float
    cosine: float
    max_abs_difference: float
    top1_agreement: float | None = None
    top5_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The artefact on one runner against the original model, on one set of samples."""

    runner: str
    samples: Literal["example", "calibration", "evaluation"]
    count: int
    outputs: tuple[OutputAccuracy, ...]
    median_ms: float


@dataclass(frozen=True, slots=True)
class Gate:
    """A threshold that the artefact had to meet, on the worst output and runner.

    `samples` names the set that was judged: evaluation samples if there are any, else those of
    the calibration, else the example inputs.
    """

    name: str
    threshold: float
    value: float
    passed: bool
    samples: Literal["example", "calibration", "evaluation"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of the artefact. `role` says what it is for: `model` is the one to ship."""

    role: str
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is known about one conversion."""

    verdict: Verdict
    target: str
    recipe: str
    model: ModelInfo
    stages: tuple[Stage, ...]
    passes: tuple[PassChange, ...]
    compiler: CompilerReport
    placement: Placement
    accuracy: tuple[Accuracy, ...]
    gates: tuple[Gate, ...]
    files: tuple[FileInfo, ...]
    warnings: tuple[str, ...]
    options: dict[str, Any]
    versions: dict[str, str]
    schema_version: str = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-ready data, `schema_version` first."""
        data = dataclasses.asdict(self)
        return {"schema_version": data.pop("schema_version"), **data}

    def to_json(self) -> str:
        """Returns the report as indented JSON text."""
        return to_json(self.to_dict())


def to_json(data: Any) -> str:
    """Writes data of edgeport's reports as JSON; NaN and infinity are refused as a bug."""
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `Report.to_dict()`."""
    text = importlib.resources.files("edgeport").joinpath("report.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
