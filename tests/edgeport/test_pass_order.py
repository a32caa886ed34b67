"""A target's resolved pass order is a golden file, so that reviewers see it change."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from edgeport.targets import all_targets

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "pass_order.txt"


def resolved() -> str:
    lines = []
    for target in all_targets():
        lines.append(f"{target.name}:")
        lines += [f"  graph {name}" for name in target.graph_passes]
        lines += [f"  flatbuffer {name}" for name in target.flatbuffer_passes]
    return "\n".join(lines) + "\n"


def test_pass_order_is_as_reviewed() -> None:
    assert resolved() == GOLDEN.read_text("utf-8"), (
        "if this change is meant, write it down: "
        "python -c 'from tests.edgeport.test_pass_order import *; GOLDEN.write_text(resolved())'"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    sorted(
        {("graph", n) for t in all_targets() for n in t.graph_passes}
        | {("flatbuffer", n) for t in all_targets() for n in t.flatbuffer_passes}
    ),
)
def test_every_pass_is_a_file_with_a_function_of_its_name_that_says_what_it_does(
    kind: str, name: str
) -> None:
    module = importlib.import_module(f"edgeport.converters.{kind}_passes.{name}")
    first_line = (getattr(module, name).__doc__ or "").strip().splitlines()[0]
    assert len(first_line) > 20
