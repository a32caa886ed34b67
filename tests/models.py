"""Exporting small torch modules in tests, as their users would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

# torch warns of itself when it copies an exported graph.
quiet = pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")


def program(
    module: torch.nn.Module, *args: Any, core: bool = False, **kwargs: Any
) -> torch.export.ExportedProgram:
    """Exports a module in the mode it is in; `core` decomposes it to core ATen operators."""
    exported = torch.export.export(module, args, kwargs)
    return exported.run_decompositions() if core else exported


def graph(module: torch.nn.Module, *args: Any, core: bool = False, **kwargs: Any) -> GraphModule:
    """Exports a module to a graph whose weights are attributes."""
    made = program(module, *args, core=core, **kwargs).module(check_guards=False)
    assert isinstance(made, GraphModule)
    return made


def finished(graph: GraphModule) -> GraphModule:
    """Checks and compiles a graph after it was edited."""
    graph.graph.lint()
    graph.recompile()
    return graph


def operators(graph: GraphModule) -> list[str]:
    """Names the operators of a graph in order, without their overloads."""
    return [
        str(getattr(node.target, "_schema", node.target.__name__)).partition("(")[0]
        .removeprefix("aten::").partition(".")[0]
        for node in graph.graph.nodes
        if node.op == "call_function" and not isinstance(node.target, str)
    ]  # fmt: skip


def outputs(module: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Runs a module or graph on copies of its inputs and returns its output tensors."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    with torch.no_grad():
        leaves = pytree.tree_leaves(module(*args, **kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], rtol: float) -> None:
    """Compares outputs; `rtol` is a share of each output's largest value."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        size = float(other.double().abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=rtol * max(size, 1))


def with_statistics(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Gives batch norms statistics and factors that are not 0 and 1; puts into evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        for name, low, high in (
            ("running_mean", -1, 1), ("running_var", 0.2, 3), ("weight", -2, 2), ("bias", -1, 1)
        ):  # fmt: skip
            value = getattr(norm, name, None)
            if "Norm" in type(norm).__name__ and isinstance(value, torch.Tensor):
                value.data.uniform_(low, high, generator=generator)
    return module.eval()
