"""Recognising a model file by its first bytes; loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from edgeport import flatbuffer
from edgeport.converters.archive import refuse_other_archives
from edgeport.errors import ModelFileError, UsageError

_NO_PICKLES = (
    "unpickling can run any code, so edgeport does not; export the module with "
    "`torch.export.export` and save that with `torch.export.save`"
)
# First bytes of what people also have, and what to do with it.
_OTHER_FILES = (
    (tuple(b"\x80%c" % n for n in range(2, 6)), "a pickle", _NO_PICKLES),
    (b"\x89HDF", "an HDF5 (Keras) file", "edgeport reads PyTorch models"),
    (b"\x1f\x8b", "a gzip file", "unpack it first"),
    (b"#!", "a script", "call `edgeport.convert(module, example_inputs)` in it"),
)  # fmt: skip


def check_readable(path: Path) -> None:
    """Checks what can be known about a model file without loading anything heavy.

    Raises:
        UsageError: There is no such file, or it can't be opened.
        ModelFileError: It is no model that edgeport reads.
    """
    where = str(path)
    try:
        if path.is_dir():
            raise UsageError("this is a folder, not a model file", where=where)
        with path.open("rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        raise UsageError("no such file", where=where, hint="give the path of a model") from None
    except OSError as e:
        raise UsageError(e.strerror or str(e), where=where) from None
    if not head:
        raise ModelFileError("the file is empty", where=where)
    if head.startswith(b"PK\x03\x04"):
        refuse_other_archives(path)
        return
    hint = "edgeport reads ExportedProgram archives; write one with `torch.export.save(program)`"
    if flatbuffer.is_flatbuffer(head):
        raise ModelFileError(
            "this is a LiteRT flatbuffer already",
            where=where,
            hint="`edgeport check FILE --target T` tells where it would run, "
            "`edgeport inspect FILE` what is in it",
        )
    for magic, what, advice in _OTHER_FILES:
        if head.startswith(magic):
            raise ModelFileError(f"this is {what}, not a model", where=where, hint=advice)
    raise ModelFileError("the file is not a model that edgeport knows", where=where, hint=hint)
