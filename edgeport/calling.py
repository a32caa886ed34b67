"""Calling a converted model on this machine as the original is called."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from edgeport.converters.borders import FileBorder, to_numpy
from edgeport.errors import InputError
from edgeport.runtime_check.runner import Runner
from edgeport.source import Source


class Caller:
    """Runs a flatbuffer with the original model's inputs, outputs and structure.

    Args:
        model: The flatbuffer.
        source: The original model.
        inputs: Its inputs in the file.
        outputs: Its outputs in the file.
        runner: Where it runs; opened at the first call and kept.
    """

    def __init__(
        self,
        model: bytes,
        source: Source,
        inputs: tuple[FileBorder, ...],
        outputs: tuple[FileBorder, ...],
        runner: Runner,
    ) -> None:
        self._model = model
        self._example = source.example
        self._in_spec = source.in_spec
        self._structure = source.output_structure
        self._inputs = inputs
        self._outputs = outputs
        self._runner = runner
        self._session: Any = None

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs one inference; see `Artifact.run`."""
        leaves = self._leaves(args, kwargs)
        feed = {b.name: self._checked(b, leaves[b.original.position]) for b in self._inputs}
        if self._session is None:
            self._session = self._runner.open(self._model)
            weakref.finalize(self, self._session.close)
        found, _ = self._session.run(feed)
        as_tensors = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        results, spec = pytree.tree_flatten(self._structure)
        for border in self._outputs:
            array = border.from_file(found[border.name])
            tensor = torch.from_numpy(np.array(array)).to(border.original.dtype)
            results[border.original.position] = tensor if as_tensors else to_numpy(tensor)
        return pytree.tree_unflatten(results, spec)

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        _, example_kwargs = pytree.tree_unflatten(self._example, self._in_spec)
        ordered = {k: kwargs[k] for k in example_kwargs if k in kwargs}
        ordered |= {k: v for k, v in kwargs.items() if k not in ordered}
        leaves, spec = pytree.tree_flatten((tuple(args), ordered))
        if spec != self._in_spec:
            leaves = self._by_name(args, kwargs)
        for position, (given, example) in enumerate(zip(leaves, self._example, strict=True)):
            if not isinstance(example, torch.Tensor) and given != example:
                raise InputError(
                    f"input {position} is frozen at {example!r} in the file, not {given!r}",
                    hint="convert again with the other value as example input",
                )
        return leaves

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Takes inputs in order and by their names in the signature, whatever the structure."""
        names = [b.name for b in self._inputs]
        unknown = [name for name in kwargs if name not in names[len(args) :]]
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if unknown or missing or len(args) > len(names):
            told = [f"`{n}` is not an input" for n in unknown]
            told += [f"the input `{n}` is missing" for n in missing]
            if len(args) > len(names):
                told.append(f"there are {len(args)} inputs, the model takes {len(names)}")
            shapes = ", ".join(f"{b.name} {tuple(b.original.shape)}" for b in self._inputs)
            raise InputError("; ".join(told), hint=f"the model takes {shapes}")
        leaves = list(self._example)
        for position, border in enumerate(self._inputs):
            value = args[position] if position < len(args) else kwargs[border.name]
            leaves[border.original.position] = value
        return leaves

    def _checked(self, border: FileBorder, value: Any) -> np.ndarray:
        array = to_numpy(value)
        original = border.original
        if array.shape != original.shape:
            raise InputError(
                f"the input `{border.name}` has shape {array.shape}, the model takes "
                f"{original.shape}"
            )
        takes_float = original.dtype.is_floating_point
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f") != takes_float:
            raise InputError(
                f"the input `{border.name}` is {array.dtype}, the model takes {original.dtype}"
            )
        if np.issubdtype(border.dtype, np.integer) and not takes_float and array.size:
            limits = np.iinfo(border.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise InputError(
                    f"the input `{border.name}` holds values that {border.dtype}, its type in the "
                    "file, can't hold"
                )
        return border.to_file(array)
