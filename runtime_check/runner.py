"""What a runner is: a place where a flatbuffer can be run, behind one small interface."""

from __future__ import annotations

import importlib
import pkgutil
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from edgeport.errors import unknown_name
from edgeport.targets.base import Availability

Arrays = dict[str, np.ndarray]


class Session(Protocol):
    """An opened model; a context manager that gives up what it holds."""

    def __enter__(self) -> Self:
        """Returns itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the session."""

    def run(self, inputs: Arrays) -> tuple[Arrays, float]:
        """Runs one inference.

        Args:
            inputs: Arrays by signature name, in the file's shapes and types.

        Returns:
            The outputs by signature name, and the seconds that the inference itself took.

        Raises:
            NotCheckedError: The runtime refused the model, crashed or did not answer in time.
        """


class Runner(Protocol):
    """A place to run a model.

    Attributes:
        name: What the user calls it.
        title: One line for people.
    """

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def title(self) -> str:
        """One line for people."""

    def available(self) -> Availability:
        """Tells whether it can be used here, without loading anything heavy."""

    def open(self, model: bytes) -> Session:
        """Loads a flatbuffer.

        Raises:
            NotCheckedError: The runtime can't load it.
        """


def all_runners() -> dict[str, Runner]:
    """Returns every runner by name: each module of this package that defines `RUNNER`."""
    import edgeport.runtime_check as package

    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.endswith("_runner"):
            runner: Runner = importlib.import_module(f"{package.__name__}.{module.name}").RUNNER
            found[runner.name] = runner
    return found


def get_runner(name: str) -> Runner:
    """Finds a runner by name.

    Raises:
        UsageError: There is none of that name.
    """
    runners = all_runners()
    if name not in runners:
        raise unknown_name("runner", name, runners, see="`edgeport targets` lists them")
    return runners[name]
