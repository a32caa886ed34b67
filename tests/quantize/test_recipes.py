"""Recipes are found by name and short form, and are what they are called."""

from __future__ import annotations

import pytest

from edgeport.errors import UsageError
from edgeport.quantize.recipes import Recipe, all_recipes, get_recipe


def test_recipes_are_found_by_every_name_in_any_case() -> None:
    names = [n for r in all_recipes() for n in (r.name, *r.aliases)]
    assert len(set(names)) == len(names) >= 10
    for recipe in all_recipes():
        for name in (recipe.name, *recipe.aliases):
            assert get_recipe(name) is recipe
            assert get_recipe(name.upper()) is recipe


def test_float32_comes_first_and_the_rest_by_name() -> None:
    names = [r.name for r in all_recipes()]
    assert names[0] == "float32"
    assert names[1:] == sorted(names[1:])


@pytest.mark.parametrize("name", ["w8a9", "static", "", "int8 "])
def test_an_unknown_recipe_is_refused_with_all_that_there_are(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_recipe(name)
    assert f"`{name}`" in caught.value.what
    assert all(r.name in (caught.value.hint or "") for r in all_recipes())


@pytest.mark.parametrize("recipe", all_recipes(), ids=lambda r: r.name)
def test_a_recipe_is_what_its_name_says(recipe: Recipe) -> None:
    static = recipe.name.startswith("static")
    assert recipe.needs_calibration == static
    assert recipe.fully_integer == static
    assert (recipe.algorithm == "") == (recipe.name == "float32")
    if static:
        bits = recipe.name.rpartition("ai")[2]
        assert recipe.activations == f"int{bits}"
    assert 0 <= recipe.min_top1_agreement <= 1
    assert 0 < recipe.min_sqnr_db < 200


def test_the_quantizer_knows_every_algorithm() -> None:
    from ai_edge_quantizer import recipe as published

    for recipe in all_recipes():
        if recipe.algorithm:
            assert callable(getattr(published, recipe.algorithm))
