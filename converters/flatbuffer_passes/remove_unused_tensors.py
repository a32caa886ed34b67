"""Removes tensors that nothing uses."""

from __future__ import annotations

import numpy as np

from edgeport import flatbuffer


def remove_unused_tensors(model: flatbuffer.Model) -> int:
    """Tensors that no operator, border or signature uses, such as constants replaced by others.

    Their data goes with them once buffers are deduplicated. A float constant left over in an
    integer model would make tools take it for one that is not fully quantized.
    """
    removed = 0
    for number, subgraph in enumerate(model.subgraphs):
        used = {int(i) for i in (*subgraph.inputs, *subgraph.outputs)}
        for operator in subgraph.operators:
            for values in (operator.inputs, operator.outputs, operator.intermediates):
                used.update(flatbuffer.indices(values))
        signatures = [s for s in model.signatureDefs or [] if s.subgraphIndex == number]
        entries = [e for s in signatures for e in (*(s.inputs or ()), *(s.outputs or ()))]
        used.update(int(entry.tensorIndex) for entry in entries)
        kept = sorted(used)
        if len(kept) == len(subgraph.tensors):
            continue
        removed += len(subgraph.tensors) - len(kept)
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        subgraph.tensors = [subgraph.tensors[i] for i in kept]
        subgraph.inputs = _moved(subgraph.inputs, place)
        subgraph.outputs = _moved(subgraph.outputs, place)
        for operator in subgraph.operators:
            for name in ("inputs", "outputs", "intermediates"):
                values = getattr(operator, name)
                if values is not None:
                    setattr(operator, name, _moved(values, place))
        for entry in entries:
            entry.tensorIndex = place[int(entry.tensorIndex)]
    return removed


def _moved(indices: object, place: dict[int, int]) -> np.ndarray:
    return np.asarray([place[int(i)] for i in indices], dtype=np.int32)  # type: ignore[attr-defined]
