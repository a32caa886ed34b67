"""Turns half-precision models into float32 models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_HALF = (torch.float16, torch.bfloat16)


def use_float32(graph: GraphModule) -> int:
    """Half-precision weights and casts, written as float32.

    Matches float16 and bfloat16 parameters, buffers and `dtype` arguments, also inside the
    subgraphs of control flow and of blocks with autocast. LiteRT's kernels compute in float32 or
    integers; widening is exact, and results are at least as precise as the original's. Checks of
    a tensor's dtype, which would now fail, are removed.
    """
    wide: dict[int, torch.Tensor] = {}  # shared weights stay shared
    for group, name, tensor in _half_tensors(graph):
        if id(tensor) not in wide:
            value = tensor.detach().float()
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            wide[id(tensor)] = (
                torch.nn.Parameter(value, requires_grad=False) if is_parameter else value
            )
        group[name] = wide[id(tensor)]
    changes = len(wide)
    for node in _half_calls(graph):
        node.args = torch.fx.node.map_aggregate(node.args, _widen)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _widen)
        changes += 1
    if changes:
        for part in _graphs(graph):
            for node in list(part.graph.nodes):
                if node.target is torch.ops.aten._assert_tensor_metadata.default:
                    part.graph.erase_node(node)
            part.recompile()
    return changes


def holds_half(graph: GraphModule) -> bool:
    """Tells whether there are half-precision weights or casts in the graph."""
    return any(True for _ in _half_tensors(graph)) or any(True for _ in _half_calls(graph))


def _half_tensors(graph: GraphModule) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    for owner in graph.modules():
        for group in (owner._parameters, owner._buffers, vars(owner)):
            for name, tensor in list(group.items()):
                if isinstance(tensor, torch.Tensor) and tensor.dtype in _HALF:
                    yield group, name, tensor


def _half_calls(graph: GraphModule) -> Iterator[Node]:
    for part in _graphs(graph):
        for node in part.graph.nodes:
            found: list[Any] = []
            torch.fx.node.map_aggregate((node.args, node.kwargs), found.append)
            if node.op == "call_function" and any(_is_half(value) for value in found):
                yield node


def _graphs(graph: GraphModule) -> list[GraphModule]:
    return [part for part in graph.modules() if isinstance(part, GraphModule)]


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _HALF


def _widen(value: Any) -> Any:
    return torch.float32 if _is_half(value) else value
