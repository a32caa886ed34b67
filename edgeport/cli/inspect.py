"""`edgeport inspect`: what is inside a .tflite file.

Renders an `Inspection` as tables or JSON and computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgeport.cli.pipes import print_result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from edgeport.inspection import (
        Inspection,
        OperatorEntry,
        SignatureTensor,
        SubgraphEntry,
        TensorEntry,
    )

# Options whose values need no name beside them: SAME, RELU6.
_SPEAKS_FOR_ITSELF = ("padding", "fused_activation_function")
# Options that have a value also where they mean nothing.
_DULL = ("quantized_bias_type", "pot_scale_int16")
_NARROWEST = 80


@click.command("inspect")
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Write JSON, and nothing else, to stdout.")
@click.option("-v", "--tensors", is_flag=True, help="List all tensors too.")
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
def inspect(file: str, as_json: bool, tensors: bool, quiet: bool) -> None:
    """Shows what is inside a .tflite FILE: operators, signatures, sizes.

    Nothing is run, and vendors' compiled models can be looked at as well.
    """
    # Only now: reading a model loads LiteRT's schema, which no other command should pay for.
    from edgeport import inspection

    found = inspection.inspect(file)
    if as_json:
        from edgeport.report import to_json

        print_result(to_json(found.to_dict()))
    elif not quiet:
        _show(found, tensors)


def _show(found: Inspection, tensors: bool) -> None:
    from edgeport.cli.render import ResultConsole

    console = ResultConsole(highlight=False, markup=False, emoji=False)
    # Narrower, columns would have to be cut; a terminal can wrap lines, or scroll.
    console.width = max(console.width, _NARROWEST)
    _show_file(console, found)
    _show_signatures(console, found)
    for subgraph in found.subgraphs:
        which = f" of subgraph {subgraph.index} {subgraph.name}" if len(found.subgraphs) > 1 else ""
        if subgraph.operators:
            _print(console, f"Operators{which}", _operators(subgraph))
        if tensors and subgraph.tensors:
            _print(console, f"Tensors{which}", _tensors(subgraph))
    if found.histogram:
        _print(console, "Kinds of operators", _histogram(found))
    if found.metadata:
        table = _table("Name", ">Bytes")
        for entry in found.metadata:
            table.add_row(_clean(entry.name), f"{entry.size:,}")
        _print(console, "Metadata", table)


def _print(console: Console, title: str, table: Table) -> None:
    console.print(_clean(title), style="bold")
    console.print(table)


def _show_file(console: Console, found: Inspection) -> None:
    sizes, main = found.sizes, found.subgraphs[0]
    runtime = found.min_runtime_version
    largest = ""
    if sizes.largest_activation_tensor is not None:
        tensor = main.tensors[sizes.largest_activation_tensor]
        largest = f" ({_type(tensor)} {tensor.name or f'tensor {tensor.index}'})"
    behind = f", {_bytes(sizes.behind_flatbuffer)} of the file behind the flatbuffer"
    rows = [
        ("File", found.file or "-"),
        ("Size", f"{found.size:,} bytes, schema version {found.version}"),
        ("SHA-256", found.sha256),
        ("Description", found.description or "-"),
        ("Runtime", f"{runtime} or later" if runtime else "not recorded"),
        ("Operators", f"{len(main.operators):,}, {found.macs:,} multiply-accumulates"),
        ("Constants", _bytes(sizes.constants) + (behind if sizes.behind_flatbuffer else "")),
        ("Activations", f"{_bytes(sizes.peak_activations)} at one time, nothing in place"),
        ("Largest", _bytes(sizes.largest_activation) + largest),
    ]
    if found.has_model_metadata or found.associated_files:
        files = ", ".join(found.associated_files) or "no files"
        model_metadata = "model metadata" if found.has_model_metadata else "no model metadata"
        rows.append(("Attached", f"{model_metadata}, {files}"))
    table = _table("", "")
    table.show_header = False
    for name, value in rows:
        table.add_row(name, _clean(value))
    console.print(table)


def _show_signatures(console: Console, found: Inspection) -> None:
    for signature in found.signatures:
        table = _table("", "Name", "Type", "Tensor")
        _add_border(table, "in", signature.inputs)
        _add_border(table, "out", signature.outputs)
        _print(console, f"Signature {signature.key}", table)
    if not found.signatures:
        main = found.subgraphs[0]
        table = _table("", "Type", "Tensor")
        for kind, indices in (("in", main.inputs), ("out", main.outputs)):
            for index in indices:
                tensor = main.tensors[index]
                table.add_row(kind, _type(tensor), _clean(tensor.name or f"tensor {index}"))
        _print(console, "Inputs and outputs; there is no signature", table)


def _add_border(table: Table, kind: str, tensors: tuple[SignatureTensor, ...]) -> None:
    for tensor in tensors:
        table.add_row(kind, _clean(tensor.name), _type(tensor), _clean(tensor.tensor_name))


def _operators(subgraph: SubgraphEntry) -> Table:
    table = _table(">#", "=Operator", ">Ver", "=Output", "Options", ">MACs")
    for operator in subgraph.operators:
        outputs = [_type(subgraph.tensors[i]) for i in operator.outputs if i >= 0]
        table.add_row(
            str(operator.index),
            _clean(operator.name),
            str(operator.version),
            "\n".join(outputs),
            _clean(_options(operator)),
            "?" if operator.macs is None else f"{operator.macs:,}" if operator.macs else "",
        )
    return table


def _options(operator: OperatorEntry) -> str:
    """Returns the options that say something: those that are neither off nor the usual 1."""
    parts = [f"{operator.custom_options_bytes} bytes"] if operator.custom_options_bytes else []
    for name, value in operator.options.items():
        usual = value == 1 and name.startswith(("stride_", "dilation_", "depth_multiplier"))
        if value in (None, False, 0, "NONE", "DEFAULT") or usual or name in _DULL:
            continue
        parts.append(f"{value}" if name in _SPEAKS_FOR_ITSELF else f"{name}={value}")
    return " ".join(parts)


def _tensors(subgraph: SubgraphEntry) -> Table:
    table = _table(">#", "Name", "=Type", ">Bytes", "Scale, zero point")
    for tensor in subgraph.tensors:
        table.add_row(
            str(tensor.index),
            _clean(tensor.name),
            _type(tensor),
            f"{tensor.constant_bytes:,}" if tensor.constant_bytes else "",
            _quantization(tensor),
        )
    return table


def _quantization(tensor: TensorEntry) -> str:
    quantization = tensor.quantization
    if quantization is None:
        return ""
    if quantization.axis is not None:
        return f"{quantization.count} along axis {quantization.axis}"
    zero = quantization.zero_points[0] if quantization.zero_points else 0
    return f"{quantization.scales[0]:.6g}, {zero}"


def _histogram(found: Inspection) -> Table:
    table = _table("Operator", ">Version", ">Count", ">MACs")
    for entry in found.histogram:
        macs = f"{entry.macs:,}" if entry.macs else ""
        table.add_row(_clean(entry.name), str(entry.version), f"{entry.count:,}", macs)
    return table


def _table(*columns: str) -> Table:
    """Makes a table; a column that begins with `>` holds numbers, with `=` texts to keep whole."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        # In a narrow terminal other texts fold, so that nothing is cut off.
        table.add_column(
            column.lstrip(">="),
            justify="right" if column.startswith(">") else "left",
            no_wrap=column.startswith((">", "=")),
            overflow="fold",
        )
    return table


def _type(tensor: TensorEntry | SignatureTensor) -> str:
    return f"{tensor.type}[{','.join(map(str, tensor.shape))}]"


def _bytes(count: int) -> str:
    return f"{count:,} bytes"


def _clean(text: str) -> str:
    """Shows control characters of the file's texts instead of obeying them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
