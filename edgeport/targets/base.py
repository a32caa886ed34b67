"""What a target is: data about a chip or runtime, and the compiler that serves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from edgeport.report import CompilerReport, Placement

Layout = Literal["channels-last", "keep"]
BorderType = Literal["float32", "int8"]


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether something that edgeport calls is there.

    Attributes:
        ok: It can be used now.
        what: Its name and, if there, its version or path; if not, what is missing.
        how: The command or step that brings it; empty when it is there.
    """

    ok: bool
    what: str
    how: str = ""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a compiler made of a flatbuffer.

    Attributes:
        report: What it did, for the user.
        placement: Where each operator of the flatbuffer given runs.
        files: New files by role and name, such as `{"model": ("model_vela.tflite", bytes)}`; a
            `model` replaces the flatbuffer given as the file to ship. Empty for targets that
            take the flatbuffer itself.
    """

    report: CompilerReport
    placement: Placement
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)


class Compiler(Protocol):
    """The last step to a target; also the authority on where operators run."""

    def available(self) -> Availability:
        """Tells whether the vendor's compiler is there, without loading anything heavy."""

    def compile(self, model: bytes, name: str, work: Path) -> Compilation:
        """Compiles a flatbuffer, or predicts its placement where the compiler is absent.

        Args:
            model: A LiteRT flatbuffer in the target's number format.
            name: Stem for the names of files made.
            work: An empty folder for intermediate files, removed afterwards.

        Raises:
            CompilerError: The compiler refused the model, crashed or did not end in time.
            MissingDependencyError: There is neither a compiler nor a prediction.
        """


@dataclass(frozen=True, slots=True)
class Target:
    """A place where a model can run.

    Attributes:
        name: What the user writes after `--target`.
        title: One line for people.
        recipes: Quantization recipes that it takes; the first is the default.
        layout: Layout of image tensors at the borders unless the user says otherwise.
        border_type: Type of float inputs and outputs when the recipe is fully integer.
        compiler: Makes the file to ship and tells the placement.
        runners: Runners on this machine that can stand for it, the first one for latency.
        graph_passes: Passes over the exported graph, in order.
        flatbuffer_passes: Passes over the final flatbuffer, in order.
        aliases: Other names for it.
    """

    name: str
    title: str
    recipes: tuple[str, ...]
    layout: Layout
    border_type: BorderType
    compiler: Compiler
    runners: tuple[str, ...]
    graph_passes: tuple[str, ...]
    flatbuffer_passes: tuple[str, ...]
    aliases: tuple[str, ...] = ()


# In the order in which they run; a target may add its own.
GRAPH_PASSES = (
    "use_float32",  # first: later passes compute with weights, and half would round them
    "use_evaluation_mode",  # before folding, which needs batch norms with running statistics
    "fold_batch_norm",
    "pool_spatial_mean",
    "remove_dead_code",  # last: drops what the others left without users
)
FLATBUFFER_PASSES = (
    "remove_unused_tensors",  # first: what goes needs neither name nor buffer
    "name_tensors",
    "deduplicate_buffers",  # after the tensors are settled: drops buffers that none uses
    "lower_operator_versions",  # last: it looks at what the operators have become
)
