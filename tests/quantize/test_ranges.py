"""Ranges are the smallest and largest values of every activation over all samples."""

from __future__ import annotations

import numpy as np
import pytest

from edgeport import flatbuffer
from edgeport.errors import CalibrationError, ConversionError
from edgeport.quantize.ranges import Ranges, observe
from tests.flatbuffers import build_bytes, constant, op, tensor

RNG = np.random.default_rng(0)


def small_model() -> bytes:
    """Builds a convolution, an activation, a division and a fully connected layer."""
    x = tensor("x", (1, 6, 6, 3), "float32")
    y, z = tensor("y", (1, 6, 6, 4), "float32"), tensor("z", (1, 6, 6, 4), "float32")
    rows, out = tensor("rows", (1, 144), "float32"), tensor("out", (1, 5), "float32")
    w = constant("w", RNG.normal(size=(4, 3, 3, 3)).astype(np.float32))
    b = constant("b", RNG.normal(size=4).astype(np.float32))
    shape = constant("shape", np.array([1, 144], np.int32))
    head = constant("head", RNG.normal(size=(5, 144)).astype(np.float32))
    return build_bytes(
        [
            op("CONV_2D", [x, w, b], [y]),
            op("TANH", [y], [z]),
            op("RESHAPE", [z, shape], [rows]),
            op("FULLY_CONNECTED", [rows, head, None], [out]),
        ],
        signature=True,
    )


def make_samples(count: int = 6) -> list[dict[str, np.ndarray]]:
    return [
        {"x": RNG.normal(size=(1, 6, 6, 3), scale=i + 1).astype(np.float32)} for i in range(count)
    ]


def brute_force(model: bytes, samples: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Runs LiteRT's reference kernels with every tensor preserved."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model, experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )  # fmt: skip
    interpreter.allocate_tensors()
    found: dict[str, np.ndarray] = {}
    for sample in samples:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sample["x"])
        interpreter.invoke()
        for details in interpreter.get_tensor_details():
            if details["name"] in ("x", "y", "z", "rows", "out"):
                values = interpreter.get_tensor(details["index"]).ravel()
                seen = found.get(details["name"], values)
                found[details["name"]] = np.concatenate([seen, values])
    return found


def test_ranges_are_those_of_every_activation_over_all_samples() -> None:
    model, samples = small_model(), make_samples()
    ranges = observe(model, samples, threads=1)
    expected = brute_force(model, samples)
    assert set(ranges.minimum) == set(ranges.maximum) == {"x", "y", "z", "rows", "out"}
    for name, values in expected.items():
        assert ranges.minimum[name] == pytest.approx(values.min(), rel=1e-5, abs=1e-5)
        assert ranges.maximum[name] == pytest.approx(values.max(), rel=1e-5, abs=1e-5)
    assert ranges.samples == 6
    assert ranges.not_finite == ()


def test_ranges_depend_neither_on_the_order_nor_on_the_threads() -> None:
    model, samples = small_model(), make_samples()
    one = observe(model, samples, threads=1)
    assert observe(model, samples[::-1], threads=1) == one
    assert observe(model, iter(samples), threads=3) == one


def test_progress_is_told_sample_by_sample() -> None:
    told: list[int] = []
    observe(small_model(), make_samples(3), threads=1, progress=told.append)
    assert told == [1, 2, 3]


def test_no_samples_are_refused() -> None:
    with pytest.raises(CalibrationError, match="no calibration samples"):
        observe(small_model(), [], threads=1)


def logarithm() -> bytes:
    x, y = tensor("x", (1, 4), "float32"), tensor("y", (1, 4), "float32")
    return build_bytes([op("LOG", [x], [y])], signature=True)


def test_values_that_are_not_finite_are_left_out_and_told() -> None:
    samples = [
        {"x": np.array([[1.0, np.e, 0.0, -1.0]], np.float32)},
        {"x": np.array([[1.0, 1.0, 1.0, np.e**2]], np.float32)},
    ]
    ranges = observe(logarithm(), samples, threads=1)
    assert ranges.not_finite == ("y",)
    assert ranges.minimum["y"] == 0.0
    assert ranges.maximum["y"] == pytest.approx(2.0)
    assert ranges.minimum["x"] == -1.0


def test_an_activation_that_is_never_finite_has_a_range_of_zero() -> None:
    ranges = observe(logarithm(), [{"x": np.zeros((1, 4), np.float32)}], threads=1)
    assert (ranges.minimum["y"], ranges.maximum["y"]) == (0.0, 0.0)
    assert ranges.not_finite == ("y",)


def test_integer_activations_have_no_ranges() -> None:
    x, n = tensor("x", (1, 4), "float32"), tensor("n", (1,), "int32")
    axis = constant("axis", np.array(1, np.int32))
    model = build_bytes([op("ARG_MAX", [x, axis], [n], outputType=2)], signature=True)
    ranges = observe(model, [{"x": np.ones((1, 4), np.float32)}], threads=1)
    assert ranges == Ranges({"x": 1.0}, {"x": 1.0}, 1, ())


def test_a_model_that_litert_refuses_is_an_error_that_says_so() -> None:
    x, y = tensor("x", (1, 4), "float32"), tensor("y", (1, 4), "float32")
    model = build_bytes([op("CUSTOM", [x], [y], custom="Nobody")], signature=True)
    with pytest.raises(ConversionError, match="LiteRT can't run"):
        observe(model, [{"x": np.ones((1, 4), np.float32)}], threads=1)


def test_the_model_given_is_not_changed() -> None:
    model = small_model()
    before = flatbuffer.parse(model).subgraphs[0].outputs
    observe(model, make_samples(1), threads=1)
    assert list(flatbuffer.parse(model).subgraphs[0].outputs) == list(before)
