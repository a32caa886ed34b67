"""Looking at every activation of a float flatbuffer while it runs.

Every float activation is made an output of the model, so that LiteRT's fast CPU kernels can be
used; they keep nothing else.
"""

from __future__ import annotations

import warnings

import numpy as np

from edgeport import flatbuffer
from edgeport.errors import ConversionError


class ActivationReader:
    """Runs a float flatbuffer and gives its activations.

    Args:
        model: A float flatbuffer with one signature.
        threads: Threads for LiteRT's kernels.

    Attributes:
        model: The flatbuffer as objects, every float activation an output.
        names: Names of all float activations by tensor index, inputs first.

    Raises:
        ConversionError: LiteRT can't run the model.
    """

    def __init__(self, model: bytes, threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.model = flatbuffer.parse(model)
        self.names = _make_all_activations_outputs(self.model)
        self._inputs, _ = next(iter(flatbuffer.signatures(self.model).values()))
        self._by_index = {index: name for name, index in self._inputs.items()}
        self._sample: dict[str, np.ndarray] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._interpreter = Interpreter(
                    model_content=flatbuffer.serialize(self.model), num_threads=threads
                )
                self._interpreter.allocate_tensors()
            except (RuntimeError, ValueError) as e:
                raise _refused(e) from e

    def run(self, sample: dict[str, np.ndarray]) -> None:
        """Runs one inference on inputs by signature name, in the file's shapes and types.

        Raises:
            ConversionError: LiteRT can't run the model on them.
        """
        self._sample = sample
        try:
            for name, index in self._inputs.items():
                self._interpreter.set_tensor(index, sample[name])
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as e:
            raise _refused(e) from e

    def activation(self, index: int) -> np.ndarray:
        """Returns an activation of the last inference by its tensor index."""
        if index in self._by_index:  # a kernel may have written over an input since
            return self._sample[self._by_index[index]]
        return np.asarray(self._interpreter.get_tensor(index))


def _refused(error: Exception) -> ConversionError:
    lines = str(error).strip().splitlines()
    return ConversionError(
        f"LiteRT can't run the float file, so activations have no ranges "
        f"({lines[0][:300] if lines else 'no message'})",
        hint="convert with `--recipe dynamic_wi8_afp32` or `--recipe float32`, which need none",
    )


def _make_all_activations_outputs(model: flatbuffer.Model) -> dict[int, str]:
    main = model.subgraphs[0]
    written = {index: None for op in main.operators for index in flatbuffer.indices(op.outputs)}
    names = {
        int(index): flatbuffer.tensor_name(main.tensors[index])
        for index in (*main.inputs, *written)
        if flatbuffer.type_name(main.tensors[index]) == "float32"
    }
    inputs = {int(i) for i in main.inputs}
    outputs = [int(i) for i in main.outputs]
    outputs += [i for i in names if i not in inputs and i not in outputs]
    main.outputs = np.asarray(outputs, dtype=np.int32)
    return names
