"""How fast the command line answers, beside Python itself and the library that parses it.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import measure_in_turn, median_seconds

PYTHON = "python -c pass"


def main() -> None:
    """Measures, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        found = measure_in_turn(
            {
                PYTHON: [sys.executable, "-c", "pass"],
                "python -c 'import click'": [sys.executable, "-c", "import click"],
                "edgeport --help": [sys.executable, "-m", "edgeport", "--help"],
            },
            arguments.rounds,
            Path(folder) / "log",
        )

    print(f"median of {arguments.rounds}")
    print(f"{'':26}{'ms':>7}{'ratio':>7}")
    for name, runs in found.items():
        seconds = median_seconds(runs)
        ratio = seconds / median_seconds(found[PYTHON])
        print(f"{name:26}{seconds * 1e3:7.0f}{ratio:7.1f}")


if __name__ == "__main__":
    main()
