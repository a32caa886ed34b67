"""Writes the mean over an image as pooling."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from edgeport.converters.graph import argument, calls, rank

_aten = torch.ops.aten


def pool_spatial_mean(graph: GraphModule) -> int:
    """Means over height and width of an image, written as global average pooling.

    Matches `x.mean((2, 3))` of a tensor of rank 4. Writes `adaptive_avg_pool2d(x, 1)`, flattened
    unless the dimensions are kept: the same numbers, but the converter turns pooling into an
    operator over channels-last images, and a mean into a TRANSPOSE and a mean over other axes,
    which NPUs leave to the CPU.
    """
    changes = 0
    for node in calls(graph, _aten.mean.dim):
        source = node.args[0]
        axes = argument(node, 1, "dim")
        if not isinstance(source, Node) or rank(source) != 4 or not isinstance(axes, list | tuple):
            continue
        if sorted(a % 4 for a in axes) != [2, 3] or argument(node, 3, "dtype") is not None:
            continue
        with graph.graph.inserting_before(node):
            pooled = graph.graph.call_function(_aten.adaptive_avg_pool2d.default, (source, [1, 1]))
            pooled.meta = dict(node.meta)
            result = pooled
            value = node.meta.get("val")
            if not argument(node, 2, "keepdim", False):
                pooled.meta["val"] = value[:, :, None, None] if value is not None else None
                result = graph.graph.call_function(_aten.flatten.using_ints, (pooled, 1))
                result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        graph.graph.erase_node(node)
        changes += 1
    return changes
