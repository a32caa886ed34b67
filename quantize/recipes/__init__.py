"""Quantization recipes: one TOML file each in this folder, named as the field names them.

`static_wi8_ai8` reads: static ranges, weights int8, activations int8. Reading them loads nothing
heavy, so that a mistyped recipe is refused at once.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from dataclasses import dataclass

from edgeport.errors import unknown_name

__all__ = ["Recipe", "all_recipes", "get_recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to write numbers in the file.

    Attributes:
        name: Name in the field's terms.
        summary: One line for people.
        weights: Type of the weights.
        activations: Type of the activations.
        needs_calibration: Whether ranges of activations must be known.
        algorithm: Function of `ai_edge_quantizer.recipe` that gives the rules; empty for none.
        min_sqnr_db: Default gate: least SQNR of an output against the original, in dB.
        min_top1_agreement: Default gate: least share of equal best classes, in 0…1.
        aliases: Short forms.
    """

    name: str
    summary: str
    weights: str
    activations: str
    needs_calibration: bool
    algorithm: str
    min_sqnr_db: float
    min_top1_agreement: float
    aliases: tuple[str, ...] = ()

    @property
    def fully_integer(self) -> bool:
        """Whether activations are integers, so that the borders can be."""
        return self.activations.startswith("int")


@functools.cache
def all_recipes() -> tuple[Recipe, ...]:
    """Returns every recipe, `float32` first, the others by name."""
    found = []
    for file in importlib.resources.files(__name__).iterdir():
        if file.name.endswith(".toml"):
            data = tomllib.loads(file.read_text("utf-8"))
            aliases = tuple(data.pop("aliases", ()))
            found.append(Recipe(name=file.name.removesuffix(".toml"), aliases=aliases, **data))
    return tuple(sorted(found, key=lambda r: (r.name != "float32", r.name)))


def get_recipe(name: str) -> Recipe:
    """Finds a recipe by name or short form, in any case.

    Raises:
        UsageError: There is none of that name; the message has the nearest ones.
    """
    known = {n: recipe for recipe in all_recipes() for n in (recipe.name, *recipe.aliases)}
    if name.lower() not in known:
        names = ", ".join(f"`{r.name}`" for r in all_recipes())
        raise unknown_name("recipe", name, known, see=f"recipes are {names}")
    return known[name.lower()]
