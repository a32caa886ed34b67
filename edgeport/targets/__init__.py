"""The targets: one file each in this package, and those that other packages bring.

Every module here that defines `TARGETS` is found by its presence; a third party's package
registers a `Target` (or a tuple of them) under the entry point group `edgeport.targets`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil

from edgeport.errors import unknown_name
from edgeport.targets.base import Target

__all__ = ["Target", "all_targets", "get_target"]


@functools.cache
def all_targets() -> tuple[Target, ...]:
    """Returns every known target, sorted as people expect (`ethos-u55-64` before `-128`)."""
    found: list[Target] = []
    for module in pkgutil.iter_modules(__path__):
        if module.name != "base":
            found += importlib.import_module(f"{__name__}.{module.name}").TARGETS
    for entry in importlib.metadata.entry_points(group="edgeport.targets"):
        loaded = entry.load()
        found += [loaded] if isinstance(loaded, Target) else list(loaded)
    names = [name for target in found for name in (target.name, *target.aliases)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RuntimeError(f"two targets share the name {twice[0]!r}")
    return tuple(sorted(found, key=_natural))


def _natural(target: Target) -> list[tuple[int, str]]:
    parts = target.name.split("-")
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]


def get_target(name: str) -> Target:
    """Finds a target by name or alias, in any case.

    Raises:
        UsageError: There is none of that name; the message has the nearest ones.
    """
    wanted = name.lower()
    known = {}
    for target in all_targets():
        for known_name in (target.name, *target.aliases):
            known[known_name] = target
    if wanted not in known:
        raise unknown_name("target", name, known, see="`edgeport targets` lists them all")
    return known[wanted]
