"""Float borders around an integer model."""

from __future__ import annotations

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.quantize.float_borders import add_float_borders
from tests.flatbuffers import OpSpec, build_bytes, constant, op, run, tensor


def border_types(model: bytes) -> list[tuple[str, str]]:
    parsed = flatbuffer.parse(model)
    main = parsed.subgraphs[0]
    tensors = [main.tensors[i] for i in (*main.inputs, *main.outputs)]
    return [(flatbuffer.tensor_name(t), flatbuffer.type_name(t)) for t in tensors]


def read_again() -> list[OpSpec]:
    """Two layers; the output of the first is an output of the model too."""
    x, e, y = (tensor(n, (1, 4), scale=s) for n, s in (("x", 0.1), ("e", 0.2), ("y", 0.5)))
    bias = constant("b", np.zeros(4, np.int32), scale=0.001)
    return [
        op("FULLY_CONNECTED", [x, constant("w1", np.eye(4, dtype=np.int8) * 100, scale=0.01), bias],
           [e], version=4),
        op("FULLY_CONNECTED", [e, constant("w2", np.eye(4, dtype=np.int8) * 100, scale=0.02), bias],
           [y], version=4),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> bytes:
    operators = read_again()
    return build_bytes(
        operators, outputs=[operators[0].outputs[0], operators[1].outputs[0]], signature=True
    )


def test_borders_are_float_under_their_old_names_and_the_inside_is_not(model: bytes) -> None:
    floats = add_float_borders(model)
    assert border_types(floats) == [("x", "float32"), ("e", "float32"), ("y", "float32")]
    parsed = flatbuffer.parse(floats)
    names = [flatbuffer.operator_name(parsed, o) for o in parsed.subgraphs[0].operators]
    assert names == ["QUANTIZE", "FULLY_CONNECTED", "FULLY_CONNECTED", "DEQUANTIZE", "DEQUANTIZE"]


def test_it_computes_the_same_also_where_an_output_is_read_inside(model: bytes) -> None:
    x = np.array([[1.0, -2.0, 3.0, 0.5]], np.float32)
    e, y = run(add_float_borders(model), x)
    integers = np.rint(x / np.float32(0.1)).astype(np.int8)
    e_integers, y_integers = run(model, integers)
    np.testing.assert_allclose(e, e_integers * np.float32(0.2))
    np.testing.assert_allclose(y, y_integers * np.float32(0.5))
    np.testing.assert_allclose(e, x, atol=0.2)


def test_the_signature_names_the_float_tensors(model: bytes) -> None:
    floats = flatbuffer.parse(add_float_borders(model))
    main = floats.subgraphs[0]
    inputs, outputs = flatbuffer.signatures(floats)["serving_default"]
    assert list(inputs.values()) == [int(i) for i in main.inputs]
    assert list(outputs.values()) == [int(i) for i in main.outputs]


def test_integers_that_mean_integers_stay() -> None:
    ids, out = tensor("ids", (2,), "int32"), tensor("out", (2,), "int32")
    model = build_bytes([op("ADD", [ids, constant("one", np.ones(2, np.int32))], [out])])
    assert border_types(add_float_borders(model)) == [("ids", "int32"), ("out", "int32")]
