"""The way through litert-torch: a torch module becomes a float LiteRT flatbuffer."""

from __future__ import annotations

import re
import warnings

import torch
from torch.fx import GraphModule

from edgeport.converters.graph import user_line
from edgeport.errors import ConversionError

_NO_LOWERING = re.compile(r"Lowering not found: (?:aten\.|.*?::)?([\w.]+)")


def to_flatbuffer(
    module: torch.nn.Module, example: dict[str, torch.Tensor], graph: GraphModule
) -> bytes:
    """Converts a module with named inputs and outputs.

    Args:
        module: Takes keyword tensors and returns a dict of tensors; its names become the
            signature's.
        example: Inputs by name, with the shapes to be fixed.
        graph: The user's graph inside the module, for its lines in error messages.

    Returns:
        The flatbuffer, with the signature `serving_default`.

    Raises:
        ConversionError: litert-torch can't convert it; operators it lacks are named with the
            user's line.
    """
    import litert_torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = litert_torch.convert(module, sample_kwargs=example)
            return bytes(converted.model_content())
    except Exception as e:
        raise _explained(e, graph) from e


def _explained(error: Exception, graph: GraphModule) -> ConversionError:
    text = str(error)
    missing = _NO_LOWERING.search(text)
    if missing:
        operator = missing.group(1)
        base = operator.split(".")[0]
        for node in graph.graph.nodes:
            if node.op == "call_function" and base in str(node.target):
                return ConversionError(
                    f"LiteRT has no operator for `aten.{operator}`",
                    where=user_line(node),
                    hint="write it with other operators, or leave it outside the model",
                )
        return ConversionError(
            f"LiteRT has no operator for `aten.{operator}`, which part of the model decomposes into",
            hint="run with -v to see litert-torch's own messages",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = lines[0][:300] if lines else "no message"
    return ConversionError(
        f"litert-torch can't convert the model ({type(error).__name__}: {telling})",
        hint="run with -v to see litert-torch's own messages",
    )
