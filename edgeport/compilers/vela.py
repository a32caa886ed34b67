"""Arm's compiler for Ethos-U, called as a child process.

Owns how vela is called and how its files are read: the compiled flatbuffer tells the placement,
the log the reasons, the summary CSV the figures.
"""

from __future__ import annotations

import csv
import importlib.metadata
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edgeport import flatbuffer
from edgeport.errors import CompilerError, MissingDependencyError, ModelFileError, from_os_error
from edgeport.report import CompilerReport, OperatorPlacement, Placement
from edgeport.targets.base import Availability, Compilation

_PACKAGE = "ethos-u-vela"
_EXTRA = "ethos-u"
_NPU_OPERATOR = "CUSTOM:ethos-u"
_OPTIONS = ("--show-cpu-operations", "--verbose-performance", "--enable-debug-db")

# (metric of ours, column of the summary CSV, factor). The CSV gives memory in KiB, weights in
# bytes and time in seconds, as its writer (ethosu/vela/stats_writer.py) and the log show.
_METRICS = (
    ("cycles_total", "cycles_total", 1.0),
    ("cycles_npu", "cycles_npu", 1.0),
    ("sram_bytes", "sram_memory_used", 1024.0),
    ("dram_bytes", "dram_memory_used", 1024.0),
    ("on_chip_flash_bytes", "on_chip_flash_memory_used", 1024.0),
    ("off_chip_flash_bytes", "off_chip_flash_memory_used", 1024.0),
    ("inference_ms", "inference_time", 1000.0),
    ("core_clock_hz", "core_clock", 1.0),
    ("nn_macs", "nn_macs", 1.0),
    ("weights_bytes", "total_original_weights", 1.0),
    ("npu_weights_bytes", "total_npu_encoded_weights", 1.0),
)

# Vela's words on an operator that it leaves to the CPU, in both of its cores: an empty line ends
# them in the new one (regor), a line that is not indented in the one before it.
_WARNINGS = (
    re.compile(
        r"^Warning \(.*\) operator: .*, ofm: '(?P<name>.*)'\nReason: (?P<why>.+(?:\n.+)*)",
        re.MULTILINE,
    ),
    re.compile(
        r"^Warning: .* '(?P<name>.*)'.* Placing on CPU instead\n - (?P<why>.+(?:\n[ \t]+.+)*)",
        re.MULTILINE,
    ),
    re.compile(r"^Info: .* '(?P<name>.*)' (?P<why>is a CPU only op)", re.MULTILINE),
)
# Vela splits a fused activation off and calls the tensor between the two so.
_FUSED_SUFFIX = "_act"


@dataclass(frozen=True, slots=True)
class Vela:
    """Compiles integer flatbuffers for one Ethos-U configuration.

    Attributes:
        accelerator: Configuration in vela's spelling, such as `ethos-u55-128`.
        command: Arguments of the Python interpreter that start vela.
        time_limit: Seconds after which vela is ended.
    """

    accelerator: str
    command: tuple[str, ...] = ("-m", "ethosu.vela")
    time_limit: float = 600.0

    def available(self) -> Availability:
        """Looks for the installed package without importing it."""
        version = _version()
        if version is None:
            return Availability(False, _PACKAGE, f"pip install 'edgeport[{_EXTRA}]'")
        return Availability(True, f"vela {version}")

    def compile(self, model: bytes, name: str, work: Path) -> Compilation:
        """Compiles for the NPU; what vela refuses stays in the file for the CPU.

        The names of tensors inside the compiled file differ from the given ones where those
        were empty or repeated; signatures stay.

        Raises:
            CompilerError: Vela failed, did not end in time, or left nothing to the NPU.
            MissingDependencyError: Vela is not installed.
        """
        version = _version()
        if version is None:
            raise MissingDependencyError(
                _PACKAGE, needed_for=f"compiling for {self.accelerator}", extra=_EXTRA
            )
        given = flatbuffer.parse(model)
        if not given.subgraphs or not given.subgraphs[0].operators:
            raise CompilerError("the model has no operators, so there is nothing to compile")
        _refuse_compiled(given)
        _make_names_unique(given)
        try:
            (work / "model.tflite").write_bytes(flatbuffer.serialize(given))
            log = self._run(version, work)
        except OSError as e:
            raise from_os_error(e, "compiling with vela") from e
        content = _read_output(work / "model_vela.tflite", version, log)
        compiled = flatbuffer.parse(content, where="vela's output")
        reasons = cpu_reasons(log)
        placement = _placement(given, compiled, reasons, f"vela {version}")
        on_npu = placement.count().get("npu", 0)
        if not placement.partitions:
            raise _nothing_for_npu(self.accelerator, version, reasons)
        row = _summary(work)
        metrics = _metrics(row)
        message = (
            f"{on_npu} of {len(placement.operators)} operators on the "
            f"{self.accelerator.capitalize().replace('-u', '-U')} NPU"
            + _estimate(metrics, row.get("system_config", ""))
        )
        report = CompilerReport("vela", version, "compiled", message, metrics)
        return Compilation(report, placement, {"model": (f"{name}_vela.tflite", content)})

    def _run(self, version: str, work: Path) -> str:
        """Runs vela on `work`/model.tflite and returns its log."""
        arguments = [
            sys.executable, *self.command, "model.tflite", "--output-dir", ".",
            "--accelerator-config", self.accelerator, *_OPTIONS,
        ]  # fmt: skip
        log = work / "vela.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=work,  # `-m` looks here first: a folder `ethosu` of the user's must not win
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # keeps the log of a killed vela
                start_new_session=True,
            )
            try:
                status = process.wait(self.time_limit)
            except subprocess.TimeoutExpired:
                raise CompilerError(
                    f"vela {version} did not end within {self.time_limit:g} s",
                    hint="a smaller model compiles faster; so do smaller inputs",
                ) from None
            finally:
                _end(process)
        text = log.read_text("utf-8", "replace")
        if status != 0:
            raise CompilerError(
                f"vela {version} failed on the model for {self.accelerator}"
                f" ({_how_it_ended(status)}): {_telling_line(text)}",
                hint="another configuration of the accelerator may take it; "
                "`--target cpu` converts without vela",
            )
        return text


def _version() -> str | None:
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a child that still runs, with everything that it started."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:  # Windows has no process groups of this kind
            process.kill()
        process.wait()


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _telling_line(log: str) -> str:
    """Returns the line of a failed vela's log that says most."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [n for n in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", n)]
    rest = [n for n in lines if not n.startswith(("Warning", "Reason:", "TfLiteReader:"))]
    return (errors or rest or ["it said nothing"])[-1]


def _read_output(path: Path, version: str, log: str) -> bytes:
    try:
        return flatbuffer.read_file(path)
    except ModelFileError:
        raise CompilerError(
            f"vela {version} ended well but wrote no model that can be read: {_telling_line(log)}"
        ) from None


def _refuse_compiled(model: flatbuffer.Model) -> None:
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or []:
            if flatbuffer.operator_name(model, operator) == _NPU_OPERATOR:
                raise CompilerError(
                    "the model is compiled for Ethos-U already",
                    hint="give the flatbuffer that vela made it from",
                )


def _make_names_unique(model: flatbuffer.Model) -> None:
    """Gives the tensors of the main subgraph names by which they are found in vela's output.

    Inputs and outputs of the graph come first, so that they keep theirs.
    """
    subgraph = model.subgraphs[0]
    border = [int(i) for i in (*subgraph.inputs, *subgraph.outputs)]
    seen: set[str] = set()
    for index in dict.fromkeys([*border, *range(len(subgraph.tensors))]):
        tensor = subgraph.tensors[index]
        name = "".join(c if c.isprintable() else " " for c in flatbuffer.tensor_name(tensor))
        stem = name or "tensor"
        while not name or name in seen:
            name = f"{stem}_{index}"
            stem = name
        seen.add(name)
        tensor.name = name.encode()


def _output_names(subgraph: flatbuffer.SubGraph, operator: flatbuffer.Operator) -> list[str]:
    return [
        flatbuffer.tensor_name(subgraph.tensors[i]) for i in flatbuffer.indices(operator.outputs)
    ]


def cpu_reasons(log: str) -> dict[str, str]:
    """Finds vela's reasons for the CPU in its log.

    Returns:
        The first reason for each operator, by the name of its output, on one line.
    """
    found: dict[str, str] = {}
    for pattern in _WARNINGS:
        for match in pattern.finditer(log):
            lines = [" ".join(line.split()) for line in match["why"].splitlines()]
            found.setdefault(match["name"], "; ".join(lines))
    return found


def _placement(
    given: flatbuffer.Model, compiled: flatbuffer.Model, reasons: dict[str, str], source: str
) -> Placement:
    """Finds the operators of the given main subgraph in the compiled one.

    What is left over in the compiled file runs on the CPU; it is recognised by its outputs,
    whose names vela keeps.
    """
    main = compiled.subgraphs[0]
    names = [flatbuffer.operator_name(compiled, o) for o in main.operators or []]
    left_over = [
        frozenset(_output_names(main, operator))
        for operator, name in zip(main.operators or [], names, strict=True)
        if name != _NPU_OPERATOR
    ]
    on_cpu = frozenset[str]().union(*left_over)
    subgraph = given.subgraphs[0]
    needed = _needed(subgraph)
    known = {n for o in subgraph.operators or [] for n in _output_names(subgraph, o)}
    # An operator of the compiled file that nobody knows could be any of those not found.
    certain = all(outputs & known for outputs in left_over)
    operators = []
    for index, operator in enumerate(subgraph.operators or []):
        outputs = _output_names(subgraph, operator)
        if on_cpu.intersection(outputs):
            on, reason = "cpu", _reason(outputs, reasons)
        elif index not in needed:
            on, reason = "removed", "vela left it out: no output of the model depends on it"
        elif certain:
            on, reason = "npu", "vela compiled it for the NPU"
        else:
            on, reason = "uncertain", "vela wrote CPU operators that are not in the model"
        operators.append(
            OperatorPlacement(
                index=index,
                operator=flatbuffer.operator_name(given, operator),
                version=flatbuffer.operator_version(given, operator),
                on=on,
                reason=reason,
                source=source,
            )
        )
    partitions = sum(
        flatbuffer.operator_name(compiled, o) == _NPU_OPERATOR
        for s in compiled.subgraphs
        for o in s.operators or []
    )
    return Placement(tuple(operators), partitions)


def _reason(outputs: list[str], reasons: dict[str, str]) -> str:
    for name in (*outputs, *(n + _FUSED_SUFFIX for n in outputs)):
        if name in reasons:
            return reasons[name]
    return "vela leaves it to the CPU and gives no reason"


def _needed(subgraph: flatbuffer.SubGraph) -> set[int]:
    """Returns the operators that an output of the subgraph depends on."""
    wanted = {int(i) for i in subgraph.outputs}
    needed = set()
    for index, operator in reversed(list(enumerate(subgraph.operators or []))):
        outputs = flatbuffer.indices(operator.outputs)
        if not outputs or wanted.intersection(outputs):  # none at all: it has another effect
            needed.add(index)
            wanted.update(flatbuffer.indices(operator.inputs))
    return needed


def _nothing_for_npu(accelerator: str, version: str, reasons: dict[str, str]) -> CompilerError:
    why, count = Counter(reasons.values()).most_common(1)[0] if reasons else ("", 0)
    told = f"; {count} times: {why}" if count > 1 else f": {why}" if why else ""
    hint = "the NPU takes integer models: convert with the recipe static_wi8_ai8"
    if "Float" not in " ".join(reasons.values()):
        hint = "`vela --supported-ops-report` lists what the NPU takes"
    return CompilerError(f"vela {version} leaves nothing to the {accelerator} NPU{told}", hint=hint)


def _summary(work: Path) -> dict[str, str]:
    """Returns the row of the summary CSV, or nothing where vela wrote none."""
    for path in sorted(work.glob("model_summary_*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                return {k: v for k, v in row.items() if k and v}
    return {}


def _metrics(row: dict[str, str]) -> dict[str, float]:
    metrics = {}
    for name, column, factor in _METRICS:
        try:
            value = float(row.get(column, "nan")) * factor
        except ValueError:
            continue
        if math.isfinite(value):
            metrics[name] = float(f"{value:.12g}")  # 19.257526, not 19.257526000000002
    return metrics


def _estimate(metrics: dict[str, float], system: str) -> str:
    if not {"cycles_total", "inference_ms", "core_clock_hz"} <= metrics.keys():
        return ""
    return (
        f", {metrics['cycles_total']:,.0f} cycles ({metrics['inference_ms']:.3g} ms at "
        f"{metrics['core_clock_hz'] / 1e6:.0f} MHz, estimated by vela"
        + (f" for the system {system})" if system else ")")
    )
