"""Folds batch normalisation into the layer before it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from edgeport.converters.graph import (
    add_constant,
    argument,
    calls,
    constant,
    rank,
    set_argument,
)

_aten = torch.ops.aten
# Operator → positions of `training` (None: never) and `eps`.
_NORMS: dict[Any, tuple[int | None, int]] = {
    _aten.batch_norm.default: (5, 7),
    # what `ExportedProgram.run_decompositions` makes of it; the first of three outputs
    _aten._native_batch_norm_legit_no_training.default: (None, 6),
}
# Operator → dimensions of space, and the position of `groups` where it is transposed.
_CONVOLUTIONS: dict[Any, tuple[int, int | None]] = {
    _aten.conv1d.default: (1, None),
    _aten.conv2d.default: (2, None),
    _aten.conv3d.default: (3, None),
    _aten.conv1d.padding: (1, None),
    _aten.conv2d.padding: (2, None),
    _aten.conv3d.padding: (3, None),
    _aten.conv_transpose1d.default: (1, 6),
    _aten.conv_transpose2d.input: (2, 6),
    _aten.conv_transpose3d.input: (3, 6),
}
_TURNS = (_aten.t.default, _aten.permute.default, _aten.transpose.int)


def fold_batch_norm(graph: GraphModule) -> int:
    """Batch norms folded into the convolution or linear layer before them.

    Matches a batch norm with fixed statistics that is the only user of a convolution, a transposed
    convolution or a linear layer on rows, whose weights are constants; as exported, or as core
    ATen operators. Writes w' = w·γ/√(σ²+ε) and b' = (b − μ)·γ/√(σ²+ε) + β, computed in float64,
    and removes the batch norm: fewer operators, and weights that quantize as they will run. Exact
    up to rounding. (S. Ioffe, C. Szegedy: Batch Normalization, arXiv 1502.03167, section 3.1.)
    """
    changes = sum(_fold(graph, norm) for norm in calls(graph, *_NORMS))
    if changes:
        graph.graph.eliminate_dead_code()
        graph.delete_all_unused_submodules()
    return changes


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer whose output channels can be scaled.

    Attributes:
        weight: The constant that holds its weights.
        bias: Its bias, if any.
        scaled: Multiplies the weights' output channels by a vector.
        rewrite: Gives the layer new weights and a bias; returns the node of its output.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    scaled: Callable[[torch.Tensor], torch.Tensor]
    rewrite: Callable[[torch.Tensor, torch.Tensor], Node]


def _fold(graph: GraphModule, norm: Node) -> bool:
    node = norm.args[0]
    training, eps = _NORMS[norm.target]
    if not isinstance(node, Node) or node.op != "call_function" or len(node.users) != 1:
        return False
    if training is not None and argument(norm, training, "training"):
        return False
    results = [norm] if norm.target is _aten.batch_norm.default else _first_outputs(norm)
    layer = _layer(graph, node)
    if results is None or layer is None:
        return False
    values = []
    for position, name in enumerate(("weight", "bias", "running_mean", "running_var"), start=1):
        given = argument(norm, position, name)
        value = constant(graph, given)
        if value is None and (given is not None or name.startswith("running")):
            return False  # computed, or made from the batch
        values.append(value)
    gamma, beta, mean, variance = values
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance.double() + float(argument(norm, eps, "eps")))
    if gamma is not None:
        scale = scale * gamma.double()
    shift = (layer.bias.double() if layer.bias is not None else 0.0) - mean.double()
    shift = shift * scale + (beta.double() if beta is not None else 0.0)

    dtype = layer.weight.dtype
    folded = layer.rewrite(layer.scaled(scale).to(dtype), shift.to(dtype))
    for result in results:
        result.replace_all_uses_with(folded)
        graph.graph.erase_node(result)
    return True


def _first_outputs(norm: Node) -> list[Node] | None:
    """Returns the nodes that take the first output, or None if others are used too."""
    if any(user.target is not operator.getitem for user in norm.users):
        return None
    if any(user.args[1] != 0 and user.users for user in norm.users):
        return None
    return [user for user in norm.users if user.args[1] == 0]


def _layer(graph: GraphModule, node: Node) -> _Layer | None:
    if node.target is _aten.convolution.default:
        spatial = len(argument(node, 3, "stride"))
        return _convolution(graph, node, spatial, 8 if argument(node, 6, "transposed") else None)
    if node.target in _CONVOLUTIONS:
        return _convolution(graph, node, *_CONVOLUTIONS[node.target])
    # Of more dimensions, batch norm normalises another one than the layer's outputs.
    if rank(node) != 2:
        return None
    if node.target is _aten.linear.default:
        return _weight_and_bias(graph, node, lambda w, scale: w * scale[:, None], dims=2)
    if node.target in (_aten.addmm.default, _aten.mm.default):
        return _product(graph, node)
    return None


def _convolution(
    graph: GraphModule, node: Node, spatial: int, groups_position: int | None
) -> _Layer | None:
    if rank(node) != spatial + 2:
        return None  # without a batch, batch norm normalises the first dimension of space
    if groups_position is None:
        return _weight_and_bias(
            graph, node, lambda w, scale: w * scale.reshape(-1, *[1] * (spatial + 1)), spatial + 2
        )
    groups = argument(node, groups_position, "groups", 1)

    def scaled(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        # Transposed weights are [inputs, outputs / groups, …]: inputs of a group share its outputs.
        inputs, outputs = weight.shape[:2]
        per_group = scale.reshape(groups, 1, outputs).expand(groups, inputs // groups, outputs)
        return weight * per_group.reshape(inputs, outputs, *[1] * spatial)

    return _weight_and_bias(graph, node, scaled, spatial + 2)


def _weight_and_bias(
    graph: GraphModule,
    node: Node,
    scaled: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dims: int,
) -> _Layer | None:
    """A layer called as (input, weight, bias, …)."""
    weight_node, bias_node = argument(node, 1, "weight"), argument(node, 2, "bias")
    weight, bias = constant(graph, weight_node), constant(graph, bias_node)
    if weight is None or weight.dim() != dims or (bias_node is not None and bias is None):
        return None

    def rewrite(new_weight: torch.Tensor, new_bias: torch.Tensor) -> Node:
        stem = _stem(weight_node)
        added = add_constant(graph, new_weight, f"{stem}_folded_weight", node)
        set_argument(node, 1, "weight", added)
        bias = add_constant(graph, new_bias, f"{stem}_folded_bias", node)
        if len(node.args) == 2:  # keep positional arguments positional
            node.args = (*node.args, bias)
            node.kwargs = {k: v for k, v in node.kwargs.items() if k != "bias"}
        else:
            set_argument(node, 2, "bias", bias)
        return node

    return _Layer(weight, bias, lambda scale: scaled(weight.double(), scale), rewrite)


def _product(graph: GraphModule, node: Node) -> _Layer | None:
    """A linear layer as core ATen has it: addmm(bias, rows, weight) or mm(rows, weight)."""
    if node.kwargs:  # factors of the sum
        return None
    with_bias = node.target is _aten.addmm.default
    bias_node, rows, matrix = node.args if with_bias else (None, *node.args)
    turned = isinstance(matrix, Node) and matrix.target in _TURNS and rank(matrix) == 2
    weight_node = matrix.args[0] if turned and isinstance(matrix, Node) else matrix
    if turned and isinstance(matrix, Node) and matrix.args[1:] in (([0, 1],), (0, 0), (1, 1)):
        return None
    weight, bias = constant(graph, weight_node), constant(graph, bias_node)
    if weight is None or weight.dim() != 2 or (with_bias and (bias is None or bias.dim() != 1)):
        return None

    def rewrite(new_weight: torch.Tensor, new_bias: torch.Tensor) -> Node:
        stem = _stem(weight_node)
        factor = add_constant(graph, new_weight, f"{stem}_folded_weight", node)
        added = add_constant(graph, new_bias, f"{stem}_folded_bias", node)
        with graph.graph.inserting_before(node):
            if turned:
                factor = graph.graph.call_function(_aten.permute.default, (factor, [1, 0]))
                factor.meta["val"] = new_weight.t()
            new = graph.graph.call_function(_aten.addmm.default, (added, rows, factor))
        new.meta = dict(node.meta)
        return new

    along = (slice(None), None) if turned else (None, slice(None))
    return _Layer(weight, bias, lambda scale: weight.double() * scale[along], rewrite)


def _stem(weight: object) -> str:
    return str(weight).removeprefix("p_").removesuffix("_weight")
