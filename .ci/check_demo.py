"""Checks what `make demo` left: verdicts, integer borders and operators, from report and file.

python .ci/check_demo.py build/efficientnet_lite0_edgetpu ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from edgeport import flatbuffer


def complaints(folder: Path) -> list[str]:
    """Returns what is wrong with one converted model, in words; nothing if all is well."""
    report = json.loads((folder / "report.json").read_text("utf-8"))
    found = []
    if report["verdict"] != "passed":
        found.append(f"the verdict is `{report['verdict']}`, gates {report['gates']}")
    for tensor in (*report["model"]["inputs"], *report["model"]["outputs"]):
        if tensor["dtype"] != "int8":
            found.append(f"the report calls `{tensor['name']}` {tensor['dtype']}")
    if not report["placement"]["operators"]:
        found.append("the report places no operators")
    if "TRANSPOSE" in (o["operator"] for o in report["placement"]["operators"]):
        found.append("the report places a TRANSPOSE")
    if not any(a["samples"] == "evaluation" and a["count"] == 40 for a in report["accuracy"]):
        found.append("nothing was measured on the 40 evaluation images")
    models = [f["name"] for f in report["files"] if f["role"] == "model"]
    if len(models) != 1:
        return [*found, f"one model to ship was expected, not {models}"]
    return found + _complaints_about_file(flatbuffer.parse((folder / models[0]).read_bytes()))


def _complaints_about_file(model: Any) -> list[str]:
    main = model.subgraphs[0]
    found = [
        f"the file's `{flatbuffer.tensor_name(tensor)}` is {flatbuffer.type_name(tensor)}"
        for tensor in (main.tensors[i] for i in (*main.inputs, *main.outputs))
        if flatbuffer.type_name(tensor) != "int8"
    ]
    if "TRANSPOSE" in (flatbuffer.operator_name(model, o) for o in main.operators):
        found.append("the file holds a TRANSPOSE")
    return found


def main() -> None:
    """Checks all folders that are named, and fails if anything is wrong with one."""
    failed = False
    for folder in map(Path, sys.argv[1:]):
        found = complaints(folder)
        failed |= bool(found)
        print(f"{folder}: {'; '.join(found) or 'passed, int8 borders, no TRANSPOSE'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
