"""Archives are read when they are safe and whole, and refused with a reason when not."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeport.converters.archive import is_arithmetic, read_archive
from edgeport.converters.load import load_file
from edgeport.errors import ModelFileError
from tests.models import assert_close, outputs, program, quiet

pytestmark = quiet

Edit = Callable[[str, bytes], bytes | None]


class Model(nn.Module):
    """A dynamic batch, a nested input, keywords, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a-b": nn.Conv2d(3, 4, 3)})
        self.register_buffer("offset", torch.ones(4, 1, 1))
        self.constant = torch.full((1,), 2.0)

    def forward(self, x: Any, more: dict[str, Any], *, scale: float = 1.0, flag: Any = None) -> Any:
        y = self.parts["a-b"](x) * self.offset * more["u"][0] * self.constant * scale
        return {"map": y, "rest": (x * x.shape[0], None)}


INPUTS = ((torch.rand(2, 3, 6, 6), {"u": [torch.rand(1)]}), {"scale": 3.0, "flag": None})


def model_program() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", max=8)
    shapes = {"x": {0: batch}, "more": {"u": [None]}, "scale": None, "flag": None}
    return torch.export.export(Model(), *INPUTS, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "good.pt2"
    torch.export.save(model_program(), path)
    return path


@pytest.fixture
def changed(archive: Path, tmp_path: Path) -> Callable[[Edit], Path]:
    """Copies the archive with its members edited; an edit that gives None drops a member."""

    def change(edit: Edit) -> Path:
        path = tmp_path / "changed.pt2"
        seen = False
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                content = old.read(info)
                edited = edit(info.filename.partition("/")[2], content)
                seen = seen or edited != content
                if edited is not None:
                    new.writestr(info.filename, edited)
        assert seen, "the edit did nothing"
        return path

    return change


def replaced(member: str, old: str, new: str) -> Edit:
    def edit(name: str, content: bytes) -> bytes:
        if name != member:
            return content
        assert old.encode() in content, f"{old} not in {name}"
        return content.replace(old.encode(), new.encode())

    return edit


def refused(path: Path, match: str) -> ModelFileError:
    with pytest.raises(ModelFileError, match=match) as caught:
        load_file(path)
    assert caught.value.where == str(path)
    assert caught.value.exit_code == 3
    return caught.value


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


GRAPH = "models/model.json"


# Whole and safe


def test_a_good_archive_is_read_with_all_it_holds(archive: Path) -> None:
    source = load_file(archive)
    assert [(b.name, b.position, b.shape) for b in source.inputs] == [
        ("x", 0, (2, 3, 6, 6)), ("more_u_0", 1, (1,))
    ]  # fmt: skip
    assert [(b.name, b.position) for b in source.outputs] == [("map", 0), ("rest_0", 1)]
    assert source.name == "good"
    assert source.origin == str(archive)
    assert len(source.sha256 or "") == 64
    assert any("scale" in w and "3.0" in w for w in source.warnings)
    args, kwargs = INPUTS
    assert_close(
        outputs(source.reference, list(source.example)), outputs(source.program.module(), *args, **kwargs), 1e-6
    )  # fmt: skip


def test_the_ending_of_the_file_does_not_matter(archive: Path, tmp_path: Path) -> None:
    for name in ("model.pt", "no ending", "ünïcode.bin"):
        shutil.copy(archive, tmp_path / name)
        assert load_file(tmp_path / name).inputs[0].name == "x"


def test_an_archive_of_core_operators_is_read(tmp_path: Path) -> None:
    path = tmp_path / "core.pt2"
    torch.export.save(program(nn.Conv2d(3, 4, 3), torch.rand(1, 3, 5, 5), core=True), path)
    assert load_file(path).outputs[0].shape == (1, 4, 3, 3)


def test_structures_of_torch_are_read(tmp_path: Path) -> None:
    class Structured(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return OrderedDict(b=x["a"] + y[0], a=x["a"])

    path = tmp_path / "structured.pt2"
    made = program(Structured(), OrderedDict(a=torch.ones(2)), [torch.ones(2)])
    torch.export.save(made, path)
    assert [b.name for b in load_file(path).outputs] == ["b", "a"]


@pytest.mark.parametrize("value", [None, "0", "1"])
@pytest.mark.parametrize(
    "name", ["TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]
)
def test_the_environment_is_left_as_it_was(
    archive: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
    read_archive(archive)
    assert os.environ.get(name) == value


# Made to run code


class Custom(torch.Tensor):
    """A tensor whose class makes torch pickle it."""


def test_a_weight_that_torch_pickled_is_refused(tmp_path: Path) -> None:
    class Weighted(nn.Module):
        b: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b

    made = program(Weighted(), torch.ones(2))
    made.state_dict["b"] = torch.ones(2).as_subclass(Custom)
    path = tmp_path / "pickled.pt2"
    torch.export.save(made, path)
    error = refused(path, "is pickled")
    assert "plain tensors" in (error.hint or "")


@pytest.mark.parametrize("yes", ["true", "1", '"yes"'])
def test_a_weight_that_asks_for_pickle_is_refused(
    changed: Callable[[Edit], Path], yes: str
) -> None:
    config = "data/weights/model_weights_config.json"
    refused(
        changed(lambda n, c: c if n != config else _first_true(c, yes)), "`weight_.` .* is pickled"
    )


def _first_true(content: bytes, yes: str) -> bytes:
    data = json.loads(content)
    first = next(iter(data["config"].values()))
    first["use_pickle"] = json.loads(yes)
    return json.dumps(data).encode()


@pytest.mark.parametrize("prefix", ["custom_obj_0", "opaque_obj_0"])
def test_pickled_objects_among_constants_are_refused(
    changed: Callable[[Edit], Path], prefix: str
) -> None:
    edit = replaced("data/constants/model_constants_config.json", "tensor_0", prefix)
    refused(changed(edit), "is pickled")


@pytest.mark.parametrize("bare", [False, True])
def test_example_inputs_that_run_code_do_not_run_it(
    changed: Callable[[Edit], Path], tmp_path: Path, bare: bool
) -> None:
    trap = tmp_path / "ran"
    buffer = io.BytesIO()
    if bare:
        pickle.dump(Trap(trap), buffer)
    else:
        torch.save(Trap(trap), buffer)
    member = "data/sample_inputs/model.pt"
    refused(changed(lambda n, c: buffer.getvalue() if n == member else c), f"{member}.* is pickled")
    assert not trap.exists()


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {trap}')",
        "open('{trap}','w')",
        "eval(chr(111)+chr(112))",
        "Symbol('x').__class__",
        "(lambda: 1)()",
        "[open('{trap}','w') for _ in (1,)]",
        "Max(Symbol('s0'), \\\"open('{trap}','w')\\\")",
        "s0.subs(1, 2)",
        "f'{{open}}'",
    ],
)
def test_symbolic_shapes_that_hold_code_do_not_run_it(
    changed: Callable[[Edit], Path], tmp_path: Path, code: str
) -> None:
    trap = tmp_path / "ran"

    def edit(name: str, content: bytes) -> bytes:
        if name != GRAPH:
            return content
        data = json.loads(content)
        _set_first(data, "expr_str", json.loads(f'"{code.format(trap=trap)}"'))
        return json.dumps(data).encode()

    refused(changed(edit), "symbolic shape holds code")
    assert not trap.exists()


def _set_first(data: Any, key: str, value: Any) -> bool:
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if isinstance(data, dict) and key in data:
        data[key] = value
        return True
    return any(_set_first(item, key, value) for item in items)


@pytest.mark.parametrize("key", ['"name"', '"as_name"'])
def test_names_that_hold_code_do_not_run_it(
    changed: Callable[[Edit], Path], tmp_path: Path, key: str
) -> None:
    trap = tmp_path / "ran"

    def edit(name: str, content: bytes) -> bytes:
        if name != GRAPH:
            return content
        data = json.loads(content)
        _rename(data, key.strip('"'), "x", f"x=open({str(trap)!r},'w')")
        _set_first(data, key.strip('"'), f"x=open({str(trap)!r},'w')")
        return json.dumps(data).encode()

    refused(changed(edit), "a name in the graph is no name")
    assert not trap.exists()


def _rename(data: Any, key: str, old: str, new: str) -> None:
    for item in data.values() if isinstance(data, dict) else data:
        if isinstance(item, dict | list):
            _rename(item, key, old, new)
    if isinstance(data, dict) and data.get(key) == old:
        data[key] = new


def test_names_of_weights_that_hold_code_are_refused(changed: Callable[[Edit], Path]) -> None:
    bad = "x', open('trap', 'w'))"
    edit = replaced(GRAPH, '"parts.a-b.weight"', json.dumps(bad))
    refused(changed(edit), "a name in the graph is no name")


def test_guards_are_not_kept_since_torch_would_execute_them(
    changed: Callable[[Edit], Path], tmp_path: Path
) -> None:
    trap = tmp_path / "ran"

    def edit(name: str, content: bytes) -> bytes:
        if name != GRAPH:
            return content
        data = json.loads(content)
        data["guards_code"] = [f"open({str(trap)!r}, 'w')"]
        return json.dumps(data).encode()

    read_archive(changed(edit)).module()
    assert not trap.exists()


def test_structures_that_import_modules_are_refused(
    changed: Callable[[Edit], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "ran"
    (tmp_path / "trap_module.py").write_text(f"open({str(trap)!r}, 'w')\nlist = list\n")
    monkeypatch.syspath_prepend(tmp_path)
    context = {"default_factory_module": "trap_module", "default_factory_name": "list"}
    spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}

    def edit(name: str, content: bytes) -> bytes:
        if name != GRAPH:
            return content
        data = json.loads(content)
        assert _set_first(data, "in_spec", json.dumps([1, spec]))
        return json.dumps(data).encode()

    refused(changed(edit), "names a module to import")
    assert not trap.exists()


def test_compiled_code_is_refused(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "compiled.pt2"
    shutil.copy(archive, path)
    with zipfile.ZipFile(path, "a") as grown:
        grown.writestr("good/data/aotinductor/other/lib.so", b"\x7fELF")
    refused(path, "compiled code")


@pytest.mark.parametrize("name", ["../evil", "good/../../evil", "/etc/evil", "C:/evil", "..\\evil"])
def test_members_that_lead_outside_are_refused(archive: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "outside.pt2"
    shutil.copy(archive, path)
    with zipfile.ZipFile(path, "a") as grown:
        grown.writestr(name, b"evil")
    refused(path, "leads outside")
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_two_members_of_one_name_are_refused(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "twice.pt2"
    shutil.copy(archive, path)
    with zipfile.ZipFile(path, "a") as grown:
        grown.writestr(f"good/{GRAPH}", b"{}")
    refused(path, "two members of the same name")


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(
    archive: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.pt2"
    shutil.copy(archive, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as grown:
        grown.writestr("good/extra/bomb", bytes(50 << 20))
    assert path.stat().st_size < 1 << 20
    refused(path, "decompression bomb")


def test_an_archive_that_readers_read_differently_is_refused(
    archive: Path, changed: Callable[[Edit], Path], tmp_path: Path
) -> None:
    # two archives in one file, behind each other
    other = changed(replaced(GRAPH, '"offset"', '"ofsett"'))
    path = tmp_path / "both.pt2"
    path.write_bytes(archive.read_bytes() + other.read_bytes())
    with pytest.raises(ModelFileError) as caught:
        load_file(path)
    assert caught.value.where == str(path)


# Damaged, or something else


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_refused(archive: Path, tmp_path: Path, share: float) -> None:
    content = archive.read_bytes()
    path = tmp_path / "short.pt2"
    path.write_bytes(content[: max(5, int(len(content) * share))])
    assert "copy the file again" in (refused(path, "truncated or damaged").hint or "")


def test_damage_anywhere_is_an_error_of_the_file_or_harmless(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.pt2"
    seen = 0
    for position in rng.integers(0, len(content), 60):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :]
        )
        try:
            load_file(path)
        except ModelFileError:
            seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"PK\x03\x04", "truncated or damaged"),
        (bytes(range(256)) * 9, "not a model that edgeport knows"),
        (np.random.default_rng(1).bytes(5000), "not a model that edgeport knows"),
        (b"import torch\nprint(1)\n", "not a model that edgeport knows"),
        (b"\x80\x02}q\x00.", "a pickle"),
    ],
)
def test_files_that_are_no_archive_are_refused(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    refused(path, match)


def test_a_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    assert "torch.export" in str(refused(path, "pickled checkpoint"))


def test_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refused(path, "a pickle")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_torchscript_archive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)
    assert "torch.export" in str(refused(path, "TorchScript"))


def test_another_zip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(path, "no ExportedProgram")


@pytest.mark.parametrize(
    "dropped", [GRAPH, "data/weights/weight_0", "data/sample_inputs/model.pt", "archive_version",
                "data/weights/model_weights_config.json"],
)  # fmt: skip
def test_an_archive_that_lacks_a_part_is_refused(
    changed: Callable[[Edit], Path], dropped: str
) -> None:
    with pytest.raises(ModelFileError):
        load_file(changed(lambda n, c: None if n == dropped else c))


def test_json_that_is_nested_too_deep_is_refused(changed: Callable[[Edit], Path]) -> None:
    deep = b"[" * 200_000
    with pytest.raises(ModelFileError):
        load_file(changed(lambda n, c: deep if n == GRAPH else c))


@pytest.mark.parametrize(
    "expression",
    [
        "s0", "2*s0 + 1", "Symbol('s77', positive=True, integer=True)",
        "Mul(Integer(2), Add(Symbol('s0', integer=True), Integer(-1)))", "Max(1, s0)",
        "FloorDiv(s0, 2)", "s0 >= 2", "Piecewise((1, s0 > 3), (2, True))",
        "OpaqueUnaryFn_sqrt(s0)", "Float('0.5', precision=53)", "-s0", "Eq(Mod(s0, 8), 0)",
        "True", "7",
    ],
)  # fmt: skip
def test_arithmetic_is_known_as_such(expression: str) -> None:
    assert is_arithmetic(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "", "os", "__builtins__", "print(1)", "s0()", "s0.x", "'text'", "[1]", "{1: 2}", "s0[0]",
        "lambda: 1", "(x := 1)", "s0 if s0 else 1", "Symbol('a b')", "Integer('7')",
        "Symbol(*a)", "Symbol(**a)", "Max('open(1)')", "1; 2", "(" * 3000, "s0 + " * 9000 + "1",
    ],
)  # fmt: skip
def test_anything_else_is_not(expression: str) -> None:
    assert is_arithmetic(expression) is (expression == "os")  # a symbol like any other
