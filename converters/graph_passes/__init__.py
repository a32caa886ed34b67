"""Passes over the exported torch graph: one file each, named by what it does.

The module `fold_batch_norm` holds the function `fold_batch_norm(graph) -> int`, which edits a
`torch.fx.GraphModule` of ATen operators in place and returns in how many places it did. Which
passes run, and in which order, is the target's data (`edgeport.targets.base.GRAPH_PASSES`).
"""
