"""The layout, the package and its metadata agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import edgeport

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
_SHIPPED = (".py", ".toml", ".json", ".typed")
FOLDERS = ("edgeport", "converters", "quantize", "runtime_check")


def packages_on_disk() -> set[str]:
    found = set()
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if (
                len(parts) > 1
                and parts[0] == "edgeport"
                and (ROOT / "/".join(parts[:2])).is_symlink()
            ):
                continue
            found.add(".".join(parts if parts[0] == "edgeport" else ("edgeport", *parts)))
    return found


def test_declared_packages_are_the_folders_with_an_init() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


def test_the_links_lead_where_the_mapping_says() -> None:
    for package, folder in SETUPTOOLS["package-dir"].items():
        if package != "edgeport":
            link = ROOT / "edgeport" / package.split(".")[1]
            assert link.is_symlink()
            assert link.resolve() == ROOT / folder


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == edgeport.__version__


def test_all_brings_every_extra_for_users() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("edgeport[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "dev"}


def test_extras_named_in_messages_exist() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    named = set()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text("utf-8")
            named |= set(re.findall(r"""(?:extra=|_EXTRA = )["']([\w-]+)["']""", text))
    assert named == {"ethos-u"}
    assert named <= extras


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # setuptools writes into the tree, and takes what it finds there
    tree.mkdir()
    for name in (*FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, tree / name)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "-o",
            str(tmp_path),
            str(tree),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {n for n in archive.namelist() if n.startswith("edgeport/")}
        others = {n.split("/")[0] for n in archive.namelist()} - {"edgeport"}
    wanted = set()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            relative = file.relative_to(ROOT)
            if relative.parts[0] == "edgeport" and (ROOT / Path(*relative.parts[:2])).is_symlink():
                continue
            if "__pycache__" not in relative.parts and file.suffix in _SHIPPED:
                path = relative.as_posix()
                wanted.add(path if path.startswith("edgeport/") else f"edgeport/{path}")
    assert inside == wanted
    assert all(name.endswith(".dist-info") for name in others)
