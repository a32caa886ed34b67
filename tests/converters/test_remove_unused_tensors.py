"""Removing tensors that nothing uses."""

from __future__ import annotations

import numpy as np

from edgeport import flatbuffer
from edgeport.converters.flatbuffer_passes.remove_unused_tensors import remove_unused_tensors
from tests.flatbuffers import build, constant, op, run, tensor


def model_with_leftovers() -> object:
    x, y = tensor("x", (1, 4), "float32"), tensor("y", (1, 2), "float32")
    w = constant("w", np.arange(8, dtype=np.float32).reshape(2, 4))
    model = build([op("FULLY_CONNECTED", [x, w, None], [y])], signature=True)
    schema = flatbuffer.schema()
    main = model.subgraphs[0]
    for name in ("first", "last"):
        leftover = schema.TensorT()
        leftover.name, leftover.shape, leftover.buffer = name, np.array([1], np.int32), 0
        main.tensors.insert(0 if name == "first" else len(main.tensors), leftover)
    # What was put in front moves everything by one.
    main.inputs, main.outputs = np.add(main.inputs, 1), np.add(main.outputs, 1)
    operator = main.operators[0]
    operator.inputs = np.array([i + 1 if i >= 0 else -1 for i in operator.inputs], np.int32)
    operator.outputs = np.add(operator.outputs, 1)
    for entry in (*model.signatureDefs[0].inputs, *model.signatureDefs[0].outputs):
        entry.tensorIndex += 1
    return model


def test_leftovers_go_and_the_model_computes_the_same() -> None:
    model = model_with_leftovers()
    x = np.ones((1, 4), np.float32)
    before = run(flatbuffer.serialize(model), x)
    assert remove_unused_tensors(model) == 2
    names = [flatbuffer.tensor_name(t) for t in model.subgraphs[0].tensors]  # type: ignore[attr-defined]
    assert sorted(names) == ["w", "x", "y"]
    np.testing.assert_array_equal(run(flatbuffer.serialize(model), x)[0], before[0])
    inputs, outputs = flatbuffer.signatures(model)["serving_default"]
    assert [names[inputs["x"]], names[outputs["y"]]] == ["x", "y"]


def test_a_model_without_leftovers_is_not_touched() -> None:
    model = build([op("RELU", [tensor("x", (1, 4))], [tensor("y", (1, 4))])])
    content = flatbuffer.serialize(model)
    assert remove_unused_tensors(model) == 0
    assert flatbuffer.serialize(model) == content
