"""Vela itself on small int8 models, and stand-ins for a vela that breaks."""

import importlib
import os
import re
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.compilers import vela as vela_module
from edgeport.compilers.vela import Vela, cpu_reasons
from edgeport.errors import CompilerError, MissingDependencyError
from edgeport.targets.base import Compilation
from edgeport.targets.ethos_u import TARGETS
from tests import flatbuffers
from tests.flatbuffers import OpSpec, TensorSpec, constant, op, tensor

SHAPE = (1, 8, 8, 8)
needs_vela = pytest.mark.skipif(
    not Vela("ethos-u55-128").available().ok, reason="ethos-u-vela is not installed"
)


def convolution(x: TensorSpec, y: TensorSpec) -> OpSpec:
    values = np.random.default_rng(0).integers(-127, 127, (8, 1, 1, 8), dtype=np.int8)
    weights = constant(f"weights of {y.name}", values, scale=[0.01] * 8)
    bias = constant(f"bias of {y.name}", np.zeros(8, np.int32), scale=[0.001] * 8)
    return op("CONV_2D", [x, weights, bias], [y], version=3)


def cumulative_sum(x: TensorSpec, y: TensorSpec) -> OpSpec:
    """Vela 5.2 leaves CUMSUM to the CPU in all configurations."""
    return op("CUMSUM", [x, constant(f"axis of {y.name}", np.array(1, np.int32))], [y])


def with_cpu_operator() -> list[OpSpec]:
    x, a, b, c = (tensor(n, SHAPE) for n in ("x", "a", "b", "c"))
    return [convolution(x, a), cumulative_sum(a, b), convolution(b, c)]


def compiled(operators: list[OpSpec], work: Path, accelerator: str = "ethos-u55-128") -> Any:
    return Vela(accelerator).compile(flatbuffers.build_bytes(operators), "net", work)


def units(compilation: Compilation) -> list[str]:
    return [o.on for o in compilation.placement.operators]


@needs_vela
@pytest.mark.parametrize("accelerator", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-512"])
def test_an_operator_that_the_npu_lacks_is_placed_on_the_cpu_with_velas_reason(
    tmp_path: Path, accelerator: str
) -> None:
    result = compiled(with_cpu_operator(), tmp_path, accelerator)
    assert units(result) == ["npu", "cpu", "npu"]
    assert [o.operator for o in result.placement.operators] == ["CONV_2D", "CUMSUM", "CONV_2D"]
    assert [o.version for o in result.placement.operators] == [3, 1, 3]
    assert result.placement.operators[1].reason == "Unsupported opType"
    assert result.placement.operators[0].source == f"vela {version('ethos-u-vela')}"
    assert result.placement.partitions == 2
    # Vela's own account of the same
    log = (tmp_path / "vela.log").read_text()
    assert re.search(r"^CPU operators = 1 .*\n   CPU: \w+ = b ", log, re.MULTILINE)
    layers = (tmp_path / "model_per-layer.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in layers if ",CPU," in line] == ["Cumsum"]


@needs_vela
def test_the_compiled_file_holds_the_npu_operators_and_the_border(tmp_path: Path) -> None:
    name, content = compiled(with_cpu_operator(), tmp_path).files["model"]
    assert name == "net_vela.tflite"
    model = flatbuffer.parse(content)
    main = model.subgraphs[0]
    names = [flatbuffer.operator_name(model, o) for o in main.operators]
    assert names == ["CUSTOM:ethos-u", "CUMSUM", "CUSTOM:ethos-u"]
    border = [flatbuffer.tensor_name(main.tensors[i]) for i in (*main.inputs, *main.outputs)]
    assert border == ["x", "c"]


@needs_vela
def test_figures_come_from_the_summary_in_bytes_and_milliseconds(tmp_path: Path) -> None:
    report = compiled(with_cpu_operator(), tmp_path).report
    log = (tmp_path / "vela.log").read_text()
    kib = re.search(r"Total SRAM used +([\d.]+) KiB", log)
    assert kib is not None
    assert report.metrics["sram_bytes"] == pytest.approx(float(kib[1]) * 1024, abs=6)
    assert report.metrics["nn_macs"] == 2 * 8 * 8 * 8 * 8
    assert report.metrics["weights_bytes"] >= 2 * 64
    cycles, clock = report.metrics["cycles_total"], report.metrics["core_clock_hz"]
    assert report.metrics["inference_ms"] == pytest.approx(cycles / clock * 1000)
    assert (report.name, report.status, report.version) == (
        "vela", "compiled", version("ethos-u-vela"),
    )  # fmt: skip
    assert report.message.startswith(
        f"2 of 3 operators on the Ethos-U55-128 NPU, {cycles:,.0f} cycles ("
    )
    assert "at 500 MHz, estimated by vela" in report.message


@needs_vela
@pytest.mark.parametrize("names", ["", "same", "line\nReason: break"])
def test_names_that_repeat_or_are_missing_do_not_confuse_the_placement(
    tmp_path: Path, names: str
) -> None:
    model = flatbuffers.build(with_cpu_operator())
    for made in model.subgraphs[0].tensors:
        made.name = names
    result = Vela("ethos-u55-128").compile(flatbuffer.serialize(model), "net", tmp_path)
    assert units(result) == ["npu", "cpu", "npu"]
    assert result.placement.operators[1].reason == "Unsupported opType"


@needs_vela
def test_signatures_survive(tmp_path: Path) -> None:
    model = flatbuffers.build(with_cpu_operator())
    s = flatbuffer.schema()
    main = model.subgraphs[0]
    signature = s.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = "serving_default", 0
    entries = []
    for name, index in (("image", main.inputs[0]), ("logits", main.outputs[0])):
        entry = s.TensorMapT()
        entry.name, entry.tensorIndex = name, int(index)
        entries.append([entry])
    signature.inputs, signature.outputs = entries
    model.signatureDefs = [signature]
    result = Vela("ethos-u55-128").compile(flatbuffer.serialize(model), "net", tmp_path)
    shipped = flatbuffer.parse(result.files["model"][1])
    inputs, outputs = flatbuffer.signatures(shipped)["serving_default"]
    assert (list(inputs), list(outputs)) == (["image"], ["logits"])


@needs_vela
def test_float_borders_stay_on_the_cpu(tmp_path: Path) -> None:
    x, y = tensor("x", SHAPE, "float32"), tensor("y", SHAPE, "float32")
    a, b = tensor("a", SHAPE), tensor("b", SHAPE)
    operators = [op("QUANTIZE", [x], [a]), convolution(a, b), op("DEQUANTIZE", [b], [y], 2)]
    result = compiled(operators, tmp_path)
    assert units(result) == ["cpu", "npu", "cpu"]
    assert "unsupported DataType Float32 (x); " in result.placement.operators[0].reason


@needs_vela
def test_an_operator_whose_first_output_is_not_used_is_found_by_the_other(tmp_path: Path) -> None:
    x, a = tensor("x", SHAPE), tensor("a", SHAPE)
    best, where = tensor("best", (1, 8, 8, 2)), tensor("where", (1, 8, 8, 2), "int32")
    top = op("TOPK_V2", [a, constant("k", np.array(2, np.int32))], [best, where])
    model = flatbuffers.build_bytes([convolution(x, a), top], outputs=[where])
    result = Vela("ethos-u55-128").compile(model, "net", tmp_path)
    assert units(result) == ["npu", "cpu"]


@needs_vela
def test_an_operator_without_use_counts_neither_for_the_npu_nor_the_cpu(tmp_path: Path) -> None:
    x, a, b = (tensor(n, SHAPE) for n in ("x", "a", "b"))
    operators = [convolution(x, a), convolution(a, b)]
    model = flatbuffers.build_bytes(operators, outputs=[a])
    result = Vela("ethos-u55-128").compile(model, "net", tmp_path)
    assert units(result) == ["npu", "removed"]
    assert result.report.message.startswith("1 of 2 operators")


@needs_vela
def test_a_float_model_is_refused_and_the_recipe_named(tmp_path: Path) -> None:
    x, y = tensor("x", SHAPE, "float32"), tensor("y", SHAPE, "float32")
    with pytest.raises(CompilerError, match="leaves nothing to the ethos-u55-128 NPU") as caught:
        compiled([op("ABS", [x], [y])], tmp_path)
    assert "unsupported DataType Float32 (x)" in caught.value.what
    assert "static_wi8_ai8" in (caught.value.hint or "")


@needs_vela
def test_a_model_of_cpu_operators_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"leaves nothing .*: Unsupported opType") as caught:
        compiled([cumulative_sum(tensor("x", SHAPE), tensor("y", SHAPE))], tmp_path)
    assert "--supported-ops-report" in (caught.value.hint or "")


@needs_vela
def test_a_model_without_operators_is_refused(tmp_path: Path) -> None:
    model = flatbuffers.build(with_cpu_operator())
    model.subgraphs[0].operators = []
    with pytest.raises(CompilerError, match="no operators"):
        Vela("ethos-u55-128").compile(flatbuffer.serialize(model), "net", tmp_path)


@needs_vela
def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    _, content = compiled(with_cpu_operator(), tmp_path).files["model"]
    with pytest.raises(CompilerError, match="compiled for Ethos-U already"):
        Vela("ethos-u55-128").compile(content, "net", tmp_path)


@needs_vela
def test_vela_refuses_an_unknown_accelerator_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="invalid choice: 'ethos-u99-1'"):
        compiled(with_cpu_operator(), tmp_path, "ethos-u99-1")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Compilation]:
    """Runs Python code in vela's place; a vela of version 9.9 seems to be installed."""
    monkeypatch.setattr(vela_module.importlib.metadata, "version", lambda _: "9.9")  # type: ignore[attr-defined]

    def run(code: str, time_limit: float = 60.0) -> Compilation:
        vela = Vela("ethos-u55-128", command=("-c", code), time_limit=time_limit)
        return vela.compile(flatbuffers.build_bytes(with_cpu_operator()), "net", tmp_path)

    return run


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('Non-passthrough operation')",
         r"exit status 1\): RuntimeError: Non-passthrough operation"),
        ("print('Warning: noise'); raise SystemExit(3)", r"exit status 3\): it said nothing"),
        ("print('the last word', flush=True); import os; os.abort()",
         r"killed by SIGABRT\): the last word"),
        ("print('done')", "ended well but wrote no model that can be read: done"),
        ("open('model_vela.tflite', 'wb').write(b'')", "wrote no model that can be read"),
    ],
)  # fmt: skip
def test_a_vela_that_fails_is_one_clear_error(
    stand_in: Callable[..., Compilation], code: str, message: str
) -> None:
    with pytest.raises(CompilerError, match=f"vela 9.9 .*{message}"):
        stand_in(code)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed grandchild may stay a zombie until the system's first process reaps it.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


HANGS = """
import subprocess, sys, pathlib, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("pid.part").write_text(str(child.pid))
pathlib.Path("pid.part").rename("pid")
time.sleep(600)
"""


def test_a_vela_that_hangs_is_ended(stand_in: Callable[..., Compilation]) -> None:
    with pytest.raises(CompilerError, match="vela 9.9 did not end within 0.5 s"):
        stand_in("import time; time.sleep(600)", time_limit=0.5)


def test_control_c_ends_vela_and_its_children(
    stand_in: Callable[..., Compilation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, timeout: float | None = None) -> int:
        monkeypatch.undo()
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(vela_module.subprocess.Popen, "wait", interrupted)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        stand_in(HANGS)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(1000):
        if not is_alive(pid):
            break
        time.sleep(0.01)
    assert not is_alive(pid)


def test_an_operator_of_the_output_that_is_not_in_the_model_makes_the_placement_uncertain(
    stand_in: Callable[..., Compilation], tmp_path: Path
) -> None:
    x, y = (tensor(n, SHAPE) for n in ("x", "y"))
    npu = op("CUSTOM", [x], [y], custom="ethos-u")
    odd = flatbuffers.build_bytes([npu, op("ABS", [y], [tensor("new", SHAPE)]), npu])
    (tmp_path / "odd").write_bytes(odd)
    result = stand_in("import os; os.rename('odd', 'model_vela.tflite')")
    assert units(result) == ["uncertain"] * 3
    assert result.report.message == "0 of 3 operators on the Ethos-U55-128 NPU"
    assert result.report.metrics == {}


def test_a_missing_vela_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vela_module.importlib.metadata, "version", missing)  # type: ignore[attr-defined]
    availability = Vela("ethos-u55-128").available()
    assert (availability.ok, availability.what) == (False, "ethos-u-vela")
    assert availability.how == "pip install 'edgeport[ethos-u]'"
    with pytest.raises(MissingDependencyError, match="needs the package `ethos-u-vela`") as caught:
        compiled(with_cpu_operator(), tmp_path)
    assert caught.value.hint == "pip install 'edgeport[ethos-u]'"


def test_the_words_of_the_older_core_are_understood() -> None:
    log = """
Warning: CONV_2D 'y' is not supported on the NPU. Placing on CPU instead
 - Strides must fulfil the following criteria:
        - Stride h must be between 1 and 3
   Op has stride WxH as: 8x8
Warning: Unsupported TensorFlow Lite semantics for ADD 'it's'. Placing on CPU instead
 - Tensors must have quantization parameters

Info: IF 'z' is a CPU only op
"""
    assert cpu_reasons(log) == {
        "y": "Strides must fulfil the following criteria:; - Stride h must be between 1 and 3; "
        "Op has stride WxH as: 8x8",
        "it's": "Tensors must have quantization parameters",
        "z": "is a CPU only op",
    }


@needs_vela
def test_the_targets_are_velas_accelerators() -> None:
    accelerators = importlib.import_module("ethosu.vela.architecture_features").Accelerator
    names = [t.name for t in TARGETS]
    assert sorted(names) == sorted(accelerators.member_list())
    assert [t.compiler.accelerator for t in TARGETS if isinstance(t.compiler, Vela)] == names


def test_aliases_leave_out_the_family() -> None:
    assert {t.name: t.aliases for t in TARGETS}["ethos-u55-128"] == ("u55-128",)
    assert len({a for t in TARGETS for a in t.aliases}) == len(TARGETS)
