"""Gives tensors short names that say where they belong."""

from __future__ import annotations

from edgeport import flatbuffer

_ROLES = {
    "CONV_2D": ("", "weights", "bias"),
    "DEPTHWISE_CONV_2D": ("", "weights", "bias"),
    "FULLY_CONNECTED": ("", "weights", "bias"),
    "TRANSPOSE_CONV": ("shape", "weights", "", "bias"),
}


def name_tensors(model: flatbuffer.Model) -> int:
    """Tensors named after the operator that makes or uses them, such as `conv_2d_7_weights`.

    Matches every tensor that is not at the model's border. The converter names them after the
    modules that it traced, which are edgeport's own: long, repeated, and of no use to anybody. The
    number is the operator's index in its subgraph.
    """
    changes = 0
    for number, subgraph in enumerate(model.subgraphs):
        prefix = f"subgraph_{number}_" if number else ""
        borders = {int(i) for i in (*subgraph.inputs, *subgraph.outputs)}
        names: dict[int, str] = {}
        for index, operator in enumerate(subgraph.operators):
            kind = flatbuffer.operator_name(model, operator)
            stem = f"{prefix}{kind.lower().replace(':', '_')}_{index}"
            outputs = flatbuffer.indices(operator.outputs)
            for position, tensor in enumerate(outputs):
                names.setdefault(tensor, stem if len(outputs) == 1 else f"{stem}_{position}")
            roles = _ROLES.get(kind, ())
            inputs = operator.inputs if operator.inputs is not None else ()
            for position, tensor in enumerate(inputs):
                if tensor < 0:
                    continue
                role = roles[position] if position < len(roles) else ""
                names.setdefault(int(tensor), f"{stem}_{role or f'input_{position}'}")
        taken = {flatbuffer.tensor_name(subgraph.tensors[i]) for i in borders}
        for index, name in names.items():
            tensor = subgraph.tensors[index]
            if index in borders or name in taken or flatbuffer.tensor_name(tensor) == name:
                continue
            tensor.name = name.encode()
            changes += 1
    return changes
