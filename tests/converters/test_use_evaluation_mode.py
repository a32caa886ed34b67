"""A graph exported in training mode computes afterwards what the module does in evaluation mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgeport.converters.graph_passes.use_evaluation_mode import use_evaluation_mode
from tests.models import assert_close, finished, graph, operators, outputs, quiet, with_statistics

pytestmark = quiet

both_forms = pytest.mark.parametrize("core", [False, True], ids=["as exported", "core ATen"])


def check(module: nn.Module, *args: Any, core: bool = False) -> list[str]:
    """Exports in training mode, passes, and compares with the module in evaluation mode."""
    torch.manual_seed(0)
    with_statistics(module)
    expected = outputs(module, *args)
    made = graph(module.train(), *args, core=core)
    state = {name: value.clone() for name, value in made.state_dict().items()}
    assert use_evaluation_mode(made) > 0
    finished(made)
    assert_close(outputs(made, *args), expected, 1e-6)
    assert_close(outputs(made, *args), expected, 1e-6)  # a second call is no other
    for name, value in made.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert use_evaluation_mode(made) == 0
    return operators(made)


@both_forms
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), (3, 4)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (2, 3, 5, 5)),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)), (3, 4)),
    ],
    ids=["dropout", "batch norm", "both"],
)
def test_dropouts_and_batch_norms_stop_training(
    module: nn.Module, shape: tuple[int, ...], core: bool
) -> None:
    left = check(module, torch.randn(shape), core=core)
    assert not {"dropout", "feature_dropout", "native_dropout", "add_", "copy_"} & set(left)


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Dropout2d])
def test_every_kind_of_dropout_becomes_its_input(kind: Any) -> None:
    assert check(nn.Sequential(nn.ReLU(), kind(0.5)), torch.randn(2, 3, 4, 4)) == ["relu"]


def test_dropout_in_place_becomes_its_input() -> None:
    assert "dropout_" not in check(nn.Sequential(nn.ReLU(), nn.Dropout(0.5, True)), torch.ones(9))


def test_leaky_units_with_random_slopes_take_their_mean() -> None:
    check(nn.RReLU(), torch.randn(20))


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export's
def test_dropout_inside_recurrent_layers_ends() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.lstm(x)[0]
            return y

    check(Last(), torch.randn(2, 3, 4))


def test_dropout_inside_attention_ends() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = 0.5 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)

    check(Attention(), torch.randn(1, 2, 3, 4))


def test_instance_norms_with_statistics_use_them() -> None:
    check(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), torch.randn(2, 3, 4, 4))


def test_a_norm_without_statistics_uses_the_batch_as_it_does_in_evaluation_mode() -> None:
    module = nn.BatchNorm2d(3, track_running_stats=False).train()
    x = torch.randn(2, 3, 4, 4)
    made = graph(module, x)
    assert use_evaluation_mode(made) == 0
    assert_close(outputs(finished(made), x), outputs(module.eval(), x), 1e-6)


@both_forms
def test_a_graph_in_evaluation_mode_is_left_alone(core: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).eval()
    made = graph(module, torch.randn(2, 3, 5, 5), core=core)
    before = str(made.graph)
    assert use_evaluation_mode(made) == 0
    assert str(made.graph) == before
