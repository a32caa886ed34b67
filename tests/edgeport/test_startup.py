"""The door opens fast: what may not be loaded before it is needed. Counted, never timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import environment

HEAVY = ("torch", "numpy", "jax", "tensorflow", "ai_edge_litert", "ai_edge_quantizer",
         "litert_torch", "flatbuffers", "ethosu", "PIL")  # fmt: skip


def loaded_by(code: str, temporary: Path) -> set[str]:
    """Runs Python code in a process of its own and tells which heavy packages it loaded."""
    told = f"import sys\n{code}\nprint('LOADED', *(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", told],
        env=environment(temporary),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "LOADED"
    return set(last[1:])


def test_the_probe_sees_what_is_loaded(tmp_path: Path) -> None:
    assert loaded_by("import flatbuffers, numpy", tmp_path) == {"flatbuffers", "numpy"}


@pytest.mark.parametrize(
    "code",
    [
        "import edgeport",
        "import edgeport; dir(edgeport); edgeport.__version__",
        "import edgeport.errors, edgeport.report, edgeport.options, edgeport.targets.base",
        "from edgeport.quantize.recipes import all_recipes; all_recipes()",
        "import edgeport; edgeport.EdgeportError, edgeport.Report, edgeport.Artifact",
        "import edgeport; edgeport.convert",
    ],
)
def test_importing_loads_nothing_heavy(tmp_path: Path, code: str) -> None:
    assert loaded_by(code, tmp_path) == set()


def test_listing_targets_loads_no_library_of_machine_learning(tmp_path: Path) -> None:
    code = "from edgeport.targets import all_targets; all_targets()"
    assert loaded_by(code, tmp_path) <= {"numpy"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["convert", "--help"],
        ["check", "--help"],
        ["inspect", "--help"],
        ["targets", "--help"],
        ["targets", "--quiet"],
        ["targets"],
        ["convert", "nowhere.pt2"],
        ["convert", "nowhere.pt2", "--target", "edgetpuu"],
        ["inspect", "nowhere.tflite"],
    ],
    ids=" ".join,
)
def test_the_command_line_loads_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    code = f"from edgeport.__main__ import run; run({arguments!r})"
    # numpy: allowed behind verbs, where checking samples or listing runners needs it.
    heavy = loaded_by(code, tmp_path)
    if arguments[0] in ("convert", "targets", "inspect") and "--help" not in arguments:
        heavy.discard("numpy")
    assert heavy == set()
