"""How long `edgeport convert` takes, and how much memory, beside the bare libraries.

    python benchmarks/convert_time.py model.pt --calibration samples/photos --rounds 3

All commands do the same job on the same files: float model, calibration over all images, int8
model. edgeport is shown with its validation, which the bare libraries lack, and without.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from measure import measure_in_turn, median_peak, median_seconds

BARE = "litert-torch + ai-edge-quantizer"


def main() -> None:
    """Measures, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="exported program (.pt, .pt2)")
    parser.add_argument("--calibration", type=Path, required=True, help="folder of images")
    parser.add_argument("--target", default="edgetpu")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        samples = [str(arguments.model), "--calibration", str(arguments.calibration)]
        edgeport = [
            *(sys.executable, "-m", "edgeport", "convert", *samples),
            *("--target", arguments.target),
        ]
        bare = [sys.executable, str(Path(__file__).with_name("bare_litert.py")), *samples]
        found = measure_in_turn(
            {
                BARE: [*bare, "-o", str(top / "bare")],
                "edgeport --no-validate": [*edgeport, "--no-validate", "-o", str(top / "plain")],
                "edgeport": [*edgeport, "-o", str(top / "validated")],
            },
            arguments.rounds,
            top / "log",
        )

    print(f"{arguments.model}, median of {arguments.rounds}, {os.cpu_count()} CPUs")
    print(f"{'':34}{'seconds':>9}{'ratio':>7}{'peak MB':>9}{'ratio':>7}")
    for name, runs in found.items():
        seconds, peak = median_seconds(runs), median_peak(runs)
        print(
            f"{name:34}{seconds:9.1f}{seconds / median_seconds(found[BARE]):7.2f}"
            f"{peak / 1e6:9.0f}{peak / median_peak(found[BARE]):7.2f}"
        )


if __name__ == "__main__":
    main()
