"""edgeport brings a PyTorch model to edge hardware that speaks LiteRT.

`edgeport.convert(module, example_inputs, target="edgetpu")` converts, quantizes, compiles, runs
and compares; `edgeport.inspect` shows what is in a .tflite file. Importing this package loads
neither torch nor LiteRT.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgeport.api import convert as convert
    from edgeport.artifact import Artifact as Artifact
    from edgeport.errors import EdgeportError as EdgeportError
    from edgeport.inspection import inspect as inspect
    from edgeport.report import Report as Report

_WHERE = {
    "Artifact": "edgeport.artifact",
    "EdgeportError": "edgeport.errors",
    "Report": "edgeport.report",
    "convert": "edgeport.api",
    "inspect": "edgeport.inspection",
}
__all__ = ["Artifact", "EdgeportError", "Report", "convert", "inspect"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
