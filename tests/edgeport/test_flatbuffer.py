"""Reading and writing flatbuffers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.errors import ModelFileError
from tests.flatbuffers import OpSpec, build, build_bytes, constant, op, run, tensor


def linear() -> list[OpSpec]:
    x, y = tensor("x", (1, 5), "float32"), tensor("y", (1, 3), "float32")
    w = constant("w", np.arange(15, dtype=np.float32).reshape(3, 5))
    return [op("FULLY_CONNECTED", [x, w, constant("b", np.ones(3, np.float32))], [y])]


def data_offsets(content: bytes) -> list[int]:
    model = flatbuffer.schema().Model.GetRootAs(bytearray(content), 0)
    starts = []
    for i in range(model.BuffersLength()):
        table = model.Buffers(i)._tab
        if model.Buffers(i).DataLength():
            starts.append(table.Vector(table.Offset(4)))
    return starts


def test_written_constants_are_aligned_to_16_bytes() -> None:
    operators = linear() + [
        op("ADD", [tensor("y", (1, 3), "float32"), constant("c", np.ones(3, np.float32))],
           [tensor("z", (1, 3), "float32")])
    ]  # fmt: skip
    starts = data_offsets(flatbuffer.serialize(build(operators)))
    assert len(starts) >= 3
    assert all(start % 16 == 0 for start in starts)


def test_reading_and_writing_keeps_the_bytes() -> None:
    once = flatbuffer.serialize(build(linear()))
    assert flatbuffer.serialize(flatbuffer.parse(once)) == once


def test_a_rewritten_model_computes_the_same() -> None:
    x = np.linspace(-1, 1, 5, dtype=np.float32).reshape(1, 5)
    written = flatbuffer.serialize(build(linear()))
    expected = x @ np.arange(15, dtype=np.float32).reshape(3, 5).T + 1
    (y,) = run(written, x)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_buffers_behind_the_flatbuffer_are_brought_in() -> None:
    model = build(linear())
    behind = np.arange(15, dtype=np.float32).tobytes()
    weights = next(t for t in model.subgraphs[0].tensors if flatbuffer.tensor_name(t) == "w")
    buffer = model.buffers[weights.buffer]
    buffer.data, buffer.offset, buffer.size = None, 2, len(behind)  # the true offset comes below
    size = len(flatbuffer.serialize(model))
    buffer.offset = size
    content = flatbuffer.serialize(model)
    assert len(content) == size
    parsed = flatbuffer.parse(content + behind)
    index = [flatbuffer.tensor_name(t) for t in parsed.subgraphs[0].tensors].index("w")
    values = flatbuffer.constant(parsed, parsed.subgraphs[0].tensors[index])
    assert values is not None
    assert values.ravel().tolist() == list(range(15))
    with pytest.raises(ModelFileError, match="beyond the end"):
        flatbuffer.parse(content + behind[:-1])


@pytest.mark.parametrize("content", [b"", b"TFL3", b"\0" * 64, b"PK\x03\x04" + b"\0" * 60])
def test_other_files_are_refused_by_their_content(content: bytes) -> None:
    with pytest.raises(ModelFileError, match="TFL3"):
        flatbuffer.parse(content, where="f")


def test_every_truncation_is_an_error_or_a_model_but_never_a_crash() -> None:
    whole = build_bytes(linear())
    for end in range(8, len(whole), 7):
        with contextlib.suppress(ModelFileError):  # any other error fails the test
            assert flatbuffer.parse(whole[:end]).subgraphs


def test_a_model_without_a_graph_is_refused() -> None:
    model = build(linear())
    model.subgraphs = []
    with pytest.raises(ModelFileError, match="no graph"):
        flatbuffer.parse(flatbuffer.serialize(model))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file") as error:
        flatbuffer.read_file(tmp_path / "none.tflite")
    assert error.value.where == str(tmp_path / "none.tflite")


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (
            op("CONV_2D", [tensor("x", (1, 8, 8, 4)), constant("w", np.ones((6, 3, 3, 2), np.int8)),
                           None], [tensor("y", (1, 4, 4, 6))]),  # grouped: 2 of 4 channels
            4 * 4 * 6 * 3 * 3 * 2,
        ),
        (
            op("DEPTHWISE_CONV_2D", [tensor("x", (1, 8, 8, 4)),
                                     constant("w", np.ones((1, 5, 5, 4), np.int8)), None],
               [tensor("y", (1, 8, 8, 4))]),
            8 * 8 * 4 * 25,
        ),
        (
            op("FULLY_CONNECTED", [tensor("x", (2, 7)), constant("w", np.ones((3, 7), np.int8)),
                                   None], [tensor("y", (2, 3))]),
            2 * 3 * 7,
        ),
        (
            op("TRANSPOSE_CONV", [constant("s", np.array([1, 8, 8, 2], np.int32)),
                                  constant("w", np.ones((2, 3, 3, 5), np.int8)),
                                  tensor("x", (1, 4, 4, 5))], [tensor("y", (1, 8, 8, 2))]),
            4 * 4 * 5 * 2 * 9,
        ),
        (
            op("BATCH_MATMUL", [tensor("a", (2, 3, 4)), tensor("b", (2, 4, 5))],
               [tensor("y", (2, 3, 5))]),
            2 * 3 * 5 * 4,
        ),
        (
            op("BATCH_MATMUL", [tensor("a", (2, 4, 3)), tensor("b", (2, 4, 5))],
               [tensor("y", (2, 3, 5))], adjX=True),
            2 * 3 * 5 * 4,
        ),
        (op("RELU", [tensor("x", (1, 8))], [tensor("y", (1, 8))]), 0),
    ],
)  # fmt: skip
def test_multiply_accumulates_as_counted_by_hand(operator: OpSpec, expected: int) -> None:
    assert flatbuffer.total_multiply_accumulates(build([operator])) == expected
