"""Modules become sources: with their names, as they were, or refused with the user's line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from edgeport.converters.convert import rewrite
from edgeport.converters.export import from_module, from_program
from edgeport.converters.load import load_any
from edgeport.errors import ConversionError, EdgeportError, InputError, UsageError
from edgeport.targets.base import GRAPH_PASSES
from tests.models import assert_close, outputs, program, quiet, with_statistics

pytestmark = quiet

X = torch.rand(2, 3)


class Function(nn.Module):
    """A module of one function, and some layers for it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3)
        self.register_buffer("state", torch.zeros(2, 3))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def line_of(function: Any, text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(__file__)}:{start + number}"


# Names and structures


class Result(NamedTuple):
    scores: torch.Tensor
    nothing: None
    more: dict[str, Any]


class Named(nn.Module):
    def forward(self, image: Any, more: dict[str, Any], size: int, *, mask: Any = None) -> Any:
        x = image * more["factor"] * size
        return Result(x, None, {"pair": (x + 1, more["offset"]), "mask": mask, "number": 3})


def test_inputs_and_outputs_keep_their_names_and_places() -> None:
    more = {"factor": torch.rand(3), "offset": torch.tensor(2.0)}
    source = from_module(Named().eval(), (X, more, 4), {"mask": None})
    assert [(b.name, b.position) for b in source.inputs] == [
        ("image", 0), ("more_factor", 1), ("more_offset", 2)
    ]  # fmt: skip
    assert [(b.name, b.position, b.shape) for b in source.outputs] == [
        ("scores", 0, (2, 3)), ("more_pair_0", 2, (2, 3)), ("more_pair_1", 3, ())
    ]  # fmt: skip
    assert source.warnings == ("input `size` is no tensor; its value 4 is frozen",)
    assert isinstance(source.output_structure, Result)
    assert source.name == "Named"
    assert source.origin.endswith("Named")
    assert source.sha256 is None


class Plain(nn.Module):
    def forward(self, input: Any, lambda_: Any = None, *rest: Any) -> Any:
        logits = input + sum(rest)
        hidden = logits * 2
        return logits, hidden


def test_names_of_python_and_of_variables_are_kept() -> None:
    source = from_module(Plain(), (X, None, X), None, name="mine")
    assert source.inputs[0].name == "input"
    assert len(source.inputs) == 2
    assert [b.name for b in source.outputs] == ["logits", "hidden"]
    assert source.name == "mine"


@pytest.mark.parametrize("inputs", [X, [X], (X,)], ids=["a tensor", "a list", "a tuple"])
def test_example_inputs_may_be_written_in_any_way(inputs: Any) -> None:
    source = load_any(Function(lambda m, x: m.linear(x)), inputs)
    assert [b.shape for b in source.inputs] == [(2, 3)]


def test_keyword_inputs_alone_serve() -> None:
    class Keyword(nn.Module):
        def forward(self, *, a: Any, b: Any) -> Any:
            return a - b

    source = from_module(Keyword(), None, {"b": X, "a": X * 3})
    assert {b.name for b in source.inputs} == {"a", "b"}
    assert_close(outputs(source.reference, list(source.example)), [X * 2], 1e-6)


# What a module is left as


def test_the_module_is_left_in_its_modes() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    module[1].eval()
    before = [m.training for m in module.modules()]
    state = {n: v.clone() for n, v in module.state_dict().items()}
    source = from_module(module, X, None)
    source.reference(list(source.example))
    assert [m.training for m in module.modules()] == before
    assert all(torch.equal(v, state[n]) for n, v in module.state_dict().items())
    assert any("was in training mode" in w for w in source.warnings)


def test_a_submodule_alone_in_training_mode_is_told_and_put_right() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    module[1].train()
    source = from_module(module, X, None)
    assert any("submodule `1` was in training mode" in w for w in source.warnings)
    first, second = (outputs(source.reference, list(source.example)) for _ in range(2))
    assert_close(first, second, 0)
    assert module[1].training
    assert from_module(module.eval(), X, None).warnings == ()


def test_a_module_that_does_more_when_its_mode_changes_is_put_back() -> None:
    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> Any:
            if mode == self.merged:
                self.weight.data *= 0.5 if mode else 2
                self.merged = not mode
            return super().train(mode)

    module = Merging(3, 3)
    weight = module.weight.detach().clone()
    from_module(module, X, None)
    assert module.training
    assert torch.equal(module.weight, weight)


def test_example_inputs_and_modes_survive_a_failure() -> None:
    def fails(module: Any, x: Any) -> Any:
        x.mul_(0)
        raise ValueError("no")

    module, x = Function(fails).train(), X.clone()
    with pytest.raises(UsageError):
        from_module(module, x, None)
    assert module.training
    assert torch.equal(x, X)


def test_inputs_with_gradients_and_strides_are_taken() -> None:
    x = torch.rand(3, 2).t().requires_grad_()
    source = from_module(Function(lambda m, x: m.linear(x)), x, None)
    found = source.reference(list(source.example))
    assert not found.requires_grad
    assert not source.example[0].requires_grad


def test_a_change_in_place_of_an_input_does_not_reach_the_example() -> None:
    source = from_module(Function(lambda m, x: x.mul_(2) + 1), X.clone(), None)
    assert torch.equal(source.example[0], X)


def test_reference_outputs_are_not_changed_by_the_next_call() -> None:
    class Reuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.zeros(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting():
                return x * 2
            return torch.mul(x, 2, out=self.out)

    source = from_module(Reuses(), X, None)
    first = source.reference([X])
    source.reference([X * 0])
    assert torch.equal(first, X * 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_a_compiled_module_is_taken_as_what_it_wraps() -> None:
    class Whole(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image + 1

    source = from_module(torch.compile(Whole()), X, None)  # type: ignore[arg-type]
    assert (source.name, source.inputs[0].name) == ("Whole", "image")


@pytest.mark.parametrize("function", [
    lambda m, x: x,
    lambda m, x: (x, x),
    lambda m, x: (x + 1, m.state),
    lambda m, x: x.sum(),
    lambda m, x: {"a": x.argmax(1), "b": None},
], ids=["the input", "aliases", "a constant", "a scalar", "integers and None"])  # fmt: skip
def test_outputs_of_every_kind_are_borders(function: Any) -> None:
    module = Function(function)
    source = from_module(module, X, None)
    expected = outputs(module, X)
    assert [b.shape for b in source.outputs] == [v.shape for v in expected]
    assert [b.dtype for b in source.outputs] == [v.dtype for v in expected]
    assert len({b.name for b in source.outputs}) == len(expected)


# What is refused


def breaks(module: Any, x: Any) -> Any:
    y = x + 1
    return y @ torch.rand(7, 7)  # the shapes differ


def branches(module: Any, x: Any) -> Any:
    if x.sum() > 0:  # on a value
        return x
    return -x


def remembers(module: Any, x: Any) -> Any:
    module.state.add_(x)
    return module.state * 2


def remembers_anew(module: Any, x: Any) -> Any:
    module.state = module.state + x
    return module.state * 2


def remembers_a_part(module: Any, x: Any) -> Any:
    module.state[0] = x[0]
    return module.state * 2


def test_a_module_that_fails_on_its_inputs_names_the_line() -> None:
    with pytest.raises(UsageError, match="fails on its example inputs") as caught:
        from_module(Function(breaks), X, None)
    assert caught.value.where == line_of(breaks, "the shapes differ")


def test_control_flow_on_values_names_the_line() -> None:
    with pytest.raises(ConversionError, match="can't trace") as caught:
        from_module(Function(branches), X, None)
    assert caught.value.where == line_of(branches, "on a value")


@pytest.mark.parametrize("function", [remembers, remembers_anew, remembers_a_part])
@pytest.mark.parametrize("core", [False, True])
def test_state_is_refused_by_name_and_line(function: Any, core: bool) -> None:
    module = Function(function)
    model = program(module, X, core=True) if core else module
    with pytest.raises(ConversionError, match="changes its buffer `state`") as caught:
        load_any(model, X)
    if not core and function is not remembers_anew:
        # torch notes the lines of modules' forwards, not those of functions below them
        assert caught.value.where == line_of(Function.forward, "self.function(")
    assert "input and an output" in (caught.value.hint or "")


def test_statistics_that_a_module_keeps_itself_are_state() -> None:
    class Own(nn.Module):
        running_mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.running_mean.mul_(0.9).add_(x.mean(0))
            return x - self.running_mean

    with pytest.raises(ConversionError, match="changes its buffer `running_mean`"):
        from_module(Own(), X, None)


@pytest.mark.parametrize(
    ("args", "kind", "match"),
    [
        (None, UsageError, "needs example inputs"),
        ((), UsageError, "needs example inputs"),
        ("text", InputError, "not str"),
        (np.ones(3), InputError, "not ndarray"),
        ((np.ones(3),), InputError, r"\[0\] is of type ndarray"),
        ((X, {"k": [object()]}), InputError, r"\[1\]\['k'\]\[0\] is of type object"),
        ((3,), EdgeportError, ""),
    ],
)
def test_example_inputs_that_are_none_are_refused(args: Any, kind: Any, match: str) -> None:
    with pytest.raises(kind) as caught:
        from_module(Function(lambda m, *args: args[0] * 2), args, None)
    assert not match or caught.match(match)


def test_a_model_without_outputs_is_refused() -> None:
    with pytest.raises(ConversionError, match="no tensor outputs"):
        from_module(Function(lambda m, x: None), X, None)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="not int"):
        load_any(3)


# Exported programs, and the graph passes on them


def test_a_program_without_example_inputs_is_refused() -> None:
    made = program(nn.Linear(3, 3), X)
    made._example_inputs = None
    with pytest.raises(ConversionError, match="no example inputs"):
        from_program(made, name="m", origin="m.pt2")


@pytest.mark.parametrize("core", [False, True])
def test_a_program_in_training_mode_is_checked_and_converted_in_evaluation_mode(core: bool) -> None:
    torch.manual_seed(0)
    module = with_statistics(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    )
    x = torch.rand(2, 3, 6, 6)
    expected = outputs(module, x)
    made = program(module.train(), x, core=core)
    source = from_program(made, name="m", origin="m.pt2")
    assert any("training mode" in w for w in source.warnings)
    assert_close(outputs(source.reference, [x]), expected, 1e-6)
    rewritten = rewrite(source, GRAPH_PASSES, "keep", check_passes=True)
    assert {"use_evaluation_mode", "fold_batch_norm"} <= {c.name for c in rewritten.changes}
    assert_close(outputs(rewritten.graph, x), expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_passes_over_half_precision_models_are_checked_to_their_precision(
    dtype: torch.dtype,
) -> None:
    module = with_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).to(dtype)
    source = from_module(module, torch.rand(1, 3, 6, 6).to(dtype), None)
    rewritten = rewrite(source, GRAPH_PASSES, "channels-last", check_passes=True)
    assert [c.name for c in rewritten.changes][:1] == ["use_float32"]
    assert rewritten.channels_last_inputs == {"input"}
    assert rewritten.channels_last_outputs == {source.outputs[0].name}


def test_a_pass_that_changes_outputs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx import GraphModule

    from edgeport.converters.graph_passes import remove_dead_code as module

    def wrong(graph: GraphModule) -> int:
        """Doubles the outputs, which no pass may."""
        graph.linear.weight.data *= 2  # type: ignore[union-attr, operator]
        return 1

    monkeypatch.setattr(module, "remove_dead_code", wrong)
    source = from_module(Function(lambda m, x: m.linear(x)), X, None)
    with pytest.raises(ConversionError, match="`remove_dead_code` changed the model's outputs"):
        rewrite(source, ("remove_dead_code",), "keep", check_passes=True)


def test_a_dynamic_shape_is_fixed_and_said_so() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 2 * x + y

    exported = torch.export.export(
        Doubled(),
        (torch.ones(3, 4), torch.ones(4)),
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=8)}, "y": None},
    )
    source = from_program(exported, name="m", origin="m.pt2")
    assert source.warnings == (
        "input `x` has a dynamic shape; it is fixed at that of its example, 3×4",
    )


def test_the_same_tensor_given_twice_stays_two_inputs() -> None:
    x = torch.rand(2, 3)
    source = from_module(Function(lambda self, a, b: a - 2 * b), (x, x), None)
    assert len(source.inputs) == 2
    found = source.program.module(check_guards=False)(torch.zeros(2, 3), torch.ones(2, 3))
    torch.testing.assert_close(found, torch.full((2, 3), -2.0))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda self, x: nn.functional.dropout(x), id="random"),
        pytest.param(
            lambda self, x: x + setattr_and_get(self, "calls", getattr(self, "calls", 0) + 1),
            id="counts its calls",
        ),
    ],
)
def test_a_model_that_answers_differently_is_refused(function: Any) -> None:
    with pytest.raises(ConversionError, match="different outputs for the same inputs"):
        from_module(Function(function), (torch.ones(40, 3),), None)


def setattr_and_get(owner: Any, name: str, value: int) -> int:
    setattr(owner, name, value)
    return value


def test_names_that_are_keywords_of_python_are_told() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("class", nn.Linear(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.get_submodule("class")(x)
            return found

    source = from_module(Named(), X, None)
    with pytest.raises(ConversionError, match="keyword: `class_weight") as caught:
        rewrite(source, GRAPH_PASSES, "keep")
    assert caught.value.hint == "rename it"


def test_infinite_constants_of_the_users_module_are_not_shared_with_the_graph() -> None:
    module = Function(lambda self, x: x + self.state)
    module.state = torch.full((2, 3), float("-inf"))
    graph = rewrite(from_module(module, X, None), GRAPH_PASSES, "keep").graph
    for buffer in graph.buffers():
        buffer.fill_(0.0)
    assert torch.isneginf(module.state).all()
