"""Folding batch norms changes no output, and touches only what it may."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgeport.converters.graph_passes.fold_batch_norm import fold_batch_norm
from tests.models import (
    assert_close,
    finished,
    graph,
    operators,
    outputs,
    quiet,
    with_statistics,
)

pytestmark = quiet

NORMS = {"batch_norm", "_native_batch_norm_legit_no_training"}
both_forms = pytest.mark.parametrize("core", [False, True], ids=["as exported", "core ATen"])


def check(module: nn.Module, *args: Any, folded: int, core: bool = False) -> list[str]:
    """Folds, compares, and returns the operators that are left."""
    made = graph(module, *args, core=core)
    before = str(made.graph)
    expected = outputs(module, *args)
    changes = fold_batch_norm(made)
    assert changes == folded
    assert_close(outputs(finished(made), *args), expected, 2e-5)
    if not folded:
        assert str(made.graph) == before
    return operators(made)


def pair(layer: nn.Module, norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return with_statistics(nn.Sequential(layer, norm))


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (2, 4, 9)),
    "conv1d, dilated, grouped": (nn.Conv1d(4, 6, 3, dilation=2, groups=2), nn.BatchNorm1d(6),
                                 (2, 4, 9)),
    "conv2d": (nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.BatchNorm2d(5), (2, 3, 8, 7)),
    "conv2d without bias": (nn.Conv2d(3, 5, 1, bias=False), nn.BatchNorm2d(5), (1, 3, 4, 4)),
    "conv2d, depthwise": (nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), (1, 6, 5, 5)),
    "conv2d, padding same": (nn.Conv2d(3, 5, 3, padding="same"), nn.BatchNorm2d(5), (1, 3, 6, 6)),
    "conv2d, padding valid": (nn.Conv2d(3, 5, 3, padding="valid", bias=False), nn.BatchNorm2d(5),
                              (1, 3, 6, 6)),
    "conv3d": (nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), (1, 2, 4, 5, 4)),
    "conv3d, padding same": (nn.Conv3d(2, 4, 3, padding="same"), nn.BatchNorm3d(4),
                             (1, 2, 4, 5, 4)),
    "transposed conv1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), nn.BatchNorm1d(6), (2, 4, 5)),
    "transposed conv2d, grouped": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), nn.BatchNorm2d(6),
        (1, 4, 5, 5)),
    "transposed conv2d, dilated": (nn.ConvTranspose2d(4, 6, 3, dilation=2, bias=False),
                                   nn.BatchNorm2d(6), (1, 4, 5, 5)),
    "transposed conv3d, grouped": (nn.ConvTranspose3d(4, 4, 2, groups=4), nn.BatchNorm3d(4),
                                   (1, 4, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), (3, 4)),
    "linear without bias": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), (3, 4)),
    "no factors": (nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, affine=False), (1, 3, 6, 6)),
}  # fmt: skip


@both_forms
@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_norm_becomes_part_of_the_layer_before_it(name: str, core: bool) -> None:
    layer, norm, shape = LAYERS[name]
    left = check(pair(layer, norm), torch.randn(shape), folded=1, core=core)
    assert not NORMS & set(left)
    assert "getitem" not in left


@both_forms
def test_a_linear_layer_of_more_dimensions_is_left_alone(core: bool) -> None:
    # (N, L, C): the norm's channels are L
    module = pair(nn.Linear(4, 6), nn.BatchNorm1d(5))
    check(module, torch.randn(3, 5, 4), folded=0, core=core)


@both_forms
def test_a_convolution_without_a_batch_is_left_alone(core: bool) -> None:
    # (C, L): the norm's channels are L
    module = pair(nn.Conv1d(4, 5, 3), nn.BatchNorm1d(7))
    check(module, torch.randn(4, 9), folded=0, core=core)


def test_a_layer_whose_output_is_used_elsewhere_is_left_alone() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.conv(x)
            return self.norm(y) + y

    check(with_statistics(Forked()), torch.randn(1, 3, 5, 5), folded=0)


def test_a_change_in_place_between_layer_and_norm_is_kept() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.conv(x)
            y.clamp_(min=0)
            return self.norm(y)

    check(with_statistics(Between()), torch.randn(1, 3, 5, 5), folded=0)


def test_a_change_in_place_after_the_norm_is_kept() -> None:
    class After(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.norm(self.conv(x))
            y.add_(1)
            return y

    check(with_statistics(After()), torch.randn(1, 3, 5, 5), folded=1)


def test_weights_that_two_layers_share_are_folded_apart() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.second(self.conv(self.first(self.conv(x)))) + self.conv(x)

    check(with_statistics(Shared()), torch.randn(1, 3, 5, 5), folded=2)


def test_a_norm_behind_a_norm_is_folded_with_it() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    left = check(with_statistics(module), torch.randn(1, 3, 5, 5), folded=2)
    assert left == ["conv2d"]


def test_a_norm_in_training_mode_is_left_alone() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    made = graph(module, torch.randn(2, 3, 5, 5))
    before = str(made.graph)
    assert fold_batch_norm(made) == 0
    assert str(made.graph) == before


@both_forms
def test_a_norm_without_statistics_is_left_alone(core: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    check(module, torch.randn(2, 3, 5, 5), folded=0, core=core)


def test_factors_that_are_computed_are_not_lost() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            n = self.norm
            assert n.running_mean is not None
            return nn.functional.batch_norm(
                self.conv(x), n.running_mean, n.running_var, n.weight * 2, n.bias
            )

    check(with_statistics(Computed()), torch.randn(1, 3, 5, 5), folded=0)


def test_weights_that_are_inputs_are_left_alone() -> None:
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            normalised: torch.Tensor = self.norm(nn.functional.conv2d(x, w))
            return normalised

    module = with_statistics(Dynamic())
    check(module, torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), folded=0)


def test_a_norm_behind_something_else_is_left_alone() -> None:
    module = with_statistics(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)))
    check(module, torch.randn(1, 3, 5, 5), folded=0)


def test_variances_of_zero_and_large_means_are_folded_exactly() -> None:
    module = pair(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    module[1].running_var[0] = 0.0  # type: ignore[index]
    module[1].running_mean[1] = 1e4  # type: ignore[index]
    check(module, torch.randn(1, 3, 5, 5), folded=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_folding_in_half_precision_keeps_its_precision(dtype: torch.dtype) -> None:
    module = pair(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype)
    x = torch.randn(1, 3, 5, 5).to(dtype)
    made = graph(module, x)
    assert fold_batch_norm(made) == 1
    found = outputs(finished(made), x)
    assert found[0].dtype is dtype
    assert_close(found, outputs(module, x), 4 * float(torch.finfo(dtype).eps))


@settings(max_examples=15)
@given(data=st.data())
def test_folding_is_exact_for_any_convolution(data: st.DataObject) -> None:
    draw = data.draw
    dims = draw(st.integers(1, 2), "dimensions")
    transposed, core = draw(st.booleans(), "transposed"), draw(st.booleans(), "core")
    groups = draw(st.integers(1, 3), "groups")
    inputs, outs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel = draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "stride": draw(st.integers(1, 3), "stride"),
        "padding": draw(st.integers(0, kernel - 1), "padding"),
        "dilation": draw(st.integers(1, 2), "dilation"),
        "groups": groups,
        "bias": draw(st.booleans(), "bias"),
    }
    kinds = [nn.Conv1d, nn.Conv2d], [nn.ConvTranspose1d, nn.ConvTranspose2d]
    layer: nn.Module = kinds[transposed][dims - 1](inputs, outs, kernel, **options)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](
        outs, affine=draw(st.booleans(), "affine"), eps=draw(st.sampled_from([1e-5, 0.1]))
    )
    size = draw(st.integers(7, 9), "size")
    x = torch.randn(draw(st.integers(1, 2), "batch"), inputs, *[size] * dims)
    check(pair(layer, norm), x, folded=1, core=core)
