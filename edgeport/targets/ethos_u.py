"""Arm Ethos-U NPUs, in all configurations that vela compiles for.

A configuration's number is its multiply-accumulates a cycle. No open emulator runs the compiled
file; the NPU follows LiteRT's integer reference semantics, so the reference kernels stand for it.
"""

from __future__ import annotations

from edgeport.compilers.vela import Vela
from edgeport.targets.base import FLATBUFFER_PASSES, GRAPH_PASSES, Target

# From `vela --help`, option --accelerator-config, of ethos-u-vela 5.2.0.
_CONFIGURATIONS = (
    ("u55", (32, 64, 128, 256)),
    ("u65", (256, 512)),
    ("u85", (128, 256, 512, 1024, 2048)),
)


def _target(series: str, macs: int) -> Target:
    return Target(
        name=f"ethos-{series}-{macs}",
        title=f"Arm Ethos-{series.upper()} NPU, {macs} multiply-accumulates a cycle",
        recipes=("static_wi8_ai8", "static_wi8_ai16"),
        layout="channels-last",
        border_type="int8",
        compiler=Vela(f"ethos-{series}-{macs}"),
        runners=("reference", "host"),
        graph_passes=GRAPH_PASSES,
        flatbuffer_passes=FLATBUFFER_PASSES,
        aliases=(f"{series}-{macs}",),
    )


TARGETS = tuple(_target(series, macs) for series, sizes in _CONFIGURATIONS for macs in sizes)
