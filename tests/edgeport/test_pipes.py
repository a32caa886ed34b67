"""A reader that goes away does not change the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flatbuffers import build_bytes, op, tensor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("options", [[], ["--json"], ["-q"]])
@pytest.mark.parametrize("verb", ["targets", "inspect", "check"])
def test_a_closed_pipe_is_no_failure(tmp_path: Path, verb: str, options: list[str]) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(build_bytes([op("RELU", [tensor("x", (1, 4))], [tensor("y", (1, 4))])]))
    arguments = {
        "targets": ["targets"],
        "inspect": ["inspect", str(model)],
        "check": ["check", str(model), "--target", "cpu"],
    }[verb]
    read, write = os.pipe()
    os.close(read)  # nobody will ever read
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "edgeport", *arguments, *options],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")
