"""Naming tensors after their operators."""

from __future__ import annotations

import numpy as np

from edgeport import flatbuffer
from edgeport.converters.flatbuffer_passes.name_tensors import name_tensors
from tests.flatbuffers import build, constant, op, run, tensor


def test_tensors_are_named_after_the_operator_that_makes_or_uses_them() -> None:
    x, h, y = (tensor(n, (1, 4), "float32") for n in ("x", "long;name", "y"))
    w = constant("long;name;1", np.eye(4, dtype=np.float32))
    model = build(
        [
            op("FULLY_CONNECTED", [x, w, constant("b", np.ones(4, np.float32))], [h]),
            op("MUL", [h, constant("c", np.full(4, 2, np.float32))], [y]),
        ]
    )
    values = np.arange(4, dtype=np.float32).reshape(1, 4)
    before = run(flatbuffer.serialize(model), values)
    assert name_tensors(model) == 4
    names = {flatbuffer.tensor_name(t) for t in model.subgraphs[0].tensors}
    assert names == {
        "x", "y", "fully_connected_0", "fully_connected_0_weights", "fully_connected_0_bias",
        "mul_1_input_1",
    }  # fmt: skip
    np.testing.assert_array_equal(run(flatbuffer.serialize(model), values)[0], before[0])


def test_a_second_run_changes_nothing() -> None:
    model = build([op("RELU", [tensor("x", (1, 4))], [tensor("y", (1, 4))])])
    name_tensors(model)
    assert name_tensors(model) == 0


def test_names_of_the_border_are_never_given_twice() -> None:
    x, h = tensor("relu_0", (1, 4)), tensor("h", (1, 4))
    model = build([op("RELU", [x], [h]), op("RELU", [h], [tensor("y", (1, 4))])])
    name_tensors(model)
    names = [flatbuffer.tensor_name(t) for t in model.subgraphs[0].tensors]
    assert len(set(names)) == len(names)
    assert "relu_0" in names
