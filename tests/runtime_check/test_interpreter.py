"""The runners run a flatbuffer in a child, and what goes wrong there is one clear error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeport.errors import NotCheckedError, UsageError
from edgeport.runtime_check.interpreter import InterpreterRunner
from edgeport.runtime_check.runner import all_runners, get_runner
from tests.flatbuffers import build_bytes, constant, op, tensor

ROOT = Path(__file__).resolve().parents[2]
X = np.arange(8, dtype=np.float32).reshape(1, 8)
BOTH = pytest.mark.parametrize("name", ["host", "reference"])


def doubled(*, custom: bool = False) -> bytes:
    x, y, z = (tensor(n, (1, 8), "float32") for n in "xyz")
    two = constant("two", np.array([[2]], np.float32))
    step = op("CUSTOM", [x], [z], custom="Nobody") if custom else op("NEG", [x], [z])
    return build_bytes([op("MUL", [x, two], [y]), step], signature=True)


@BOTH
def test_a_model_is_run_again_and_again(name: str) -> None:
    with get_runner(name).open(doubled()) as session:
        for factor in (1, 3):
            outputs, seconds = session.run({"x": X * factor})
            assert sorted(outputs) == ["y", "z"]
            np.testing.assert_array_equal(outputs["y"], 2 * factor * X)
            np.testing.assert_array_equal(outputs["z"], -factor * X)
            assert seconds > 0


def test_outputs_are_not_changed_by_the_next_call() -> None:
    with get_runner("host").open(doubled()) as session:
        first, _ = session.run({"x": X})
        session.run({"x": X * 0})
    np.testing.assert_array_equal(first["y"], 2 * X)


def test_scalars_and_integers_cross_the_pipe() -> None:
    n, m = tensor("n", (), "int32"), tensor("m", (), "int32")
    model = build_bytes([op("ADD", [n, constant("one", np.int32(1))], [m])], signature=True)
    with get_runner("host").open(model) as session:
        outputs, _ = session.run({"n": np.array(41, np.int32)})
    assert outputs["m"].shape == ()
    assert outputs["m"].dtype == np.int32
    assert int(outputs["m"]) == 42


@BOTH
def test_a_model_that_the_runtime_refuses_is_an_error(name: str) -> None:
    with pytest.raises(NotCheckedError, match=f"`{name}` can't run the model.*Nobody"):
        get_runner(name).open(doubled(custom=True))


@pytest.mark.parametrize("inputs", [{}, {"x": X.astype(np.int8)}, {"wrong": X}], ids=str)
def test_inputs_that_do_not_fit_are_an_error(inputs: dict[str, np.ndarray]) -> None:
    with get_runner("host").open(doubled()) as session, pytest.raises(NotCheckedError):
        session.run(inputs)


def test_a_file_that_is_no_model_is_an_error() -> None:
    with pytest.raises(NotCheckedError):
        get_runner("host").open(b"no model")


def child(session: Any) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = session._child
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_runtime_that_ends_by_a_signal_is_named(number: signal.Signals) -> None:
    with get_runner("host").open(doubled()) as session:
        child(session).send_signal(number)
        with pytest.raises(NotCheckedError, match=number.name):
            session.run({"x": X})


def test_a_runtime_that_hangs_is_ended() -> None:
    runner = InterpreterRunner("host", "", kernels="xnnpack", timeout=60)
    with runner.open(doubled()) as session:
        child(session).send_signal(signal.SIGSTOP)
        object.__setattr__(runner, "timeout", 0.3)
        # larger than a pipe holds: even writing would wait for ever
        with pytest.raises(NotCheckedError, match="did not answer in 0 s"):
            session.run({"x": np.zeros((1, 1 << 20), np.float32)})
        assert child(session).wait() == -signal.SIGKILL


def test_closing_leaves_no_process_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with get_runner("host").open(doubled()) as session:
        process = child(session)
        assert list(tmp_path.iterdir())
        session.run({"x": X})
    assert process.poll() is not None
    with pytest.raises(NotCheckedError):
        get_runner("host").open(doubled(custom=True))
    assert list(tmp_path.iterdir()) == []


def test_it_works_from_any_folder_without_an_installed_package(tmp_path: Path) -> None:
    for name in ("numpy.py", "struct.py", "edgeport.py"):  # of the user's, not for us
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    (tmp_path / "model.tflite").write_bytes(doubled())
    script = (
        "import numpy as np; from pathlib import Path\n"
        "from edgeport.runtime_check.runner import get_runner\n"
        "with get_runner('host').open(Path('model.tflite').read_bytes()) as session:\n"
        "    print(session.run({'x': np.ones((1, 8), np.float32)})[0]['y'].sum())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{script}"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "16.0", done.stderr


def test_runners_are_found_by_name() -> None:
    assert {"host", "reference"} <= set(all_runners())
    assert get_runner("host").available().ok
    with pytest.raises(UsageError, match="unknown runner `hots`") as caught:
        get_runner("hots")
    assert "`host`" in (caught.value.hint or "")
