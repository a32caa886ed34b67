"""The Coral Edge TPU: fully 8-bit models, compiled by Google's `edgetpu_compiler`."""

from __future__ import annotations

from edgeport.compilers.edgetpu import EdgeTpuCompiler
from edgeport.targets.base import FLATBUFFER_PASSES, GRAPH_PASSES, Target

TARGETS = (
    Target(
        name="edgetpu",
        title="Coral Edge TPU",
        aliases=("coral", "edge-tpu"),
        recipes=("static_wi8_ai8",),
        layout="channels-last",
        border_type="int8",
        compiler=EdgeTpuCompiler(),
        runners=("host", "reference"),
        graph_passes=GRAPH_PASSES,
        flatbuffer_passes=FLATBUFFER_PASSES,
    ),
)
