"""Stores constants with identical bytes once, and drops buffers that nothing uses.

Converters give every constant a buffer of its own: shapes, axes and paddings recur all over a
graph, and models with shared weights carry them several times.
"""

from __future__ import annotations

from edgeport.flatbuffer import Model


def deduplicate_buffers(model: Model) -> int:
    """Merges constant buffers with the same bytes and removes unused buffers.

    Matches buffers that hold data and belong to tensors. Tensors of different types may share
    bytes. Left alone are buffer 0, which the format keeps empty; the buffers of metadata, which
    tools read by index; and those of variable tensors, which the runtime writes into.

    Args:
        model: The object form of a flatbuffer, changed in place.

    Returns:
        The number of buffers removed.
    """
    tensors = [t for subgraph in model.subgraphs for t in subgraph.tensors]
    metadata = list(model.metadata or [])
    # Old writers list the buffers of metadata here instead.
    old_metadata = [int(b) for b in model.metadataBuffer] if _present(model.metadataBuffer) else []
    fixed = {0, *old_metadata, *(m.buffer for m in metadata)}
    fixed |= {t.buffer for t in tensors if t.isVariable}

    first: dict[bytes, int] = {}
    for tensor in tensors:
        data = model.buffers[tensor.buffer].data
        if tensor.buffer not in fixed and data is not None and len(data) > 0:
            tensor.buffer = first.setdefault(bytes(data), tensor.buffer)

    used = sorted(fixed | {t.buffer for t in tensors})
    new_index = {old: new for new, old in enumerate(used)}
    for tensor in tensors:
        tensor.buffer = new_index[tensor.buffer]
    for entry in metadata:
        entry.buffer = new_index[entry.buffer]
    if old_metadata:
        model.metadataBuffer = [new_index[b] for b in old_metadata]
    removed = len(model.buffers) - len(used)
    model.buffers = [model.buffers[old] for old in used]
    return removed


def _present(values: object) -> bool:
    # The reader gives 0 instead of None for some absent vectors.
    return values is not None and not isinstance(values, int)
