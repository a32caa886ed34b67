"""Half-precision graphs become float32 graphs that agree with them to their precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgeport.converters.graph_passes.use_float32 import holds_half, use_float32
from tests.models import assert_close, finished, graph, operators, outputs, quiet, with_statistics

pytestmark = quiet

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
both_forms = pytest.mark.parametrize("core", [False, True], ids=["as exported", "core ATen"])


class Block(nn.Module):
    """Weights, a buffer, and a constant that is no buffer."""

    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer("offset", torch.rand(4, 1, 1))
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x))) + self.offset
        y = self.head(y.mean((2, 3)))
        return torch.softmax(y, 1) * torch.ones(5, dtype=y.dtype)


@both_forms
@HALVES
def test_a_half_precision_model_computes_in_float32(dtype: torch.dtype, core: bool) -> None:
    torch.manual_seed(0)
    module = with_statistics(Block()).to(dtype)
    x = torch.rand(1, 3, 6, 6).to(dtype)
    made = graph(module, x, core=core)
    assert holds_half(made)
    assert use_float32(made) > 0
    assert not holds_half(made)
    found = outputs(finished(made), x.float())
    assert found[0].dtype is torch.float32
    assert_close(found, outputs(module, x), 4 * float(torch.finfo(dtype).eps))
    # the weights are those of the half-precision model, so float32 agrees exactly
    assert_close(found, outputs(module.float(), x.float()), 1e-6)
    assert use_float32(made) == 0


@pytest.mark.parametrize("how", ["to", "half", "like the weights", "new tensor"])
def test_a_forward_that_casts_itself_stays_in_float32(how: str) -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4).half()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if how == "to":
                x = x.to(torch.float16)
            elif how == "half":
                x = x.half()
            elif how == "like the weights":
                x = x.to(self.linear.weight.dtype)
            else:
                x = torch.zeros(2, 4, dtype=torch.float16) + x.type_as(self.linear.weight)
            y: torch.Tensor = self.linear(x).float()
            return y

    module, x = Casts(), torch.rand(2, 4)
    made = graph(module, x)
    assert use_float32(made) > 0
    assert "_assert_tensor_metadata" not in operators(made)
    assert_close(outputs(finished(made), x), outputs(module, x), 4e-3)


def test_weights_that_are_shared_stay_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(self.first(x))
            return y

    module, x = Tied().half(), torch.rand(1, 4).half()
    made = graph(module, x)
    use_float32(made)
    matrices = {id(p): p for p in made.parameters() if p.dim() == 2}
    assert len(matrices) == 1
    assert_close(outputs(finished(made), x.float()), outputs(module, x), 4e-3)


def test_casts_inside_a_block_with_autocast_are_widened() -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.linear(x).to(torch.bfloat16)
            z: torch.Tensor = y.float() * 2
            return z

    module, x = Autocast(), torch.rand(2, 4)
    made = graph(module, x)
    assert use_float32(made) > 0
    assert not holds_half(made)
    expected = [(module.linear(x) * 2).detach()]
    assert_close(outputs(finished(made), x), expected, 1e-6)


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_without_halves_is_left_alone(dtype: torch.dtype, core: bool) -> None:
    made = graph(Block().eval().to(dtype), torch.rand(1, 3, 6, 6, dtype=dtype), core=core)
    before, state = str(made.graph), made.state_dict()
    assert not holds_half(made)
    assert use_float32(made) == 0
    assert str(made.graph) == before
    assert {n: v.dtype for n, v in made.state_dict().items()} == {
        n: v.dtype for n, v in state.items()
    }


def test_integers_and_masks_keep_their_types() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.register_buffer("order", torch.arange(4))

        def forward(self, index: torch.Tensor) -> Any:
            rows = self.table(index)
            return rows[:, self.order], rows > 0, rows.argmax(1)

    module, index = Lookup().half(), torch.tensor([1, 2, 6])
    made = graph(module, index)
    assert use_float32(made) > 0
    found = outputs(finished(made), index)
    assert [v.dtype for v in found] == [torch.float32, torch.bool, torch.int64]
    assert_close(found, outputs(module, index), 4e-3)
