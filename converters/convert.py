"""From a `Source` to a float flatbuffer, and the flatbuffer passes."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.fx import GraphModule

from edgeport import flatbuffer
from edgeport.converters.borders import (
    BorderedModule,
    FileBorder,
    example_for,
    image_inputs,
    image_outputs,
)
from edgeport.converters.graph import graph_of, run_graph_passes, summary
from edgeport.converters.graph_passes.use_evaluation_mode import use_evaluation_mode
from edgeport.converters.graph_passes.use_float32 import holds_half
from edgeport.converters.litert import to_flatbuffer
from edgeport.errors import ConversionError
from edgeport.report import PassChange
from edgeport.source import Source

SIGNATURE = "serving_default"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A source after the graph passes, with named borders."""

    source: Source
    graph: GraphModule
    module: BorderedModule
    channels_last_inputs: frozenset[str]
    channels_last_outputs: frozenset[str]
    changes: tuple[PassChange, ...]


def rewrite(
    source: Source,
    passes: tuple[str, ...],
    layout: Literal["channels-last", "keep"],
    *,
    check_passes: bool = False,
) -> Rewritten:
    """Runs the graph passes and decides the layout of the borders.

    Args:
        source: The model.
        passes: Names of graph passes, in order.
        layout: `channels-last` turns those inputs and outputs that are images.
        check_passes: Compare the outputs on the example inputs after each pass.

    Raises:
        ConversionError: A pass failed, or changed what the model computes.
    """
    graph = graph_of(source.program)

    def run() -> dict[str, torch.Tensor]:
        # A copy in evaluation mode: in training mode outputs are random, and running the graph
        # would change its statistics.
        tried = copy.deepcopy(graph)
        use_evaluation_mode(tried)
        example = example_for(source, set())
        if holds_half(tried):  # before the pass `use_float32`
            example = {b.name: example[b.name].to(b.dtype) for b in source.inputs}
        with torch.no_grad():
            outputs: dict[str, torch.Tensor] = BorderedModule(tried, source, set(), set())(
                **example
            )
        return outputs

    changes = run_graph_passes(graph, passes, run if check_passes else None)
    inputs: set[str] = set()
    outputs: set[str] = set()
    if layout == "channels-last":
        images = image_inputs(graph)
        inputs = {b.name for b in source.inputs if b.position in images}
        images = image_outputs(graph)
        outputs = {b.name for b in source.outputs if b.position in images}
    module = BorderedModule(graph, source, inputs, outputs)
    return Rewritten(source, graph, module, frozenset(inputs), frozenset(outputs), tuple(changes))


def convert(rewritten: Rewritten) -> bytes:
    """Converts to a float flatbuffer with the signature `serving_default`.

    Raises:
        ConversionError: litert-torch can't convert it, or lost an input or output.
    """
    example = example_for(rewritten.source, set(rewritten.channels_last_inputs))
    content = to_flatbuffer(rewritten.module, example, rewritten.graph)
    model = flatbuffer.parse(content)
    inputs, outputs = flatbuffer.signatures(model)[SIGNATURE]
    for kind, borders, names in (
        ("input", rewritten.source.inputs, inputs),
        ("output", rewritten.source.outputs, outputs),
    ):
        lost = [b.name for b in borders if b.name not in names]
        if lost:
            raise ConversionError(f"the {kind} `{lost[0]}` is lost in the converted file")
    return content


def file_borders(
    rewritten: Rewritten, content: bytes
) -> tuple[tuple[FileBorder, ...], tuple[FileBorder, ...]]:
    """Reads the types and quantization of the borders from a flatbuffer made from the source."""
    model = flatbuffer.parse(content)
    tensors = model.subgraphs[0].tensors
    inputs, outputs = flatbuffer.signatures(model)[SIGNATURE]

    def border(original: object, index: int, channels_last: bool) -> FileBorder:
        tensor = tensors[index]
        quantization = flatbuffer.quantization(tensor)
        return FileBorder(
            original=original,  # type: ignore[arg-type]
            channels_last=channels_last,
            dtype=np.dtype(flatbuffer.type_name(tensor)),
            scale=float(quantization[0][0]) if quantization else None,
            zero_point=int(quantization[1][0]) if quantization else None,
        )

    source = rewritten.source
    return (
        tuple(
            border(b, inputs[b.name], b.name in rewritten.channels_last_inputs)
            for b in source.inputs
        ),
        tuple(
            border(b, outputs[b.name], b.name in rewritten.channels_last_outputs)
            for b in source.outputs
        ),
    )


def run_flatbuffer_passes(
    content: bytes, names: tuple[str, ...]
) -> tuple[bytes, tuple[PassChange, ...]]:
    """Runs flatbuffer passes in order; also writes all data into the flatbuffer itself.

    Args:
        content: A flatbuffer.
        names: Modules and functions of `edgeport.converters.flatbuffer_passes`.

    Raises:
        ConversionError: A pass failed; its name is told.
    """
    model = flatbuffer.parse(content)
    changes = []
    for name in names:
        module = importlib.import_module(f"edgeport.converters.flatbuffer_passes.{name}")
        function = getattr(module, name)
        try:
            count = function(model)
        except Exception as e:
            raise ConversionError(
                f"the flatbuffer pass `{name}` failed ({type(e).__name__}: {e})",
                hint="this is a fault of edgeport's; please report it with the model",
            ) from e
        if count:
            changes.append(PassChange(name, "flatbuffer", count, summary(function)))
    return flatbuffer.serialize(model), tuple(changes)
