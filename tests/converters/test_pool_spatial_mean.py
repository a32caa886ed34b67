"""The mean over an image as pooling."""

from __future__ import annotations

import pytest
import torch

from edgeport.converters.graph_passes.pool_spatial_mean import pool_spatial_mean


class Mean(torch.nn.Module):
    def __init__(self, axes: tuple[int, ...], keepdim: bool) -> None:
        super().__init__()
        self.axes = axes
        self.keepdim = keepdim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.axes, keepdim=self.keepdim) * 2


def exported(module: torch.nn.Module, x: torch.Tensor) -> torch.fx.GraphModule:
    return torch.export.export(module, (x,)).module(check_guards=False)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axes", [(2, 3), (-1, -2), (3, 2)])
def test_spatial_means_become_pooling_with_the_same_result(
    axes: tuple[int, ...], keepdim: bool
) -> None:
    x = torch.randn(2, 3, 5, 7)
    graph = exported(Mean(axes, keepdim), x)
    before = graph(x)
    assert pool_spatial_mean(graph) == 1
    graph.graph.lint()
    graph.recompile()
    after = graph(x)
    assert after.shape == before.shape
    torch.testing.assert_close(after, before)
    targets = {str(n.target) for n in graph.graph.nodes}
    assert "aten.adaptive_avg_pool2d.default" in targets
    assert "aten.mean.dim" not in targets


@pytest.mark.parametrize(
    ("axes", "shape"), [((1,), (2, 3, 5, 7)), ((1, 2), (2, 3, 5, 7)), ((1, 2), (2, 5, 7))]
)
def test_other_means_are_left_alone(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    graph = exported(Mean(axes, False), torch.randn(shape))
    code = graph.code
    assert pool_spatial_mean(graph) == 0
    assert graph.code == code
