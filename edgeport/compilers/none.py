"""Targets that take the flatbuffer as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeport import flatbuffer
from edgeport.report import CompilerReport, OperatorPlacement, Placement
from edgeport.targets.base import Availability, Compilation


@dataclass(frozen=True, slots=True)
class NoCompiler:
    """LiteRT's own CPU kernels run every builtin operator; there is nothing to compile."""

    def available(self) -> Availability:
        """Nothing is needed."""
        return Availability(True, "not needed")

    def compile(self, model: bytes, name: str, work: Path) -> Compilation:
        """Places every operator on the CPU."""
        parsed = flatbuffer.parse(model)
        operators = tuple(
            OperatorPlacement(
                index=i,
                operator=flatbuffer.operator_name(parsed, op),
                version=flatbuffer.operator_version(parsed, op),
                on="cpu",
                reason="builtin operator",
                source="LiteRT's CPU kernels",
            )
            for i, op in enumerate(parsed.subgraphs[0].operators)
        )
        report = CompilerReport("none", None, "not needed", "the .tflite file is shipped as it is")
        return Compilation(report, Placement(operators, partitions=0))
