"""Names for the inputs and outputs of a signature, from what the user wrote."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree


def output_names(structure: Any, returned: list[str] | None = None) -> list[str]:
    """Names every leaf of an output structure.

    Keys of dicts and fields of named tuples are the names; leaves of nested structures are joined
    with `_`. What has no name is called as the return statement calls it (`returned`), or
    `output_0`, `output_1`, … by position.
    """
    leaves = pytree.tree_flatten_with_path(structure)[0]
    names = []
    for number, (path, _) in enumerate(leaves):
        parts = [_key(key) for key in path]
        if parts and parts[0].isdigit() and returned and int(parts[0]) < len(returned):
            parts[0] = returned[int(parts[0])]
        elif not parts:
            parts = returned[:1] if returned else ["output_0"]
        elif all(part.isdigit() for part in parts):
            parts = [f"output_{number}"] if len(parts) == 1 else ["output", *parts]
        names.append(identifier("_".join(parts)))
    return unique(names)


def returned_names(forward: Any) -> list[str] | None:
    """Reads the variable names in `return a, b` of a forward; None where there are none.

    Only a function with one return statement of plain variables tells its names.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return None
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return None
    returns = [
        node.value
        for node in _own_statements(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    if len(returns) != 1:
        return None
    value = returns[0]
    elements = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    arguments = {a.arg for a in function.args.args}
    names = [e.id for e in elements if isinstance(e, ast.Name)]
    if len(names) != len(elements) or len(set(names)) != len(names) or arguments & set(names):
        return None
    return names


def _own_statements(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yields the nodes of a function without those of functions inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack += ast.iter_child_nodes(node)


def identifier(name: str) -> str:
    """Makes a name safe for signatures and generated code: ASCII letters, digits, underscores."""
    clean = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{clean}" if not clean or clean[0].isdigit() else clean


def unique(names: list[str]) -> list[str]:
    """Makes repeated names different by a number behind them."""
    seen: set[str] = set()
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen:
            candidate, number = f"{name}_{number}", number + 1
        seen.add(candidate)
        result.append(candidate)
    return result


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
