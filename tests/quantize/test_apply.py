"""Each recipe writes the number formats that it promises, at the borders that were asked for."""

from __future__ import annotations

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.errors import ConversionError
from edgeport.quantize.apply import quantize
from edgeport.quantize.ranges import Ranges, observe
from edgeport.quantize.recipes import get_recipe
from tests.flatbuffers import build_bytes, constant, op, run, tensor

RNG = np.random.default_rng(1)
SAMPLES = [{"x": RNG.normal(size=(1, 8, 8, 4)).astype(np.float32)} for _ in range(4)]


def small_model() -> bytes:
    """Builds a convolution and an activation; the weights are large enough to be quantized."""
    x, y = tensor("x", (1, 8, 8, 4), "float32"), tensor("y", (1, 8, 8, 32), "float32")
    z = tensor("z", (1, 8, 8, 32), "float32")
    w = constant("w", RNG.normal(size=(32, 3, 3, 4)).astype(np.float32))
    b = constant("b", RNG.normal(size=32).astype(np.float32))
    return build_bytes(
        [op("CONV_2D", [x, w, b], [y], version=1), op("TANH", [y], [z])], signature=True
    )


@pytest.fixture(scope="module")
def model() -> bytes:
    return small_model()


@pytest.fixture(scope="module")
def ranges(model: bytes) -> Ranges:
    return observe(model, SAMPLES, threads=1)


def types(content: bytes) -> tuple[str, str, str, list[str]]:
    """Returns the types of input, weights and output, and the operators."""
    parsed = flatbuffer.parse(content)
    main = parsed.subgraphs[0]
    convolution = next(
        o for o in main.operators if flatbuffer.operator_name(parsed, o) == "CONV_2D"
    )
    indices = (main.inputs[0], convolution.inputs[1], main.outputs[0])
    names = [flatbuffer.operator_name(parsed, o) for o in main.operators]
    first, weights, last = (flatbuffer.type_name(main.tensors[i]) for i in indices)
    return first, weights, last, names


@pytest.mark.parametrize(
    ("recipe", "float_borders", "expected"),
    [
        ("float32", False, ("float32", "float32", "float32")),
        ("static_wi8_ai8", False, ("int8", "int8", "int8")),
        ("static_wi8_ai8", True, ("float32", "int8", "float32")),
        ("static_wi8_ai16", False, ("int16", "int8", "int16")),
        ("static_wi8_ai16", True, ("float32", "int8", "float32")),
        ("dynamic_wi8_afp32", False, ("float32", "int8", "float32")),
        ("dynamic_wi8_afp32", True, ("float32", "int8", "float32")),
    ],
)
def test_a_recipe_writes_what_it_promises(
    model: bytes, ranges: Ranges, recipe: str, float_borders: bool, expected: tuple[str, ...]
) -> None:
    how = get_recipe(recipe)
    content = quantize(
        model, how, ranges if how.needs_calibration else None, float_borders=float_borders
    )
    *found, names = types(content)
    assert tuple(found) == expected
    borders_inside = how.fully_integer and float_borders
    assert (names[0], names[-1]) == (
        ("QUANTIZE", "DEQUANTIZE") if borders_inside else ("CONV_2D", "TANH")
    )


def test_weights_alone_are_stored_as_integers_and_computed_as_floats(model: bytes) -> None:
    content = quantize(model, get_recipe("weight_only_wi8_afp32"), None)
    first, _, last, names = types(content)
    assert (first, last) == ("float32", "float32")
    assert "DEQUANTIZE" in names
    assert len(content) < len(model)


def test_no_quantization_gives_the_same_bytes(model: bytes) -> None:
    assert quantize(model, get_recipe("float32"), None) is model


def test_ranges_decide_the_scales(model: bytes, ranges: Ranges) -> None:
    parsed = flatbuffer.parse(quantize(model, get_recipe("static_wi8_ai8"), ranges))
    found = flatbuffer.quantization(parsed.subgraphs[0].tensors[parsed.subgraphs[0].inputs[0]])
    assert found is not None
    span = ranges.maximum["x"] - ranges.minimum["x"]
    assert found[0][0] == pytest.approx(span / 255, rel=1e-3)


@pytest.mark.parametrize("recipe", ["static_wi8_ai8", "dynamic_wi8_afp32"])
def test_the_same_model_gives_the_same_bytes(model: bytes, ranges: Ranges, recipe: str) -> None:
    how = get_recipe(recipe)
    needed = ranges if how.needs_calibration else None
    assert quantize(model, how, needed) == quantize(model, how, needed)


def test_an_integer_model_computes_nearly_the_same(model: bytes, ranges: Ranges) -> None:
    content = quantize(model, get_recipe("static_wi8_ai8"), ranges, float_borders=True)
    x = SAMPLES[0]["x"]
    expected, found = run(model, x)[0], run(content, x)[0]
    noise = float(np.square(expected - found).mean() / np.square(expected).mean())
    assert noise < 1e-2


@pytest.mark.parametrize("float_borders", [False, True])
def test_an_output_that_a_float_operator_reads_too_stays_in_the_signature(
    float_borders: bool,
) -> None:
    x, y = tensor("x", (1, 8), "float32"), tensor("scores", (1, 40), "float32")
    best = tensor("best", (1,), "int32")
    w = constant("w", RNG.normal(size=(40, 8)).astype(np.float32))
    axis = constant("axis", np.array([1], np.int32))
    model = build_bytes(
        [op("FULLY_CONNECTED", [x, w, None], [y]), op("ARG_MAX", [y, axis], [best], outputType=2)],
        outputs=[y, best], signature=True,
    )  # fmt: skip
    value = RNG.normal(size=(1, 8)).astype(np.float32)
    seen = observe(model, [{"x": value}], threads=1)
    content = quantize(model, get_recipe("static_wi8_ai8"), seen, float_borders=float_borders)
    parsed = flatbuffer.parse(content)
    main = parsed.subgraphs[0]
    _, outputs = flatbuffer.signatures(parsed)["serving_default"]
    assert [outputs["scores"], outputs["best"]] == [int(i) for i in main.outputs]
    expected = "float32" if float_borders else "int8"
    assert flatbuffer.type_name(main.tensors[outputs["scores"]]) == expected


def test_what_the_quantizer_refuses_is_an_error_with_a_way_out(model: bytes) -> None:
    with pytest.raises(ConversionError, match="ai-edge-quantizer refuses") as caught:
        quantize(model, get_recipe("static_wi8_ai8"), None)  # which needs ranges
    assert "--recipe" in (caught.value.hint or "")
