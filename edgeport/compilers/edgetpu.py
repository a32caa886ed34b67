"""Google's compiler for the Coral Edge TPU, and what to do where it is absent.

`edgetpu_compiler` 16.0 (2021) is the last release: a program for x86-64 Linux that is no longer
in its apt repository. Where it is found it makes the file to ship and is the authority on the
placement; elsewhere the placement is predicted and the user is told how to compile later.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edgeport import flatbuffer
from edgeport.compilers import edgetpu_placement
from edgeport.errors import CompilerError, ModelFileError
from edgeport.report import CompilerReport, OperatorPlacement, Placement
from edgeport.targets.base import Availability, Compilation

COMPILER = "edgetpu_compiler"
VARIABLE = "EDGETPU_COMPILER"
CUSTOM_OPERATOR = "CUSTOM:edgetpu-custom-op"
_RUNTIME = 14  # the newest runtime version; operators map best for it
_COMPILER_SECONDS = 180  # the compiler's own limit and its default
_LOG_NAME = "edgetpu_compiler.log"

_HOW = (
    "the compiler runs on x86-64 Linux only and is no longer in its apt repository: take a copy of "
    f"version 16.0 and put it on PATH or name it in ${VARIABLE}; or compile the .tflite file "
    f"later, on such a machine, with `{COMPILER} -s -m {_RUNTIME} FILE`"
)

# What in the compiler's output means what, and what to do; the first that occurs wins.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"Didn't find op for builtin opcode '(\w+)' version '(\d+)'",
        "the Edge TPU compiler refuses the whole file: it does not know version {1} of {0}",
        (
            "see that the pass `lower_operator_versions` runs; a version that remains comes from "
            "an option of the operator, such as a grouped convolution, which has to be replaced "
            "in the model"
        ),
    ),
    (
        r"Op builtin_code out of range: (\d+)",
        "the Edge TPU compiler refuses the whole file: it does not know operator {0}",
        "replace the operator in the model, such as GELU (150) by its tanh form",
    ),
    (
        r"Model not quantized",
        "the Edge TPU compiler refuses the file because it is not quantized to 8 bits",
        "quantize weights and activations: the recipe static_wi8_ai8",
    ),
    (
        r"only supports static-sized tensors",
        "the Edge TPU compiler can't compile tensors of dynamic size",
        "give example inputs of fixed shapes, with batch size 1",
    ),
    (
        r"large activation tensors|Compilation timeout\.",
        "the Edge TPU compiler failed on large activations",
        "use a smaller input or fewer channels at high resolution, or cut the model",
    ),
    (
        r"Internal compiler error",
        "the Edge TPU compiler stopped with an internal error",
        (
            "this is often a tensor too large to place: try a smaller input, or cut the model at "
            "the largest activation; the same file is also known to compile at another try"
        ),
    ),
    (
        r"could not be parsed|Invalid model",
        "the Edge TPU compiler can't parse the file",
        "run it by hand to see all of its output",
    ),
)

_SAYS_NOTHING = (
    "Edge TPU Compiler version",
    "Started a compilation",
    "Compilation child process",
    "Compilation failed!",
)

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_METRICS = {
    "on_chip_bytes": "On-chip memory used for caching model parameters",
    "on_chip_free_bytes": "On-chip memory remaining for caching model parameters",
    "off_chip_bytes": "Off-chip memory used for streaming uncached model parameters",
}


@dataclass(frozen=True, slots=True)
class CompilerLog:
    """What the compiler's output says.

    Attributes:
        version: Its version, or None.
        metrics: Bytes of parameters cached on the chip, left there, and streamed; rounded, as
            the compiler prints them with two decimals.
        statuses: For each kind of operator its statuses other than mapped.
    """

    version: str | None
    metrics: dict[str, float]
    statuses: dict[str, tuple[str, ...]]


def parse_log(text: str) -> CompilerLog:
    """Reads the output of `edgetpu_compiler -s`."""
    version = re.search(r"Edge TPU Compiler version (\S+)", text)
    metrics = {}
    for name, label in _METRICS.items():
        found = re.search(rf"{label}: ([\d.]+)(B|KiB|MiB|GiB)\b", text)
        if found:
            metrics[name] = float(found[1]) * _UNITS[found[2]]
    statuses: dict[str, tuple[str, ...]] = {}
    for row in re.finditer(
        r"^([A-Z][A-Z0-9_]+)[ \t]+\d+[ \t]+(\S.*?)[ \t\r]*$", text, re.MULTILINE
    ):
        if row[2] != edgetpu_placement.MAPPED:
            statuses[row[1]] = (*statuses.get(row[1], ()), row[2])
    return CompilerLog(version[1] if version else None, metrics, statuses)


@dataclass(frozen=True, slots=True)
class EdgeTpuCompiler:
    """Runs `edgetpu_compiler`, or predicts what it would do.

    Attributes:
        time_limit: Seconds after which it is stopped; above its own limit, which it reports.
    """

    time_limit: float = _COMPILER_SECONDS + 60.0

    def available(self) -> Availability:
        """Looks at $EDGETPU_COMPILER, then for `edgetpu_compiler` on PATH."""
        named = os.environ.get(VARIABLE)
        path = shutil.which(named or COMPILER)
        if path is not None:
            return Availability(True, f"{COMPILER} ({path})")
        if named:
            return Availability(False, f"${VARIABLE} names `{named}`, which can't be run", _HOW)
        return Availability(False, COMPILER, _HOW)

    def compile(self, model: bytes, name: str, work: Path) -> Compilation:
        """Compiles a flatbuffer; without the compiler only the placement is predicted.

        Args:
            model: A LiteRT flatbuffer, fully quantized to 8 bits.
            name: Stem for the names of files made.
            work: Folder for the compiler's files; its output is kept there as
                `edgetpu_compiler.log`.

        Returns:
            The placement and, where compiled, the file `NAME_edgetpu.tflite`. Metrics are bytes
            of parameters and `edgetpu_subgraphs`.

        Raises:
            CompilerError: The compiler refused the model, failed or did not end in time.
        """
        path = shutil.which(os.environ.get(VARIABLE) or COMPILER)
        if path is None:
            return self._predict(model, name)
        work = work.resolve()  # the compiler runs in it, so relative paths would mislead it
        source = work / f"{name}.tflite"
        source.write_bytes(model)
        text = self._run(os.path.abspath(path), source, work)
        log = parse_log(text)
        compiled = _read_compiled(work / f"{name}_edgetpu.tflite", source.name, text)
        placement = placement_of(model, compiled, log)
        metrics = {**log.metrics, "edgetpu_subgraphs": float(placement.partitions)}
        report = CompilerReport(
            COMPILER, log.version, "compiled", _summary(placement, metrics), metrics
        )
        files = {"model": (f"{name}_edgetpu.tflite", compiled)}
        return Compilation(report, placement, files)

    def _predict(self, model: bytes, name: str) -> Compilation:
        placement = edgetpu_placement.predict(model)
        command = f"{COMPILER} -s -m {_RUNTIME} {name}.tflite"
        what = self.available().what
        message = (
            f"{'' if what == COMPILER else what + ': '}the file is not compiled yet and the "
            f"placement is predicted; compile it with `{command}` on x86-64 Linux (version 16.0)"
        )
        reasons = {operator.reason for operator in placement.operators}
        if not placement.partitions and len(reasons) == 1:
            message += f"; it would map nothing: {reasons.pop()}"
        return Compilation(CompilerReport(COMPILER, None, "not found", message), placement)

    def _run(self, path: str, source: Path, work: Path) -> str:
        """Runs the compiler on a file and returns its output."""
        arguments = [path, "-s", "-o", str(work), "-m", str(_RUNTIME)]
        arguments += ["-t", str(_COMPILER_SECONDS), str(source)]
        log = work / _LOG_NAME
        try:
            with log.open("wb") as output:
                # A session of its own: the compiler works in a child, which must end with it.
                process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=work,
                    start_new_session=True,
                )
                try:
                    code = process.wait(timeout=self.time_limit)
                finally:
                    _end(process)
        except subprocess.TimeoutExpired:
            raise CompilerError(
                f"the Edge TPU compiler did not end within {self.time_limit:g} seconds",
                where=source.name,
                hint="use a smaller input or cut the model: large activations are the usual cause",
            ) from None
        except OSError as e:
            raise CompilerError(
                f"the Edge TPU compiler can't be run: {e.strerror or e}", where=path, hint=_HOW
            ) from None
        text = log.read_text("utf-8", "replace")
        if code != 0:
            raise _failure(text, source.name, code)
        return text


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(text: str, where: str, code: int) -> CompilerError:
    for pattern, what, hint in _FAILURES:
        found = re.search(pattern, text)
        if found:
            return CompilerError(what.format(*found.groups()), where=where, hint=hint)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_SAYS_NOTHING)]
    last = (telling or lines or ["it printed nothing"])[-1].rstrip(".! ")
    ended = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return CompilerError(
        f"the Edge TPU compiler {ended}: {last}",
        where=where,
        hint="run it by hand on the file; `-d` makes it look for a part that it can compile",
    )


def _read_compiled(path: Path, source: str, text: str) -> bytes:
    try:
        return flatbuffer.read_file(path)
    except ModelFileError as e:
        # Some failures end with exit code 0 and no file.
        if not path.exists():
            raise _failure(text, source, 0) from None
        raise CompilerError(
            f"the Edge TPU compiler wrote a bad file: {e.what}", where=path.name
        ) from e


def placement_of(model: bytes, compiled: bytes, log: CompilerLog) -> Placement:
    """Reads the placement off the compiled file.

    Operators that are still ordinary there were left on the CPU; all others went into the custom
    operators. The compiler keeps the names of tensors, by which operators are recognized. The
    reason is the log's where all unmapped operators of the kind share one.

    Args:
        model: The flatbuffer that was compiled.
        compiled: What the compiler made of it.
        log: Its output.
    """
    parsed, after = flatbuffer.parse(model), flatbuffer.parse(compiled)
    left = Counter(_identities(after))
    source = f"{COMPILER} {log.version}" if log.version else COMPILER
    placed = []
    for i, (operator, identity) in enumerate(
        zip(parsed.subgraphs[0].operators or [], _identities(parsed), strict=True)
    ):
        name = flatbuffer.operator_name(parsed, operator)
        on_cpu = left[identity] > 0
        left[identity] -= on_cpu
        placed.append(
            OperatorPlacement(
                index=i,
                operator=name,
                version=flatbuffer.operator_version(parsed, operator),
                on="cpu" if on_cpu else "edgetpu",
                reason=_reason(log, name) if on_cpu else edgetpu_placement.MAPPED,
                source=source,
            )
        )
    partitions = sum(name == CUSTOM_OPERATOR for name, _ in _identities(after))
    return Placement(tuple(placed), partitions)


def _identities(model: flatbuffer.Model) -> list[tuple[str, tuple[str, ...]]]:
    """Names each operator by its kind and the names of its outputs."""
    main = model.subgraphs[0]
    return [
        (
            flatbuffer.operator_name(model, operator),
            tuple(
                flatbuffer.tensor_name(main.tensors[i])
                for i in flatbuffer.indices(operator.outputs)
            ),
        )
        for operator in main.operators or []
    ]


def _reason(log: CompilerLog, name: str) -> str:
    statuses = log.statuses.get(name.split(":")[0], ())  # all custom operators are `CUSTOM` there
    if not statuses:
        return "left on the CPU; the log does not say why"
    return statuses[0] if len(statuses) == 1 else "one of: " + "; ".join(statuses)


def _summary(placement: Placement, metrics: dict[str, float]) -> str:
    mapped = placement.count().get("edgetpu", 0)
    text = f"{mapped} of {len(placement.operators)} operators are mapped to the Edge TPU"
    streamed = metrics.get("off_chip_bytes", 0.0)
    if streamed:
        text += f"; {streamed / (1 << 20):.2f} MiB of parameters are streamed at every inference"
    return text
