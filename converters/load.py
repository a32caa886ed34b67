"""Reading a model, from wherever it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from edgeport.converters.archive import read_archive
from edgeport.converters.export import from_module, from_program
from edgeport.converters.readable import check_readable
from edgeport.errors import UsageError
from edgeport.source import Source


def load_any(model: Any, args: Any = None, kwargs: Mapping[str, Any] | None = None) -> Source:
    """Reads a module, an exported program or a file.

    Raises:
        UsageError: It is none of these, or lacks example inputs.
        ConversionError: It can't be traced or read.
    """
    if isinstance(model, str | Path):
        return load_file(Path(model))
    if isinstance(model, torch.export.ExportedProgram):
        return from_program(model, name="model", origin="ExportedProgram")
    if isinstance(model, torch.nn.Module):
        return from_module(model, args, kwargs)
    raise UsageError(
        f"a model is an nn.Module, an ExportedProgram or a path, not {type(model).__name__}"
    )


def load_file(path: Path) -> Source:
    """Reads a model file.

    Raises:
        UsageError: There is no such file.
        ModelFileError: It is no model, is damaged, or is not safe to read.
    """
    check_readable(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    program = read_archive(path)
    return from_program(program, name=path.stem, origin=str(path), sha256=digest.hexdigest())
