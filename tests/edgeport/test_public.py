import importlib
import re

import pytest

import edgeport


def test_the_public_names_are_exactly_these() -> None:
    assert edgeport.__all__ == ["Artifact", "EdgeportError", "Report", "convert", "inspect"]


@pytest.mark.parametrize("name", edgeport.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    found = getattr(importlib.import_module("edgeport"), name)
    assert found.__name__ == name
    assert found.__doc__
    assert name in dir(edgeport)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'edgeport' has no attribute 'konvert'"):
        _ = edgeport.konvert


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", edgeport.__version__)


def test_every_error_has_an_exit_code_of_the_documented_ones() -> None:
    from edgeport import errors
    from edgeport.cli import edgeport as command

    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    found = {c.exit_code for c in classes if issubclass(c, errors.EdgeportError)}
    found.discard(errors.EXIT_BUG)  # the base class: nobody raises it
    assert found == {errors.EXIT_USAGE, errors.EXIT_CANNOT_CONVERT, errors.EXIT_NOT_CHECKED}
    assert command.help is not None
    documented = set(map(int, re.findall(r"\b(\d+) ", command.help.partition("Exit codes:")[2])))
    assert (
        found | {errors.EXIT_GOOD, errors.EXIT_GATE_FAILED, errors.EXIT_INTERRUPTED} <= documented
    )
