"""Names in a signature are those that the user wrote."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeport.converters.names import identifier, output_names, returned_names, unique

Pair = namedtuple("Pair", ["scores", "boxes"])


@pytest.mark.parametrize(
    ("structure", "names"),
    [
        (1, ["output_0"]),
        ((1, 2), ["output_0", "output_1"]),
        ([1], ["output_0"]),
        ({"a": 1, "b": 2}, ["a", "b"]),
        (OrderedDict(z=1, a=2), ["z", "a"]),
        (Pair(1, 2), ["scores", "boxes"]),
        ({"a": (1, {"b": 2})}, ["a_0", "a_1_b"]),
        (((1, 2), 3), ["output_0_0", "output_0_1", "output_2"]),
        ((1, None, 2), ["output_0", "output_1", "output_2"]),
        ({"a": None}, ["a"]),
        ({"a-b": 1, "a.b": 2, "0": 3, "": 4}, ["a_b", "a_b_1", "output_2", "_"]),
        ({0: 1, 1: 2}, ["output_0", "output_1"]),
    ],
)
def test_outputs_are_named_by_their_place_in_the_structure(structure: Any, names: Any) -> None:
    assert output_names(structure) == names


def test_outputs_without_names_are_called_as_the_return_statement_calls_them() -> None:
    assert output_names(torch.ones(1), ["logits"]) == ["logits"]
    assert output_names((1, 2), ["boxes", "scores"]) == ["boxes", "scores"]
    assert output_names((1, {"a": 2}), ["boxes", "more"]) == ["boxes", "more_a"]
    assert output_names({"a": 1}, ["result"]) == ["a"]


def one(x: Any) -> Any:
    logits = x + 1
    return logits  # noqa: RET504


def two(x: Any) -> Any:
    """Returns two."""
    boxes, scores = x
    return boxes, scores


def computed(x: Any) -> Any:
    y = x + 1
    return y, y * 2


def several(x: Any) -> Any:
    if x:
        first = x
        return first  # noqa: RET504
    second = x
    return second  # noqa: RET504


def repeated(x: Any) -> Any:
    y = x + 1
    return y, y


def given_back(x: Any) -> Any:
    return x


def inner_function(x: Any) -> Any:
    def helper(z: Any) -> Any:
        inside = z + 1
        return inside  # noqa: RET504

    result = helper(x)
    return result  # noqa: RET504


class WithMethod:
    def forward(self, x: Any) -> Any:
        depth = x + 1
        return [depth]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (one, ["logits"]), (two, ["boxes", "scores"]), (computed, None), (several, None),
        (repeated, None), (given_back, None), (WithMethod.forward, ["depth"]),
        (inner_function, ["result"]), (len, None), (eval("lambda x: x"), None), (3, None),
    ],
)  # fmt: skip
def test_names_are_read_from_a_return_statement_of_variables(function: Any, names: Any) -> None:
    assert returned_names(function) == names


@given(st.text(max_size=20))
def test_any_text_becomes_an_identifier(text: str) -> None:
    name = identifier(text)
    assert name.isidentifier()
    assert name.isascii()
    assert identifier(name) == name


def test_names_that_are_good_stay() -> None:
    assert [identifier(n) for n in ("x", "_x1", "X_y")] == ["x", "_x1", "X_y"]


@given(st.lists(st.sampled_from(["a", "a_1", "a_2", "b", "a_1_1"]), max_size=12))
def test_repeated_names_become_different_and_first_ones_stay(names: list[str]) -> None:
    found = unique(names)
    assert len(set(found)) == len(names) == len(found)
    for name, before in zip(found, names, strict=True):
        assert name.startswith(before)
    if len(set(names)) == len(names):
        assert found == names
