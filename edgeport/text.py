"""Numbers as people read them."""

from __future__ import annotations


def file_size(size: int) -> str:
    """Formats a number of bytes with binary units, such as `4.9 MiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def number(value: float) -> str:
    """Formats a figure with four significant digits."""
    return f"{value:.4g}"
