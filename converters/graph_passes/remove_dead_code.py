"""Removes what has no effect."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from edgeport.converters.graph import argument, calls, replace

_aten = torch.ops.aten
_ALWAYS = (
    _aten.detach.default, _aten.detach_.default, _aten.alias.default, _aten.lift_fresh.default,
)  # fmt: skip
_DROPOUTS = (
    _aten.dropout.default, _aten.feature_dropout.default, _aten.alpha_dropout.default,
    _aten.feature_alpha_dropout.default, _aten.dropout_.default, _aten.feature_dropout_.default,
    _aten.alpha_dropout_.default, _aten.feature_alpha_dropout_.default,
)  # fmt: skip


def remove_dead_code(graph: GraphModule) -> int:
    """Operators without effect: unused results, dropouts in evaluation mode, detach, alias.

    A graph that ends in one of them keeps it when it would return its own input otherwise.
    """
    before = _operators(graph)
    for node in calls(graph, *_ALWAYS):
        _bypass(node)
    for node in calls(graph, *_DROPOUTS):
        if argument(node, 2, "train") is False:
            _bypass(node)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()  # also when only constants went, which count as no change
    return before - _operators(graph)


def _operators(graph: GraphModule) -> int:
    """Counts what computes; constants that nothing reads are dropped without a word."""
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def _bypass(node: Node) -> None:
    source = node.args[0]
    returned = any(user.op == "output" for user in node.users)
    if isinstance(source, Node) and not (returned and source.op in ("placeholder", "get_attr")):
        replace(node, source)
