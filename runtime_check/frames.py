"""Named arrays over a pipe: a length, then an .npz without pickles."""

from __future__ import annotations

import io
import struct
from typing import IO

import numpy as np

_HEADER = struct.Struct("<Q")


def write_frame(stream: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    """Writes one frame and flushes."""
    buffer = io.BytesIO()
    names = np.array(list(arrays), dtype=np.str_)
    numbered = {f"a{i}": array for i, array in enumerate(arrays.values())}
    np.savez(buffer, names=names, **numbered)  # type: ignore[arg-type] # numpy's stubs
    content = buffer.getbuffer()
    stream.write(_HEADER.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, np.ndarray] | None:
    """Reads one frame; None at the end of the stream, also in the middle of a frame."""
    header = _read(stream, _HEADER.size)
    if header is None:
        return None
    content = _read(stream, _HEADER.unpack(header)[0])
    if content is None:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as data:
        return {str(name): data[f"a{i}"] for i, name in enumerate(data["names"])}


def _read(stream: IO[bytes], size: int) -> bytes | None:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
