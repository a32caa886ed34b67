"""From an nn.Module or an ExportedProgram to a `Source`."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from edgeport.converters.graph import graph_of, is_torch_file, user_line
from edgeport.converters.graph_passes.use_evaluation_mode import use_evaluation_mode
from edgeport.converters.names import output_names, returned_names, unique
from edgeport.errors import ConversionError, InputError, UsageError
from edgeport.source import Border, Source


def from_module(
    module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any] | None, *, name: str | None = None
) -> Source:
    """Traces a module in evaluation mode with `torch.export`.

    Args:
        module: The model; it is left in the mode that it was in.
        args: Example positional inputs: a tensor, or a tuple or list of inputs.
        kwargs: Example keyword inputs.
        name: Stem for file names; the class's name by default.

    Raises:
        UsageError: There are no example inputs, or the module fails on them.
        ConversionError: `torch.export` can't trace the module.
    """
    # Copies, since torch.export takes the same tensor given twice for one input.
    positional = _copy(_as_tuple(args))
    keywords = _copy(dict(kwargs or {}))
    if not positional and not keywords:
        raise UsageError(
            "a module needs example inputs",
            hint="edgeport.convert(module, (tensor, …)) with tensors of the shapes to come",
        )
    module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    _check_leaves((positional, keywords))
    with _evaluation_mode(module) as training, torch.no_grad():
        try:
            module(*_copy(positional), **_copy(keywords))
        except Exception as e:
            raise UsageError(
                f"the model fails on its example inputs ({type(e).__name__}: {_short(e)})",
                where=_deepest_line(e),
                hint="give inputs that `module(*args, **kwargs)` takes; keyword inputs go into "
                "`example_kwargs`",
            ) from e
        try:
            program = torch.export.export(module, positional, keywords, strict=False)
        except Exception as e:
            raise ConversionError(
                f"torch.export can't trace the model ({type(e).__name__}: {_short(e)})",
                where=_deepest_line(e),
                hint="replace control flow on values by torch.where or torch.cond; "
                "`torch.export.draft_export` shows what stands in the way",
            ) from e
    warnings = (
        (f"{training} in training mode; it was converted in evaluation mode",) if training else ()
    )

    def reference(leaves: list[Any]) -> Any:
        call_args, call_kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
        with _evaluation_mode(module), torch.no_grad():
            return _copy(module(*call_args, **call_kwargs))

    forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    return _source(
        program,
        reference,
        name=name or type(module).__name__,
        origin=f"{type(module).__module__}.{type(module).__qualname__}",
        sha256=None,
        returned=returned_names(forward),
        warnings=warnings,
    )


def from_program(
    program: torch.export.ExportedProgram, *, name: str, origin: str, sha256: str | None = None
) -> Source:
    """Makes a source of an exported program, which must carry its example inputs.

    Raises:
        ConversionError: It has no example inputs, or keeps state.
    """
    if program.example_inputs is None:
        raise ConversionError(
            "the archive holds no example inputs, so its shapes are unknown",
            where=origin,
            hint="export and save it again; `torch.export.export` keeps them",
        )
    graph = graph_of(program)
    training = use_evaluation_mode(graph)
    warnings: tuple[str, ...] = ()
    if training:
        text = (
            f"the archive was exported in training mode; {training} dropouts and batch norms "
            "were put into evaluation mode"
        )
        warnings = (text,)

    def reference(leaves: list[Any]) -> Any:
        call_args, call_kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
        with torch.no_grad():
            return _copy(graph(*call_args, **call_kwargs))

    return _source(
        program,
        reference,
        name=name,
        origin=origin,
        sha256=sha256,
        returned=None,
        warnings=warnings,
    )


def _source(
    program: torch.export.ExportedProgram,
    reference: Callable[[list[Any]], Any],
    *,
    name: str,
    origin: str,
    sha256: str | None,
    returned: list[str] | None,
    warnings: tuple[str, ...],
) -> Source:
    _refuse_state(program, origin)
    args, kwargs = program.example_inputs
    example = pytree.tree_leaves((args, kwargs))
    names = unique(list(_input_names(program)))
    if len(names) != len(example):
        names = [f"input_{i}" for i in range(len(example))]
    inputs = []
    frozen = []
    for position, (leaf, leaf_name) in enumerate(zip(example, names, strict=True)):
        if isinstance(leaf, torch.Tensor):
            inputs.append(Border(leaf_name, position, tuple(leaf.shape), leaf.dtype))
        elif leaf is not None:
            frozen.append(f"input `{leaf_name}` is no tensor; its value {leaf!r} is frozen")
    if not inputs:
        raise ConversionError("the model has no tensor inputs", where=origin)
    dynamic = _dynamic_inputs(program)
    frozen += [
        f"input `{b.name}` has a dynamic shape; it is fixed at that of its example, "
        f"{'×'.join(map(str, b.shape))}"
        for b in inputs
        if b.name in dynamic
    ]
    example = [v.detach() if isinstance(v, torch.Tensor) else v for v in example]
    structure = reference(_copy(example))
    _refuse_changing(structure, reference(_copy(example)), origin)
    leaves = pytree.tree_leaves(structure)
    outputs = tuple(
        Border(leaf_name, position, tuple(leaf.shape), leaf.dtype)
        for position, (leaf, leaf_name) in enumerate(
            zip(leaves, output_names(structure, returned), strict=True)
        )
        if isinstance(leaf, torch.Tensor)
    )
    if not outputs:
        raise ConversionError("the model has no tensor outputs", where=origin)
    return Source(
        name=name,
        origin=origin,
        sha256=sha256,
        program=program,
        reference=reference,
        example=example,
        in_spec=program.call_spec.in_spec,
        inputs=tuple(inputs),
        outputs=outputs,
        output_structure=structure,
        warnings=(*warnings, *frozen),
    )


def _input_names(program: torch.export.ExportedProgram) -> Sequence[str]:
    specs = program.graph_signature.input_specs
    return [
        s.arg.name for s in specs if s.kind is torch.export.graph_signature.InputKind.USER_INPUT
    ]


def _refuse_changing(first: Any, second: Any, origin: str) -> None:
    """Refuses models that answer the same inputs differently: a file can't."""
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    for one, other in pairs:
        if isinstance(one, torch.Tensor) and not torch.allclose(
            one.double(), other.double(), rtol=1e-3, atol=1e-5, equal_nan=True
        ):
            raise ConversionError(
                "the model gives different outputs for the same inputs",
                where=origin,
                hint="it draws random numbers (a dropout without `training=self.training`?) or "
                "keeps something between calls; make that an input",
            )


def _dynamic_inputs(program: torch.export.ExportedProgram) -> set[str]:
    """Returns the names of inputs whose shape has a symbol in it."""
    return {
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder"
        and isinstance(value := node.meta.get("val"), torch.Tensor)
        and not all(isinstance(size, int) for size in value.shape)
    }


def _refuse_state(program: torch.export.ExportedProgram, origin: str) -> None:
    """Refuses models that change a buffer in forward: a file would repeat its first call."""
    makers = {
        arg.name: arg for node in program.graph.nodes if node.op == "output"
        for arg in pytree.tree_leaves(node.args) if isinstance(arg, torch.fx.Node)
    }  # fmt: skip
    mutated = {
        buffer
        for output, buffer in program.graph_signature.buffers_to_mutate.items()
        if not _is_statistic(makers.get(output))
    }
    parameters = {
        s.arg.name: s.target
        for s in program.graph_signature.input_specs
        if s.kind is not torch.export.graph_signature.InputKind.USER_INPUT
    }
    line = None
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        root = node.args[0] if node.args else None
        while isinstance(root, torch.fx.Node) and root.op == "call_function":
            if not _is_view(root):
                break
            root = root.args[0]
        if isinstance(root, torch.fx.Node) and root.name in parameters:
            mutated.add(parameters[root.name])
            line = line or user_line(node)
    # Batch norms in training mode count their calls; evaluation mode does not.
    mutated = {b for b in mutated if b and b.rpartition(".")[2] != "num_batches_tracked"}
    if mutated:
        raise ConversionError(
            f"the model changes its buffer `{min(mutated)}` in forward; a LiteRT file would "
            "start from the same value in every call",
            where=line or origin,
            hint="make the state an input and an output of forward",
        )


def _is_statistic(value: torch.fx.Node | None) -> bool:
    """Tells whether a value is a batch norm's new running mean or variance."""
    maker = value.args[0] if value is not None and value.args else None
    return (
        isinstance(maker, torch.fx.Node)
        and maker.target is torch.ops.aten._native_batch_norm_legit_functional.default
    )


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


def _as_tuple(args: Any) -> tuple[Any, ...]:
    if args is None:
        return ()
    if isinstance(args, tuple):
        return args
    if isinstance(args, list):
        return tuple(args)
    if isinstance(args, torch.Tensor | Mapping):
        return (args,)
    raise InputError(
        f"example inputs are a tensor or a tuple of inputs, not {type(args).__name__}",
        hint="edgeport.convert(module, (tensor, …))",
    )


_INPUT_TYPES = (torch.Tensor, int, float, str, type(None), torch.dtype, torch.device)


def _check_leaves(inputs: Any) -> None:
    for path, leaf in pytree.tree_leaves_with_path(inputs):
        if not isinstance(leaf, _INPUT_TYPES):
            raise InputError(
                f"the example input at {pytree.keystr(path[1:])} is of type {type(leaf).__name__}",
                hint="inputs are tensors, or numbers, texts and None, which are frozen; "
                "torch.from_numpy makes tensors of arrays",
            )


@contextlib.contextmanager
def _evaluation_mode(module: torch.nn.Module) -> Iterator[str]:
    """Puts a module into evaluation mode for the block; tells what was in training mode, if any.

    Modes of submodules may differ, and `train` may do more than set them (merge weights, say).
    """
    modes = [(m, m.training, name) for name, m in module.named_modules()]
    was = module.training
    training = [name for _, mode, name in modes if mode]
    module.eval()
    try:
        yield "the module was" if was else f"the submodule `{training[0]}` was" if training else ""
    finally:
        if was:
            module.train()
        for submodule, mode, _ in modes:
            submodule.training = mode


def _copy(structure: Any) -> Any:
    return pytree.tree_map(
        lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, structure
    )


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"


def _deepest_line(error: BaseException) -> str | None:
    """Finds the last line of the traceback that is neither torch's nor ours."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        ours = frame.filename == __file__ or frame.filename.startswith("<")
        if not ours and not is_torch_file(frame.filename):
            found = f"{frame.filename}:{frame.lineno}"
    return found
