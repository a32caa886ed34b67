"""Running a flatbuffer in LiteRT's interpreter, in a child process.

LiteRT ends the whole process on some models (a -inf constant after int8 quantization, a failed
check in a kernel). In a child that is one clear error instead.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import edgeport
from edgeport.errors import NotCheckedError, RunnerRefusedError
from edgeport.runtime_check.frames import read_frame, write_frame
from edgeport.runtime_check.runner import Arrays, Session
from edgeport.targets.base import Availability

Kernels = Literal["xnnpack", "reference"]
_SECONDS = "__seconds__"
_ERROR = "__error__"


@dataclass(frozen=True, slots=True)
class InterpreterRunner:
    """LiteRT's interpreter with one of its sets of kernels.

    Attributes:
        name: What the user calls it.
        title: One line for people.
        kernels: Which kernels it uses.
        timeout: Seconds for one answer of the child.
    """

    name: str
    title: str
    kernels: Kernels
    timeout: float = 600.0

    def available(self) -> Availability:
        """Tells whether ai-edge-litert is installed."""
        if importlib.util.find_spec("ai_edge_litert") is None:
            return Availability(False, "ai-edge-litert", "pip install ai-edge-litert")
        version = importlib.metadata.version("ai-edge-litert")
        return Availability(True, f"ai-edge-litert {version}")

    def open(self, model: bytes) -> Session:
        """Starts a child and loads the flatbuffer in it.

        Raises:
            NotCheckedError: The runtime can't load it.
        """
        return _ChildSession(self, model)


class _ChildSession:
    def __init__(self, runner: InterpreterRunner, model: bytes) -> None:
        self._runner = runner
        self._folder = tempfile.TemporaryDirectory(prefix="edgeport-run-")
        try:
            path = Path(self._folder.name) / "model.tflite"
            path.write_bytes(model)
            self._log: IO[bytes] = (Path(self._folder.name) / "log").open("w+b")
            environment = dict(os.environ)
            root = str(Path(edgeport.__file__).resolve().parent.parent)
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, [root, environment.get("PYTHONPATH")])
            )
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m",  # -P: not what lies in the working folder
                 "edgeport.runtime_check.worker", str(path), runner.kernels,
                 str(os.cpu_count() or 1)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
            )  # fmt: skip
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            self._exchange(None)  # says that the model is loaded
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, inputs: Arrays) -> tuple[Arrays, float]:
        outputs = self._exchange(inputs)
        return outputs, float(outputs.pop(_SECONDS))

    def close(self) -> None:
        """Ends the child and removes its files."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):  # a broken pipe of a child that is gone
                    stream.close()
        self._folder.cleanup()

    def _exchange(self, inputs: Arrays | None) -> Arrays:
        """Sends inputs, if any, and waits for the answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            self._child.kill()

        timer = threading.Timer(self._runner.timeout, end)
        timer.daemon = True  # an interrupt between two lines here must not keep the process
        frame = None
        try:
            timer.start()
            if inputs is not None:
                write_frame(self._child.stdin, inputs)
            frame = read_frame(self._child.stdout)
        except OSError:
            pass  # the pipe of a child that is gone; told below
        finally:
            timer.cancel()
        if frame is None:
            if timed_out.is_set():
                raise NotCheckedError(
                    f"the runner `{self._runner.name}` did not answer in "
                    f"{self._runner.timeout:.0f} s and was ended"
                )
            raise self._died()
        if _ERROR in frame:
            raise RunnerRefusedError(
                f"the runner `{self._runner.name}` can't run the model: {frame[_ERROR]}"
            )
        return frame

    def _died(self) -> NotCheckedError:
        code = self._child.wait()
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {signal.Signals(-code).name}"
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return NotCheckedError(
            f"the runtime behind `{self._runner.name}` ended with {how} on this model{last}",
            hint="the file would end the app on the device too; convert without quantization to "
            "see whether that is the cause",
        )
