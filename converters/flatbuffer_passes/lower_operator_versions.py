"""Gives every operator the lowest version that describes it.

Old compilers, such as that of the Coral Edge TPU, refuse a whole model because of one version
number they do not know. Converters write numbers that are higher than need be: operators of one
kind share an operator code, so that one grouped convolution lifts all convolutions to version 6,
and every linear layer gets `keep_num_dims` (version 5), though it means nothing at rank 2.
"""

from __future__ import annotations

from typing import Any

from edgeport import flatbuffer
from edgeport.converters.flatbuffer_passes._operator_versions import needed_version
from edgeport.flatbuffer import Model, Operator, SubGraph

OperatorCode = Any  # the generated schema has no type annotations

_DEPRECATED_CODE_LIMIT = 127  # the old field has one byte; larger codes are marked by this value


def lower_operator_versions(model: Model) -> int:
    """Lowers operator versions, never raises them; what the model computes stays the same.

    FULLY_CONNECTED: `keep_num_dims` is cleared where input and output have rank 2, and a missing
    bias is written as an absent third input, which every version can read. Then each operator
    gets the least version that its own options and tensor types need (see
    `_operator_versions.py`), and an operator code of its own where others of its kind need
    another version. Unused codes go, equal ones are merged, and `deprecated_builtin_code`, which
    is all that old readers look at, is written in every code.

    Args:
        model: The object form of a flatbuffer, changed in place.

    Returns:
        The number of places changed: operators, and operator codes removed or repaired.
    """
    changed = 0
    used: set[int] = set()
    wanted: list[tuple[Operator, int, int]] = []  # operator, index of its old code, version
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or []:
            simplified = _simplify_fully_connected(model, subgraph, operator)
            old = flatbuffer.operator_version(model, operator)
            needed = needed_version(model, subgraph, operator)
            version = old if needed is None else min(old, needed)
            changed += simplified or version < old
            used.add(operator.opcodeIndex)
            wanted.append((operator, operator.opcodeIndex, version))

    kept: set[tuple[int, bytes, int]] = set()
    for i, code in enumerate(model.operatorCodes):
        identity = (*_identity(code), int(code.version))
        if i not in used or identity in kept:
            changed += 1  # goes: unused, or equal to an earlier one
        else:
            kept.add(identity)
            changed += code.deprecatedBuiltinCode != _deprecated_code(identity[0])

    codes: dict[tuple[int, bytes, int], int] = {}
    made: list[OperatorCode] = []
    # In the order of the old codes, so that a model that needs no change keeps its bytes.
    for operator, index, version in sorted(wanted, key=lambda w: w[1:]):
        builtin, custom = _identity(model.operatorCodes[index])
        position = codes.setdefault((builtin, custom, version), len(made))
        if position == len(made):
            made.append(_operator_code(builtin, custom, version))
        operator.opcodeIndex = position
    model.operatorCodes = made
    return changed


def _identity(code: OperatorCode) -> tuple[int, bytes]:
    builtin = max(int(code.builtinCode), int(code.deprecatedBuiltinCode))
    return builtin, code.customCode or b""


def _deprecated_code(builtin: int) -> int:
    return min(builtin, _DEPRECATED_CODE_LIMIT)


def _operator_code(builtin: int, custom: bytes, version: int) -> OperatorCode:
    code = flatbuffer.schema().OperatorCodeT()
    code.builtinCode = builtin
    code.deprecatedBuiltinCode = _deprecated_code(builtin)
    code.customCode = custom or None
    code.version = version
    return code


def _simplify_fully_connected(model: Model, subgraph: SubGraph, operator: Operator) -> bool:
    """Removes what lifts a FULLY_CONNECTED's version without meaning anything."""
    if flatbuffer.operator_name(model, operator) != "FULLY_CONNECTED":
        return False
    changed = False
    ranks = {
        len(flatbuffer.shape(subgraph.tensors[i]))
        for i in (operator.inputs[0], operator.outputs[0])
    }
    if ranks == {2} and flatbuffer.option(operator, "keepNumDims", False):
        operator.builtinOptions.keepNumDims = False
        changed = True
    if len(operator.inputs) == 2:
        operator.inputs = [*(int(i) for i in operator.inputs), -1]
        changed = True
    return changed
