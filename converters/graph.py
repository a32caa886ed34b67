"""Small helpers for editing exported graphs, and the runner of graph passes."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from edgeport.errors import ConversionError
from edgeport.report import PassChange

GraphPass = Callable[[GraphModule], int]


def graph_of(program: torch.export.ExportedProgram) -> GraphModule:
    """Returns a program's graph with its parameters in it, to be edited.

    Constants that are not finite are copies: litert-torch clamps infinities where it finds them,
    which would change the user's module.

    Raises:
        ConversionError: torch can't write the graph as Python, which it does with names as they are.
    """
    try:
        graph = program.module(check_guards=False)
    except SyntaxError as e:
        raise ConversionError(
            "a submodule, parameter or input has a name that Python can't have here, such as a "
            f"keyword: `{(e.text or '').strip()[:200]}`",
            hint="rename it",
        ) from e
    for owner in graph.modules():
        for group in (owner._parameters, owner._buffers):
            for name, tensor in group.items():
                if (
                    tensor is not None
                    and tensor.is_floating_point()
                    and not bool(torch.isfinite(tensor).all())
                ):
                    group[name] = type(tensor)(tensor.detach().clone())  # type: ignore[assignment]
    return graph


def calls(graph: GraphModule, *targets: Any) -> Iterator[Node]:
    """Yields the calls of any of the given operators, in order; the graph may be edited."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in targets:
            yield node


def constant(graph: GraphModule, node: Any) -> torch.Tensor | None:
    """Returns the parameter or buffer that a node reads, or None if it reads none."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value.detach() if isinstance(value, torch.Tensor) else None


def add_constant(graph: GraphModule, value: torch.Tensor, name: str, before: Node) -> Node:
    """Adds a constant tensor under a fresh name and returns the node that reads it."""
    attribute, number = name, 0
    while hasattr(graph, attribute):
        number += 1
        attribute = f"{name}_{number}"
    graph.register_buffer(attribute, value)
    with graph.graph.inserting_before(before):
        node = graph.graph.get_attr(attribute)
    node.meta["val"] = value
    return node


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Returns an argument of a call, whether it was passed by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def set_argument(node: Node, position: int, name: str, value: Any) -> None:
    """Sets an argument of a call, by position where it was passed so."""
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def replace(node: Node, by: Node) -> None:
    """Gives a node's users another value and removes it."""
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def rank(node: Node) -> int | None:
    """Returns the rank of a node's tensor, or None if it is unknown."""
    value = node.meta.get("val")
    return value.dim() if isinstance(value, torch.Tensor) else None


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Frames may come from another machine, with torch in another place than here.
_TORCH = re.compile(r"(^|/(site|dist)-packages/)torch/")
_TORCH_HERE = str(Path(torch.__file__).parent) + os.sep


def is_torch_file(path: str) -> bool:
    """Tells whether a source file is torch's own, here or on the machine that traced."""
    return path.startswith(_TORCH_HERE) or bool(_TORCH.search(path.replace("\\", "/")))


def user_line(node: Node) -> str | None:
    """Returns `file:line` of the user's code that made a node, or None if it is not known."""
    trace = node.stack_trace or node.meta.get("stack_trace") or ""
    frames = _FRAME.findall(trace)
    if not frames:
        return None
    own = [f for f in frames if not is_torch_file(f[0])]
    file, line = (own or frames)[-1]
    return f"{file}:{line}"


def summary(function: Callable[..., Any]) -> str:
    """Returns the first line of a pass's docstring, for the report."""
    return (function.__doc__ or "").strip().splitlines()[0].rstrip(".")


def run_graph_passes(
    graph: GraphModule, names: tuple[str, ...], check: Callable[[], Any] | None = None
) -> list[PassChange]:
    """Runs passes in order and reports those that changed something.

    Args:
        graph: Edited in place.
        names: Modules and functions of `edgeport.converters.graph_passes`.
        check: Runs the graph on the example inputs; when given, the outputs before and after
            each pass that changed something must agree to 1e-3 of their range.

    Raises:
        ConversionError: A pass failed or changed what the model computes; its name is told.
    """
    changed: list[PassChange] = []
    before = check() if check else None
    for name in names:
        function = getattr(
            importlib.import_module(f"edgeport.converters.graph_passes.{name}"), name
        )
        try:
            changes = function(graph)
            if changes:
                graph.graph.lint()
                graph.recompile()
        except Exception as e:
            done = ", ".join(p.name for p in changed) or "none"
            raise ConversionError(
                f"the graph pass `{name}` failed ({type(e).__name__}: {e}); passes that changed "
                f"the graph before it: {done}",
                hint="this is a fault of edgeport's; please report it with the model",
            ) from e
        if changes:
            changed.append(PassChange(name, "graph", changes, summary(function)))
            if check:
                after = check()
                _compare(name, before, after)
                before = after
    return changed


# Largest difference that rounding makes, as a share of the outputs' range.
_ROUNDING = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def _compare(name: str, before: Any, after: Any) -> None:
    pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
    for old, new in pairs:
        if not isinstance(old, torch.Tensor):
            continue
        if old.shape != new.shape:
            raise _changed(name, f"from shape {tuple(old.shape)} to {tuple(new.shape)}")
        was, now = old.double(), new.double()
        finite = was.isfinite() & now.isfinite()
        if not torch.equal(was[~finite].nan_to_num(), now[~finite].nan_to_num()):
            raise _changed(name, "in values that are not finite")
        if not finite.any():
            continue
        size = float(was[finite].abs().max())
        worst = float((was - now)[finite].abs().max())
        if not worst <= _ROUNDING.get(old.dtype, 1e-3) * max(1.0, size):
            raise _changed(name, f"by {worst:.3g}")


def _changed(name: str, how: str) -> ConversionError:
    return ConversionError(
        f"the graph pass `{name}` changed the model's outputs {how}",
        hint="this is a fault of edgeport's; please report it with the model",
    )
