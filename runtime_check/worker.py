"""The child process of `interpreter.py`: loads one flatbuffer and answers frames.

usage: python -m edgeport.runtime_check.worker MODEL xnnpack|reference THREADS
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import numpy as np

from edgeport.runtime_check.frames import read_frame, write_frame


def main() -> None:
    """Answers each frame of inputs with a frame of outputs, until stdin ends."""
    path, kernels, threads = sys.argv[1:]
    # The runtime's own messages must not fall into the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        interpreter = Interpreter(
            model_path=path,
            num_threads=int(threads),
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF
            if kernels == "reference"
            else OpResolverType.AUTO,
        )
        interpreter.allocate_tensors()
        runner = interpreter.get_signature_runner()
        write_frame(answers, {"ready": np.array(True)})
        while (inputs := read_frame(sys.stdin.buffer)) is not None:
            start = time.perf_counter()
            outputs = runner(**inputs)
            seconds = time.perf_counter() - start
            write_frame(answers, {**outputs, "__seconds__": np.array(seconds)})
    except (RuntimeError, ValueError) as e:
        write_frame(answers, {"__error__": np.array(str(e).strip()[:2000])})


if __name__ == "__main__":
    main()
