from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeport import targets
from edgeport.errors import UsageError
from edgeport.quantize.recipes import get_recipe
from edgeport.runtime_check.runner import get_runner
from edgeport.targets import Target, all_targets, get_target


@pytest.fixture
def fresh() -> Iterator[None]:
    """Lets targets be looked up anew, before and after the test."""
    all_targets.cache_clear()
    yield
    all_targets.cache_clear()


def every_target() -> list[object]:
    return [pytest.param(target, id=target.name) for target in all_targets()]


def test_names_and_aliases_are_unique_and_lower_case() -> None:
    names = [n for target in all_targets() for n in (target.name, *target.aliases)]
    assert len(names) == len(set(names))
    assert [n for n in names if n != n.lower() or " " in n] == []


def test_the_expected_targets_are_there() -> None:
    names = [target.name for target in all_targets()]
    assert {"cpu", "edgetpu", "ethos-u55-128", "ethos-u65-512", "ethos-u85-2048"} <= set(names)
    assert names.index("ethos-u55-64") < names.index("ethos-u55-128")  # as numbers, not as text


@pytest.mark.parametrize(
    ("written", "found"),
    [("cpu", "cpu"), ("CPU", "cpu"), ("Coral", "edgetpu"), ("u55-128", "ethos-u55-128")],
)
def test_a_target_is_found_by_name_or_alias_in_any_case(written: str, found: str) -> None:
    assert get_target(written).name == found


@pytest.mark.parametrize(
    ("written", "near"),
    [("edgetpuu", "`edgetpu`"), ("ethos-u55-12", "`ethos-u55-128`"), ("cup", "`cpu`")],
)
def test_a_mistyped_target_gets_the_nearest_names(written: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_target(written)
    assert caught.value.what == f"unknown target `{written}`"
    assert near in str(caught.value.hint)
    assert "`edgeport targets`" in str(caught.value.hint)


def test_a_name_that_is_near_to_nothing_gets_no_guess() -> None:
    with pytest.raises(UsageError) as caught:
        get_target("zzzzzz")
    assert caught.value.hint == "`edgeport targets` lists them all"


@pytest.mark.parametrize("target", every_target())
def test_what_a_target_names_exists(target: Target) -> None:
    assert target.recipes
    assert [get_recipe(name).name for name in target.recipes] == list(target.recipes)
    assert target.runners
    assert [get_runner(name).name for name in target.runners] == list(target.runners)
    for kind, names in (
        ("graph_passes", target.graph_passes),
        ("flatbuffer_passes", target.flatbuffer_passes),
    ):
        assert len(set(names)) == len(names)
        for name in names:
            module = importlib.import_module(f"edgeport.converters.{kind}.{name}")
            assert callable(getattr(module, name))


@pytest.mark.parametrize("target", every_target())
def test_a_compiler_tells_whether_it_is_there_and_how_to_get_it(target: Target) -> None:
    there = target.compiler.available()
    assert there.what
    assert bool(there.how) != there.ok


def test_targets_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        all_targets()[0].name = "other"  # type: ignore[misc]


def _install(folder: Path, source: str, entry: str) -> None:
    """Puts a distribution into a folder, as pip would."""
    (folder / "acme_edge.py").write_text(source)
    info = folder / "acme_edge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-edge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[edgeport.targets]\nacme = {entry}\n")


_SOURCE = """
import dataclasses
from edgeport.targets.cpu import TARGETS
NPU = dataclasses.replace(TARGETS[0], name="acme-npu", title="ACME NPU", aliases=("acme",))
BOTH = (NPU, dataclasses.replace(NPU, name="acme-dsp", aliases=()))
CLASH = dataclasses.replace(NPU, name="cpu")
BROKEN = 3
"""


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("entry", "names"),
    [("acme_edge:NPU", {"acme-npu"}), ("acme_edge:BOTH", {"acme-npu", "acme-dsp"})],
)
def test_other_packages_bring_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, names: set[str]
) -> None:
    own = {target.name for target in all_targets()}
    all_targets.cache_clear()
    _install(tmp_path, _SOURCE, entry)
    monkeypatch.syspath_prepend(tmp_path)
    assert {target.name for target in all_targets()} == own | names
    assert get_target("acme").title == "ACME NPU"


@pytest.mark.usefixtures("fresh")
def test_two_targets_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, _SOURCE, "acme_edge:CLASH")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="two targets share the name 'cpu'"):
        all_targets()


def test_every_module_beside_the_base_defines_targets() -> None:
    folder = Path(str(targets.__file__)).parent
    modules = {f.stem for f in folder.glob("*.py")} - {"__init__", "base"}
    assert modules
    for name in modules:
        module = importlib.import_module(f"edgeport.targets.{name}")
        assert all(isinstance(t, Target) for t in module.TARGETS)
        assert set(module.TARGETS) <= set(all_targets()) or any(
            t.name in {a.name for a in all_targets()} for t in module.TARGETS
        )
