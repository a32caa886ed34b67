"""The model as it came in: an exported program with names, examples and a way to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Border:
    """One tensor input or output of the original model.

    Attributes:
        name: Its name in the signature: the argument of forward, the key of a dict; leaves of
            nested structures are joined with `_`.
        position: Its place among all leaves of the inputs or outputs.
        shape: Its shape.
        dtype: Its torch dtype.
    """

    name: str
    position: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Source:
    """A model, ready for the graph passes.

    Attributes:
        name: Stem for file names.
        origin: The path, or the module's class, that it came from.
        sha256: Of the file, or None for a module given in Python.
        program: The exported program.
        reference: Runs the original model: takes the leaves of the inputs, returns its output
            structure.
        example: Leaves of the example inputs, in order; constants among them are frozen.
        in_spec: Structure of (args, kwargs) that the leaves belong to.
        inputs: The tensor inputs.
        outputs: The tensor outputs.
        output_structure: The reference's output on the example, with its structure.
        warnings: What the user should know about how the model was read.
    """

    name: str
    origin: str
    sha256: str | None
    program: torch.export.ExportedProgram
    reference: Callable[[list[Any]], Any]
    example: list[Any]
    in_spec: Any
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    output_structure: Any
    warnings: tuple[str, ...]
