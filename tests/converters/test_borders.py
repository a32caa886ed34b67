"""Borders: which tensors are images, and how values cross into the file and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch.nn import functional as F

from edgeport.converters.borders import (
    BorderedModule,
    FileBorder,
    class_outputs,
    example_for,
    image_inputs,
    image_outputs,
    to_numpy,
)
from edgeport.converters.export import from_module
from edgeport.errors import InputError
from edgeport.source import Border
from tests.models import assert_close, graph, outputs, quiet

pytestmark = quiet

both_forms = pytest.mark.parametrize("core", [False, True], ids=["as exported", "core ATen"])
IMAGE = torch.rand(1, 3, 8, 8)


class Function(nn.Module):
    """A module of one function, and a convolution, a norm and a linear layer for it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.conv, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.norm, self.group = nn.BatchNorm2d(3), nn.GroupNorm(1, 3)
        self.linear, self.prelu = nn.Linear(8, 8), nn.PReLU(3)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


IN_AND_OUT = {
    "a convolution": lambda m, x: m.conv(x),
    "activations around it": lambda m, x: F.hardswish(m.conv(F.relu6(x))),
    "a residual": lambda m, x: m.second(m.conv(x)) + m.conv(x),
    "a residual of the input": lambda m, x: m.up(m.conv(x))[:, :, :8, :8] + x,
    "a concatenation": lambda m, x: torch.cat([m.conv(x), x], 1),
    "padding first": lambda m, x: m.conv(F.pad(x, (1, 1, 1, 1))),
    "reflection first": lambda m, x: m.conv(F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "normalising first": lambda m, x: m.conv((x - torch.rand(3, 1, 1)) / torch.rand(1, 3, 1, 1)),
    "other channel order first": lambda m, x: m.conv(x.flip(1)),
    "channels picked first": lambda m, x: m.conv(torch.index_select(x, 1, torch.tensor([2, 1, 0]))),
    "channels split first": lambda m, x: m.conv(torch.cat(x.chunk(3, 1)[::-1], 1)),
    "a cut first": lambda m, x: m.conv(x[:, :, 1:-1, 1:-1]),
    "a batch norm": lambda m, x: m.norm(x),
    "a group norm": lambda m, x: m.group(x),
    "pooling": lambda m, x: F.max_pool2d(x, 2),
    "average pooling": lambda m, x: F.avg_pool2d(x, 2),
    "resizing": lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda m, x: F.interpolate(x, scale_factor=2),
    "a transposed convolution": lambda m, x: m.up(m.conv(x)),
    "a gate": lambda m, x: m.conv(x) * m.conv(x).mean((2, 3), keepdim=True).sigmoid(),
    "a softmax of channels": lambda m, x: m.conv(x).softmax(1),
    "a change in place": lambda m, x: m.conv(x).add_(1).relu_(),
    "half of the channels": lambda m, x: m.conv(x).split(2, 1)[1],
}
NEITHER = {
    "channels last inside": lambda m, x: F.conv2d(x.permute(0, 3, 1, 2), torch.rand(4, 8, 3, 3))
    .permute(0, 2, 3, 1),
    "a linear layer": lambda m, x: m.linear(x),
    "attention": lambda m, x: (x @ x.transpose(-1, -2)).softmax(-1) @ x,
    "arithmetic": lambda m, x: x * 2 + 1,
    "kernels for a constant image": lambda m, x: F.conv2d(torch.rand(1, 3, 9, 9), x)
    .permute(0, 2, 3, 1),
    "a grid for a constant image": lambda m, x: F.grid_sample(
        torch.rand(1, 3, 4, 4), x[..., :2], align_corners=False).permute(0, 2, 3, 1),
}  # fmt: skip


@both_forms
@pytest.mark.parametrize("name", IN_AND_OUT)
def test_images_are_found_at_both_ends(name: str, core: bool) -> None:
    made = graph(Function(IN_AND_OUT[name]).eval(), IMAGE, core=core)
    assert (image_inputs(made), image_outputs(made)) == ({0}, {0})


def test_a_parametric_unit_tells_that_its_input_is_an_image() -> None:
    # as core ATen, it is arithmetic that could be anything
    made = graph(Function(lambda m, x: m.prelu(x)), IMAGE)
    assert (image_inputs(made), image_outputs(made)) == ({0}, {0})


@both_forms
@pytest.mark.parametrize("name", NEITHER)
def test_what_is_not_used_as_an_image_is_none(name: str, core: bool) -> None:
    made = graph(Function(NEITHER[name]).eval(), IMAGE, core=core)
    assert (image_inputs(made), image_outputs(made)) == (set(), set())


@both_forms
def test_only_the_image_of_a_resampling_is_one(core: bool) -> None:
    made = graph(
        Function(lambda m, x, grid: F.grid_sample(m.conv(x), grid, align_corners=False)),
        IMAGE, torch.rand(1, 5, 5, 2), core=core,
    )  # fmt: skip
    assert (image_inputs(made), image_outputs(made)) == ({0}, {0})


def test_other_ranks_are_no_images() -> None:
    pooled = graph(Function(lambda m, x: m.conv(x).mean((2, 3))), IMAGE)
    assert (image_inputs(pooled), image_outputs(pooled)) == ({0}, set())
    single = graph(Function(lambda m, x: m.conv(x)), torch.rand(3, 8, 8))
    assert (image_inputs(single), image_outputs(single)) == (set(), set())


def test_positions_count_all_leaves() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, scale: float, more: dict[str, Any], x: torch.Tensor) -> Any:
            return None, {"sum": more["y"].sum(), "map": self.conv(x) * scale}

    made = graph(Many(), 2.0, {"y": torch.rand(2), "n": None}, IMAGE)
    assert (image_inputs(made), image_outputs(made)) == ({3}, {2})


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda m, x: m.linear(x[:, 0, 0]), True),
        (lambda m, x: m.linear(x[:, 0, 0]).softmax(1), True),
        (lambda m, x: m.conv(x).mean((2, 3)), True),
        (lambda m, x: m.conv(x).mean((2, 3)).flatten(1), True),
        (lambda m, x: m.linear(x[:, 0, 0]).argmax(1), False),
        (lambda m, x: m.linear(x[:, 0, 0])[:, :2], False),
        (lambda m, x: m.linear(x), False),
    ],
)
def test_scores_of_classes_are_guessed(function: Any, found: bool) -> None:
    assert class_outputs(graph(Function(function), IMAGE)) == ({0} if found else set())


# Crossing the border


def border(
    shape: tuple[int, ...], dtype: torch.dtype, file_dtype: str, channels_last: bool = False,
    scale: float | None = None, zero_point: int | None = None,
) -> FileBorder:  # fmt: skip
    return FileBorder(
        Border("x", 0, shape, dtype), channels_last, np.dtype(file_dtype), scale, zero_point
    )


images = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=4, max_dims=4, max_side=4),
    elements=st.floats(-100, 100, width=32),
)  # fmt: skip


@given(images, st.booleans())
def test_floats_cross_the_border_and_back_unchanged(value: np.ndarray, last: bool) -> None:
    b = border(value.shape, torch.float32, "float32", last)
    filed = b.to_file(value)
    assert filed.shape == b.shape
    assert filed.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(b.from_file(filed), value)


@given(
    images, st.booleans(), st.floats(0.0078125, 10, width=32), st.integers(-128, 127),
    st.sampled_from(["int8", "int16"]),
)  # fmt: skip
def test_quantized_values_come_back_to_half_a_step_or_saturate(
    value: np.ndarray, last: bool, scale: float, zero: int, dtype: str
) -> None:
    b = border(value.shape, torch.float32, dtype, last, scale, zero)
    back = b.from_file(b.to_file(value))
    limits = np.iinfo(dtype)
    low, high = (limits.min - zero) * scale, (limits.max - zero) * scale
    expected = np.clip(value, low, high)
    assert back.dtype == np.float32
    assert back.shape == value.shape
    assert np.abs(back - expected).max() <= scale * 0.5001 + 1e-5 * np.abs(expected).max()


@given(arrays.arrays(np.int8, (2, 3, 4, 5)))
def test_integers_of_the_file_survive_a_round_trip(steps: np.ndarray) -> None:
    b = border((2, 5, 3, 4), torch.float32, "int8", True, 0.037, -7)
    np.testing.assert_array_equal(b.to_file(b.from_file(steps)), steps)


def test_shapes_and_layouts_are_told() -> None:
    b = border((1, 3, 4, 5), torch.float32, "int8", True, 0.1, 0)
    assert (b.name, b.shape, b.layout) == ("x", (1, 4, 5, 3), "channels-last")
    plain = border((1, 3, 4, 5), torch.float32, "float32")
    assert (plain.shape, plain.layout) == ((1, 3, 4, 5), "as the model")


@pytest.mark.parametrize("value", [torch.tensor(2.5), np.float32(2.5), np.array(2.5)])
def test_scalars_stay_scalars(value: Any) -> None:
    b = border((), torch.float32, "float32")
    filed = b.to_file(value)
    assert filed.shape == () == b.shape
    assert b.from_file(filed) == 2.5
    quantized = border((), torch.float32, "int8", False, 0.5, 3)
    assert quantized.to_file(value).shape == ()
    assert quantized.to_file(value) == 8


def test_integers_that_the_file_can_not_hold_are_refused() -> None:
    b = border((2,), torch.int64, "int32")
    np.testing.assert_array_equal(
        b.to_file(np.array([-(2**31), 2**31 - 1])), np.array([-(2**31), 2**31 - 1])
    )
    for value in ([0, 2**31], [-(2**31) - 1, 0]):
        with pytest.raises(InputError, match="`x`"):
            b.to_file(torch.tensor(value))


def test_nan_has_no_place_among_integers() -> None:
    b = border((2,), torch.float32, "int8", False, 0.1, 0)
    with pytest.raises(InputError, match="NaN"):
        b.to_file(np.array([0.0, np.nan], np.float32))
    np.testing.assert_array_equal(
        b.to_file(np.array([np.inf, -np.inf], np.float32)), np.array([127, -128], np.int8)
    )


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (torch.tensor([1.5], dtype=torch.bfloat16), "float32"),
        (torch.tensor([1.5], dtype=torch.float16), "float16"),
        (torch.tensor([1.5], requires_grad=True), "float32"),
        (torch.tensor([3]), "int64"),
        (torch.tensor([True]), "bool"),
        (torch.tensor([1 + 2j]).conj().imag, "float32"),
    ],
)
def test_any_tensor_becomes_an_array(tensor: torch.Tensor, dtype: str) -> None:
    found = to_numpy(tensor)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == tensor.tolist()


# The module that is converted


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        x.mul_(2)
        return {"map": self.conv(x) * scale, "input": x, "none": None}


def test_the_bordered_module_computes_the_same_in_either_layout() -> None:
    module, x = InPlace(), torch.rand(1, 3, 6, 6)
    source = from_module(module, (x.clone(), 3.0), None)
    made = source.program.module(check_guards=False)
    expected = outputs(module, x, 3.0)
    for last in (False, True):
        names = {"x"} if last else set()
        bordered = BorderedModule(made, source, names, {"map"} if last else set())
        example = example_for(source, names)
        given = example["x"].clone()
        found = bordered(**example)
        assert list(found) == ["map", "input"]
        values = [found["map"].permute(0, 3, 1, 2) if last else found["map"], found["input"]]
        assert_close(values, expected, 1e-6)
        # a file can't change its inputs, and the example has to serve again
        assert torch.equal(example["x"], given)
        assert torch.equal(source.example[0], x)
