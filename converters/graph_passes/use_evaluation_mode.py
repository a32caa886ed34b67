"""Puts what was exported in training mode into evaluation mode."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgeport.converters.graph import argument, calls, constant, replace, set_argument

_aten = torch.ops.aten
_DROPOUTS = (
    _aten.dropout.default, _aten.feature_dropout.default, _aten.alpha_dropout.default,
    _aten.feature_alpha_dropout.default, _aten.dropout_.default, _aten.feature_dropout_.default,
    _aten.alpha_dropout_.default, _aten.feature_alpha_dropout_.default,
)  # fmt: skip
# Operators with randomness inside: (operator, position and name of the argument, value that
# turns it off).
_SWITCHES: tuple[tuple[Any, int, str, Any], ...] = (
    (_aten.rrelu.default, 3, "training", False),
    (_aten.rrelu_.default, 3, "training", False),
    (_aten.scaled_dot_product_attention.default, 4, "dropout_p", 0.0),
    (_aten.lstm.input, 6, "train", False),
    (_aten.gru.input, 6, "train", False),
    (_aten.rnn_tanh.input, 6, "train", False),
    (_aten.rnn_relu.input, 6, "train", False),
)


def use_evaluation_mode(graph: GraphModule) -> int:
    """Dropouts and batch norms of a model exported in training mode, put into evaluation mode.

    Matches dropouts that drop, which become their input (also inside attention and recurrent
    layers), and batch and instance norms that normalise with the batch although they have running
    statistics, which then use those; also drops the updates of those statistics. A norm without
    running statistics always uses the batch and stays.
    """
    changes = 0
    for node in calls(graph, *_DROPOUTS):
        source = node.args[0]
        if argument(node, 2, "train") and isinstance(source, Node):
            replace(node, source)
            changes += 1
    for node in calls(graph, _aten.native_dropout.default):
        changes += _remove_native_dropout(node)
    for target, position, name, off in _SWITCHES:
        for node in calls(graph, target):
            if argument(node, position, name, off) != off:
                set_argument(node, position, name, off)
                changes += 1
    for node in calls(graph, _aten.batch_norm.default, _aten.instance_norm.default):
        if argument(node, 5, "training") and constant(graph, node.args[3]) is not None:
            set_argument(node, 5, "training", False)
            changes += 1
    for node in calls(graph, _aten._native_batch_norm_legit_functional.default):
        changes += _use_statistics(graph, node)
    updates = _remove_updates(graph)
    if changes or updates:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return changes


def _remove_native_dropout(node: Node) -> int:
    """Core ATen's dropout returns the values and their mask."""
    source = node.args[0]
    masks = [user for user in node.users if user.args[1] != 0 and user.users]
    if not argument(node, 2, "train") or masks or not isinstance(source, Node):
        return 0
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(source)
        node.graph.erase_node(user)
    node.graph.erase_node(node)  # random, so never dead by itself
    return 1


def _use_statistics(graph: GraphModule, node: Node) -> int:
    """Core ATen's batch norm in training mode returns the values and new statistics."""
    values, weight, bias, mean, variance, training, momentum, eps = node.args
    if not training or constant(graph, mean) is None:
        return 0
    with graph.graph.inserting_before(node):
        fixed = graph.graph.call_function(
            _aten._native_batch_norm_legit_no_training.default,
            (values, weight, bias, mean, variance, momentum, eps),
        )
        result = graph.graph.call_function(operator.getitem, (fixed, 0))
    for user in list(node.users):
        if user.args[1] == 0:
            result.meta = dict(user.meta)
            user.replace_all_uses_with(result)
        elif user.args[1] in (3, 4):
            _erase_copies(graph, user)
    return 1


def _erase_copies(graph: GraphModule, value: Node) -> None:
    for user in list(value.users):
        if user.target is _aten.copy_.default and not user.users:
            graph.graph.erase_node(user)


def _remove_updates(graph: GraphModule) -> int:
    """Removes counters of batch norms, whose only reader was the batch norm in training mode."""
    removed = 0
    for node in calls(graph, _aten.add_.Tensor, _aten.copy_.default):
        state = node.args[0]
        if (
            isinstance(state, Node)
            and state.op == "get_attr"
            and str(state.target).rpartition(".")[2] == "num_batches_tracked"
            and not node.users
        ):
            graph.graph.erase_node(node)
            removed += 1
    return removed
