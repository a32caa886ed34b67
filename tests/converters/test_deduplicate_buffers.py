"""Tests of the pass that stores identical constants once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgeport import flatbuffer
from edgeport.converters.flatbuffer_passes.deduplicate_buffers import deduplicate_buffers
from tests.flatbuffers import OpSpec, build, constant, op, run, tensor


def adds(*values: list[int], metadata: dict[str, bytes] | None = None) -> Any:
    """Builds a chain of additions of the given constants."""
    tensors = [tensor(f"t{i}", (4,)) for i in range(len(values) + 1)]
    operators = [
        op("ADD", [tensors[i], constant(f"c{i}", np.array(v, np.int8))], [tensors[i + 1]])
        for i, v in enumerate(values)
    ]
    return build(operators, metadata=metadata)


def constants(model: Any) -> list[list[int]]:
    """Returns the values of all constants, tensor by tensor."""
    found = [flatbuffer.constant(model, t) for t in model.subgraphs[0].tensors]
    return [c.tolist() for c in found if c is not None]


def test_identical_constants_share_one_buffer() -> None:
    model = adds([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4])
    before = len(model.buffers)
    assert deduplicate_buffers(model) == 1
    assert len(model.buffers) == before - 1
    a, b, c = (t.buffer for t in model.subgraphs[0].tensors if flatbuffer.is_constant(model, t))
    assert a == c != b
    assert constants(model) == [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]]


def test_a_second_run_changes_nothing() -> None:
    model = adds([1, 2, 3, 4], [1, 2, 3, 4])
    deduplicate_buffers(model)
    once = flatbuffer.serialize(model)
    assert deduplicate_buffers(model) == 0
    assert flatbuffer.serialize(model) == once


def test_buffer_zero_stays_empty_and_activations_get_no_data() -> None:
    model = adds([0, 0, 0, 0], [0, 0, 0, 0])
    deduplicate_buffers(model)
    assert model.buffers[0].data is None
    activations = [t for t in model.subgraphs[0].tensors if flatbuffer.text(t.name).startswith("t")]
    assert len(activations) == 3
    assert not any(flatbuffer.is_constant(model, t) for t in activations)


def test_metadata_keeps_its_own_buffer_and_bytes() -> None:
    same = np.array([1, 2, 3, 4], np.int8)
    model = adds([9, 9, 9, 9], [9, 9, 9, 9], [1, 2, 3, 4], metadata={"note": same.tobytes()})
    model.buffers.insert(1, flatbuffer.schema().BufferT())
    for t in model.subgraphs[0].tensors:
        t.buffer += 1 if t.buffer >= 1 else 0
    model.metadata[0].buffer += 1
    assert deduplicate_buffers(model) == 2
    assert bytes(model.buffers[model.metadata[0].buffer].data) == same.tobytes()
    assert model.metadata[0].buffer not in {t.buffer for t in model.subgraphs[0].tensors}


def test_old_metadata_indices_follow() -> None:
    model = adds([1, 1, 1, 1], [1, 1, 1, 1], metadata={"note": b"text"})
    model.metadataBuffer = [model.metadata[0].buffer]
    model.metadata = []
    deduplicate_buffers(model)
    assert bytes(model.buffers[model.metadataBuffer[0]].data) == b"text"


def test_variable_tensors_keep_buffers_of_their_own() -> None:
    zeros = np.zeros(4, np.int8)
    states = [constant(f"s{i}", zeros, variable=True) for i in range(2)]
    x, y, z = (tensor(n, (4,)) for n in "xyz")
    model = build([op("ADD", [x, states[0]], [y]), op("ADD", [y, states[1]], [z])])
    assert deduplicate_buffers(model) == 0
    buffers = [t.buffer for t in model.subgraphs[0].tensors if t.isVariable]
    assert len(set(buffers)) == 2


def test_unused_buffers_go() -> None:
    model = adds([1, 2, 3, 4])
    model.buffers.append(flatbuffer.schema().BufferT())
    model.buffers[-1].data = np.arange(100, dtype=np.uint8)
    assert deduplicate_buffers(model) == 1
    assert all(b.data is None or len(b.data) == 4 for b in model.buffers)


@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_every_constant_keeps_its_values(values: list[list[int]]) -> None:
    model = adds(*values)
    deduplicate_buffers(model)
    assert constants(model) == values
    distinct = {tuple(v) for v in values}
    assert sum(b.data is not None and len(b.data) > 0 for b in model.buffers) == len(distinct)


def test_the_model_computes_the_same() -> None:
    operators: list[OpSpec] = []
    x = tensor("x", (1, 4, 4, 2))
    for i in range(3):
        y = tensor(f"y{i}", (1, 4, 4, 2))
        weights = constant(f"w{i}", np.arange(4, dtype=np.int8).reshape(2, 1, 1, 2))
        bias = constant(f"b{i}", np.array([3, 4], np.int32), scale=0.01)
        operators.append(op("CONV_2D", [x, weights, bias], [y], version=3))
        x = y
    model = build(operators)
    value = np.arange(32, dtype=np.int8).reshape(1, 4, 4, 2)
    before = run(flatbuffer.serialize(model), value)
    assert deduplicate_buffers(model) == 4
    after = run(flatbuffer.serialize(model), value)
    assert before[0].any()
    np.testing.assert_array_equal(before[0], after[0])
