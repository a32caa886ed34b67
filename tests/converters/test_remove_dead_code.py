"""Only what has no effect is removed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgeport.converters.graph_passes.remove_dead_code import remove_dead_code
from tests.models import assert_close, finished, graph, operators, outputs, quiet

pytestmark = quiet


class Function(nn.Module):
    """A module of one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def check(module: nn.Module, *args: torch.Tensor, removed: int, core: bool = False) -> list[str]:
    expected = outputs(module.eval(), *args)
    made = graph(module, *args, core=core)
    before = str(made.graph)
    assert remove_dead_code(made) == removed
    assert_close(outputs(finished(made), *args), expected, 0)
    if not removed:
        assert str(made.graph) == before
    assert remove_dead_code(made) == 0
    return operators(made)


def unused(x: torch.Tensor) -> torch.Tensor:
    torch.sin(x)
    torch.cos(torch.exp(x))
    return x + 1


def test_results_that_nothing_uses_are_removed() -> None:
    assert check(Function(unused), torch.rand(3), removed=3) == ["add"]


@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_dropouts_in_evaluation_mode_are_removed(kind: Any, in_place: bool) -> None:
    module = nn.Sequential(nn.ReLU(), kind(0.5, in_place), nn.Tanh())
    assert check(module, torch.randn(1, 2, 3, 4), removed=1) == ["relu", "tanh"]


def test_a_dropout_in_training_mode_is_left_alone() -> None:
    made = graph(nn.Sequential(nn.ReLU(), nn.Dropout(0.5)).train(), torch.rand(3))
    before = str(made.graph)
    assert remove_dead_code(made) == 0
    assert str(made.graph) == before


def test_detach_is_removed() -> None:
    left = check(Function(lambda x: (x * 2).detach() + 1), torch.rand(3), removed=1)
    assert left == ["mul", "add"]


def test_changes_in_place_are_kept_although_nothing_uses_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0].add_(1)
        y.detach().mul_(3)
        return y

    left = check(Function(function), torch.rand(3), removed=1)
    assert {"add_", "mul_"} <= set(left)


def test_a_graph_that_returns_its_input_keeps_an_operator() -> None:
    assert check(Function(lambda x: x.detach()), torch.rand(3), removed=0) == ["detach"]
    assert check(nn.Dropout(0.5), torch.rand(3), removed=0) == ["dropout"]


def test_constants_made_in_forward_are_not_changed_from_call_to_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.tensor([1.0, 2.0, 3.0])
        y.add_(x)
        return y * 1

    module, x = Function(function), torch.rand(3)
    made = graph(module, x)
    remove_dead_code(made)
    finished(made)
    for _ in range(2):
        assert_close(outputs(made, x), outputs(module, x), 0)


@pytest.mark.parametrize("core", [False, True])
def test_a_graph_without_dead_code_is_left_alone(core: bool) -> None:
    check(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.rand(2, 3), removed=0, core=core)
