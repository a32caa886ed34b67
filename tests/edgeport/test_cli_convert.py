"""`edgeport convert` from end to end, as few conversions as can show everything."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.errors import EXIT_GATE_FAILED, EXIT_GOOD
from edgeport.report import json_schema
from tests import tiny
from tests.command import Ended, edgeport, files_in

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Converted:
    """A finished conversion and a copy of its output folder as it was then."""

    ended: Ended
    folder: Path
    temporary: Path

    @property
    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / "report.json").read_text("utf-8"))
        return data

    def flatbuffer(self, name: str = "weights.tflite") -> flatbuffer.Model:
        return flatbuffer.parse((self.folder / name).read_bytes())


class Workshop:
    """A folder with a model and samples, in which conversions are made one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny.save_archive(folder / "weights.bin")
        self.samples = tiny.save_samples(folder / "samples", 24)

    def convert(self, name: str, *arguments: str | Path, output: Path | None = None) -> Converted:
        """Converts in a working folder of its own; without an output into the default one."""
        work, temporary = self.folder / name / "work", self.folder / name / "temporary"
        work.mkdir(parents=True)
        temporary.mkdir()
        where = ("--output", output) if output else ()
        ended = edgeport("convert", self.model, *arguments, *where, cwd=work, temporary=temporary)
        assert ended.code in (EXIT_GOOD, EXIT_GATE_FAILED), ended.err
        (made,) = [output] if output else work.iterdir()
        kept = self.folder / name / made.name
        shutil.copytree(made, kept)
        return Converted(ended, kept, temporary)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="module")
def edgetpu(workshop: Workshop) -> Converted:
    return workshop.convert(
        "edgetpu", "--target", "edgetpu", "--recipe", "w8a8", "--calibration", workshop.samples,
        "--keep-stages", "--json", output=workshop.folder / "out",
    )  # fmt: skip


@pytest.fixture(scope="module")
def again(workshop: Workshop, edgetpu: Converted) -> Converted:
    """The same once more: into the same folder, from elsewhere, quietly, with fewer files."""
    (workshop.folder / "out" / "notes.txt").write_text("mine")
    (workshop.folder / "out" / "theirs").mkdir()
    return workshop.convert(
        "again", "--target", "coral", "--calibration", workshop.samples, "-q",
        output=workshop.folder / "out",
    )  # fmt: skip


@pytest.fixture(scope="module")
def cpu(workshop: Workshop) -> Converted:
    return workshop.convert("cpu")


@pytest.fixture(scope="module")
def dynamic(workshop: Workshop) -> Converted:
    return workshop.convert(
        "dynamic", "--recipe", "dynamic_wi8_afp32", "--min-sqnr", "150", "--verbose",
        "--evaluation", workshop.samples, "--effort", "fast", output=workshop.folder / "dynamic_out",
    )  # fmt: skip


@pytest.fixture(scope="module")
def ethos(workshop: Workshop) -> Converted:
    pytest.importorskip("ethosu.vela", exc_type=ImportError)
    return workshop.convert("ethos", "--target", "ethos-u55-128", "--json", "-q")


@pytest.fixture(params=["edgetpu", "again", "cpu", "dynamic", "ethos"])
def any_of_them(request: pytest.FixtureRequest) -> Converted:
    converted: Converted = request.getfixturevalue(request.param)
    return converted


# --- what holds for all


def test_the_report_follows_its_schema(any_of_them: Converted) -> None:
    jsonschema.validate(any_of_them.report, json_schema())


def test_the_report_lists_exactly_the_files_that_are_there(any_of_them: Converted) -> None:
    import hashlib

    files = any_of_them.report["files"]
    others = {"notes.txt", "theirs"}
    assert {f["name"] for f in files} | {"report.json"} == files_in(any_of_them.folder) - others
    for file in files:
        content = (any_of_them.folder / file["name"]).read_bytes()
        assert len(content) == file["size"]
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert [f["role"] for f in files].count("model") == 1


def test_no_temporary_files_stay(any_of_them: Converted) -> None:
    assert files_in(any_of_them.temporary) == set()


def test_the_log_holds_text_and_no_traceback(any_of_them: Converted) -> None:
    assert "Traceback" not in (any_of_them.folder / "edgeport.log").read_text("utf-8")


def test_stderr_has_plain_lines(any_of_them: Converted) -> None:
    assert "\x1b" not in any_of_them.ended.err
    assert "\r" not in any_of_them.ended.err
    assert any_of_them.ended.errors == []


def test_names_of_the_model_are_those_of_the_signature(any_of_them: Converted) -> None:
    signatures = flatbuffer.signatures(any_of_them.flatbuffer())
    (signature,) = signatures.values()
    inputs, outputs = signature
    assert set(inputs) == {"pixels"}
    assert set(outputs) == {"scores", "features"}


# --- fully integer, for an accelerator


def test_the_edge_tpu_gets_its_files(edgetpu: Converted) -> None:
    assert edgetpu.ended.code == EXIT_GOOD
    assert edgetpu.report["verdict"] == "passed"
    assert edgetpu.report["target"] == "edgetpu"
    assert edgetpu.report["recipe"] == "static_wi8_ai8"
    expected = {"weights.tflite", "weights_float.tflite", "edgeport.log", "report.json"}
    assert expected <= files_in(edgetpu.folder)


def test_json_prints_the_report_and_nothing_else(edgetpu: Converted) -> None:
    assert json.loads(edgetpu.ended.out) == edgetpu.report
    assert edgetpu.ended.out.startswith("{")


def test_progress_is_told_on_stderr_in_lines(edgetpu: Converted) -> None:
    lines = edgetpu.ended.err.splitlines()
    stages = [line.removesuffix(" …") for line in lines if line.endswith(" …")]
    assert stages == [stage["name"] for stage in edgetpu.report["stages"]]
    assert [line for line in lines if not line.strip()] == []


def test_the_borders_are_int8_and_images_channels_last(edgetpu: Converted) -> None:
    model = edgetpu.report["model"]
    (pixels,) = model["inputs"]
    outputs = {o["name"]: o for o in model["outputs"]}
    assert (pixels["dtype"], pixels["shape"]) == ("int8", [1, 16, 16, 3])
    assert (pixels["original_dtype"], pixels["original_shape"]) == ("float32", [1, 3, 16, 16])
    assert (outputs["features"]["dtype"], outputs["features"]["shape"]) == ("int8", [1, 16])
    assert (outputs["scores"]["dtype"], outputs["scores"]["shape"]) == ("int8", [1, 5])
    for border in (pixels, *outputs.values()):
        assert border["scale"] > 0
        assert -128 <= border["zero_point"] <= 127


def test_the_report_tells_what_the_file_holds(edgetpu: Converted) -> None:
    parsed = edgetpu.flatbuffer()
    tensors = parsed.subgraphs[0].tensors
    ((inputs, outputs),) = flatbuffer.signatures(parsed).values()
    for told, indices in (
        (edgetpu.report["model"]["inputs"], inputs),
        (edgetpu.report["model"]["outputs"], outputs),
    ):
        for border in told:
            tensor = tensors[indices[border["name"]]]
            assert list(tensor.shape) == border["shape"]
            assert flatbuffer.type_name(tensor) == border["dtype"]
            quantization = flatbuffer.quantization(tensor)
            assert quantization is not None
            scales, zero_points = quantization
            assert float(scales[0]) == pytest.approx(border["scale"])
            assert int(zero_points[0]) == border["zero_point"]


@pytest.mark.parametrize("fixture", ["edgetpu", "ethos"])
def test_nothing_is_left_in_float_or_transposed(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    parsed = request.getfixturevalue(fixture).flatbuffer()
    main = parsed.subgraphs[0]
    types = {flatbuffer.type_name(tensor) for tensor in main.tensors}
    assert "int8" in types
    assert types <= {"int8", "int32"}
    names = {flatbuffer.operator_name(parsed, operator) for operator in main.operators}
    assert "CONV_2D" in names
    assert names.isdisjoint({"TRANSPOSE", "QUANTIZE", "DEQUANTIZE"})


def test_batch_norm_is_folded(edgetpu: Converted) -> None:
    assert "fold_batch_norm" in [p["name"] for p in edgetpu.report["passes"]]
    parsed = edgetpu.flatbuffer("weights_float.tflite")
    names = [flatbuffer.operator_name(parsed, o) for o in parsed.subgraphs[0].operators]
    assert names.count("CONV_2D") == 2
    assert {"MUL", "SUB", "ADD", "RSQRT"}.isdisjoint(names)


def test_real_samples_are_what_accuracy_is_judged_on(edgetpu: Converted) -> None:
    sets = {(a["runner"], a["samples"]): a["count"] for a in edgetpu.report["accuracy"]}
    assert sets[("host", "calibration")] == 24
    assert 1 <= sets[("reference", "calibration")] <= 24
    gates = {g["name"]: g for g in edgetpu.report["gates"]}
    assert gates["min_sqnr"]["passed"]
    judged = [a for a in edgetpu.report["accuracy"] if a["samples"] == "calibration"]
    worst = min(o["sqnr_db"] for a in judged for o in a["outputs"])
    assert gates["min_sqnr"]["value"] == worst


def test_each_operator_has_a_place(edgetpu: Converted) -> None:
    operators = edgetpu.flatbuffer().subgraphs[0].operators
    placed = edgetpu.report["placement"]["operators"]
    assert [p["index"] for p in placed] == list(range(len(operators)))
    assert all(p["on"] and p["source"] for p in placed)


def test_quiet_prints_nothing(again: Converted) -> None:
    assert (again.ended.out, again.ended.err) == ("", "")


def test_the_same_model_gives_the_same_bytes(edgetpu: Converted, again: Converted) -> None:
    first = (edgetpu.folder / "weights.tflite").read_bytes()
    assert first == (again.folder / "weights.tflite").read_bytes()


def test_a_second_run_replaces_the_first_and_only_it(again: Converted) -> None:
    files = files_in(again.folder)
    assert "weights_float.tflite" not in files  # the first run's alone
    assert {"notes.txt", "theirs", "weights.tflite", "report.json"} <= files
    assert (again.folder / "notes.txt").read_text() == "mine"
    assert not [name for name in files if name.startswith(".")]


def test_an_alias_is_reported_by_the_targets_name(again: Converted) -> None:
    assert again.report["target"] == "edgetpu"


def test_ethos_u_is_compiled(ethos: Converted) -> None:
    assert ethos.ended.code == EXIT_GOOD
    assert ethos.ended.err == ""
    assert json.loads(ethos.ended.out) == ethos.report
    assert ethos.folder.name == "weights_ethos_u55_128"
    assert ethos.report["compiler"]["status"] == "compiled"
    roles = {f["role"]: f["name"] for f in ethos.report["files"]}
    assert roles["flatbuffer"] == "weights.tflite"
    shipped = ethos.flatbuffer(roles["model"])
    names = [flatbuffer.operator_name(shipped, o) for o in shipped.subgraphs[0].operators]
    assert "CUSTOM:ethos-u" in names


def test_without_samples_the_report_warns(ethos: Converted) -> None:
    assert any("no calibration samples" in w for w in ethos.report["warnings"])
    assert {a["samples"] for a in ethos.report["accuracy"]} == {"example"}


# --- float


def test_the_default_is_a_float_file_for_cpus_beside_the_caller(cpu: Converted) -> None:
    assert cpu.ended.code == EXIT_GOOD
    assert cpu.folder.name == "weights_cpu"
    assert (cpu.report["target"], cpu.report["recipe"]) == ("cpu", "float32")
    (pixels,) = cpu.report["model"]["inputs"]
    assert (pixels["dtype"], pixels["shape"]) == ("float32", list(tiny.SHAPE))
    assert all(o["sqnr_db"] > 100 for a in cpu.report["accuracy"] for o in a["outputs"])


def test_people_get_the_verdict_first_and_the_files(cpu: Converted) -> None:
    lines = cpu.ended.out.splitlines()
    assert lines[0].split() == ["passed", "weights", "→", "cpu", "(float32)"]
    assert any("weights_cpu/weights.tflite" in line and "ship this" in line for line in lines)
    assert "\x1b" not in cpu.ended.out


def test_the_file_computes_the_same_in_the_plain_runtime(cpu: Converted) -> None:
    import torch
    from ai_edge_litert.interpreter import Interpreter

    pixels = np.random.default_rng(5).random(tiny.SHAPE, np.float32)
    content = (cpu.folder / "weights.tflite").read_bytes()
    found = Interpreter(model_content=content).get_signature_runner()(pixels=pixels)
    with torch.no_grad():
        expected = tiny.make_module()(torch.from_numpy(pixels))
    assert set(found) == set(expected)
    for name, right in expected.items():
        np.testing.assert_allclose(found[name], right.numpy(), atol=1e-5)


def test_a_gate_that_fails_is_exit_code_1_and_the_files_are_there(dynamic: Converted) -> None:
    assert dynamic.ended.code == EXIT_GATE_FAILED
    assert dynamic.report["verdict"] == "failed"
    (gate,) = [g for g in dynamic.report["gates"] if g["name"] == "min_sqnr"]
    assert not gate["passed"]
    assert gate["threshold"] == 150
    assert gate["value"] < 150
    assert {"weights.tflite", "report.json"} <= files_in(dynamic.folder)
    assert dynamic.ended.out.startswith("failed") or "\nfailed" in dynamic.ended.out


def test_dynamic_quantization_keeps_float_borders_and_shrinks_weights(dynamic: Converted) -> None:
    (pixels,) = dynamic.report["model"]["inputs"]
    assert pixels["dtype"] == "float32"
    tensors = dynamic.flatbuffer().subgraphs[0].tensors
    assert "int8" in {flatbuffer.type_name(tensor) for tensor in tensors}


def test_evaluation_samples_are_what_accuracy_is_judged_on(dynamic: Converted) -> None:
    sets = {(a["runner"], a["samples"]): a["count"] for a in dynamic.report["accuracy"]}
    assert sets[("host", "evaluation")] == 24
    assert sets[("reference", "evaluation")] == 1  # the effort `fast`


def test_verbose_shows_what_the_libraries_print(dynamic: Converted, cpu: Converted) -> None:
    stages = {stage["name"] for stage in dynamic.report["stages"]}
    libraries = [
        line
        for line in dynamic.ended.err.splitlines()
        if line.removesuffix(" …") not in stages and line.partition(":")[0] not in stages
    ]
    assert libraries
    assert (dynamic.folder / "edgeport.log").read_text() == ""
    assert (cpu.folder / "edgeport.log").read_text() != ""
