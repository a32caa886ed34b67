"""What a conversion gives: files, a report, and a way to run the model here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeport.output import write_all
from edgeport.report import Report


@dataclass(frozen=True, slots=True)
class Artifact:
    """A converted model.

    Attributes:
        contents: The bytes of each file by name, `report.json` among them.
        report: Everything that is known about the conversion.
        folder: Where the files were written, or None if they were not.
    """

    contents: Mapping[str, bytes] = field(repr=False)  # megabytes
    report: Report
    folder: Path | None
    _run: Callable[..., Any] = field(repr=False)

    @property
    def files(self) -> dict[str, Path | str]:
        """The files by role (`model` is the one to ship), as paths, or names if not written."""
        return {
            file.role: self.folder / file.name if self.folder else file.name
            for file in self.report.files
        }

    @property
    def model(self) -> bytes:
        """The bytes of the file to ship."""
        return self.contents[next(f.name for f in self.report.files if f.role == "model")]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on this machine, as the original would be called.

        Args:
            *args: Positional inputs of the original model, as torch tensors or numpy arrays, in
                its shapes; float in whatever the file holds.
            **kwargs: Keyword inputs of the original model.

        Returns:
            The outputs in the original model's structure, shapes and types: tensors when any
            input was a tensor, arrays otherwise. A file for an accelerator is represented by the
            flatbuffer that its compiler was given, on LiteRT's CPU kernels.

        Raises:
            InputError: The inputs do not fit the model.
            NotCheckedError: The runtime can't run the model.
        """
        return self._run(args, kwargs)

    def save(self, folder: str | Path) -> Path:
        """Writes all files into a folder, all of them or none.

        Raises:
            OutputError: They can't be written.
        """
        path = Path(folder)
        write_all(path, self.contents)
        return path
