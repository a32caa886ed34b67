"""Where the operators of a finished flatbuffer would run on a target."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeport import flatbuffer
from edgeport.capture import captured
from edgeport.errors import ModelFileError, UsageError, from_os_error
from edgeport.report import CompilerReport, Placement
from edgeport.targets import get_target

SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a target makes of a file."""

    file: str
    target: str
    compiler: CompilerReport
    placement: Placement

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready data with a schema version."""
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}


def check_file(file: str | Path, target: str, *, verbose: bool = False) -> Checked:
    """Asks a target's compiler, or the prediction in its place, about a .tflite file.

    Raises:
        UsageError: There is no such file or target.
        ModelFileError: The file is no LiteRT flatbuffer.
        CompilerError: The compiler refuses the file.
    """
    chosen = get_target(target)
    path = Path(file)
    if not path.exists():
        raise UsageError("no such file", where=str(path))
    if path.is_dir():
        raise UsageError("this is a folder, not a .tflite file", where=str(path))
    with path.open("rb") as opened:
        head = opened.read(8)
    if not flatbuffer.is_flatbuffer(head):
        raise ModelFileError(
            "`edgeport check` reads .tflite files, and this is none",
            where=str(path),
            hint="`edgeport convert MODEL --target T` converts a model and tells the same",
        )
    content = flatbuffer.read_file(path)
    try:
        with tempfile.TemporaryDirectory(prefix="edgeport-") as folder:
            work = Path(folder) / "compile"
            work.mkdir()
            with captured(Path(folder) / "log", verbose=verbose):
                compilation = chosen.compiler.compile(content, path.stem, work)
    except OSError as e:
        raise from_os_error(e, "checking") from e
    return Checked(str(path), chosen.name, compilation.report, compilation.placement)
