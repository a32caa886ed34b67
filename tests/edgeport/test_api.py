"""The Python API: a module in, an artefact out that can be called as the module was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import edgeport
from edgeport.errors import CalibrationError, InputError, UsageError
from tests import tiny
from tests.command import files_in


def test_options_of_the_command_are_keywords_of_the_api() -> None:
    from edgeport.api import convert
    from edgeport.cli.convert import convert as command

    written = {p.name for p in command.params}
    keywords = set(inspect.signature(convert).parameters)
    only_for_the_screen = {"as_json", "quiet"}
    only_in_python = {"example_inputs", "example_kwargs", "progress"}
    assert only_for_the_screen <= written
    assert only_in_python <= keywords
    assert written - only_for_the_screen == keywords - only_in_python


def test_options_and_keywords_have_the_same_defaults() -> None:
    from edgeport.api import convert
    from edgeport.cli.convert import convert as command

    keywords = inspect.signature(convert).parameters
    shared = [p for p in command.params if p.name in keywords and p.name != "model_or_path"]
    assert len(shared) > 10
    context = command.make_context("convert", ["model.pt2"], resilient_parsing=False)
    differing = {
        p.name: (context.params[p.name], keywords[p.name].default)
        for p in shared
        if context.params[p.name] != keywords[p.name].default
    }
    assert differing == {}


def test_every_keyword_is_documented() -> None:
    described = inspect.getdoc(edgeport.convert)
    assert described is not None
    missing = [
        name
        for name in inspect.signature(edgeport.convert).parameters
        if f"\n    {name}: " not in described
    ]
    assert missing == []


# --- what is refused before anything is converted


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(UsageError, match="needs example inputs"):
        edgeport.convert(tiny.make_module())


def test_something_else_is_no_model() -> None:
    with pytest.raises(UsageError, match="not list"):
        edgeport.convert([1, 2])  # type: ignore[arg-type]


def test_example_inputs_that_the_module_does_not_take() -> None:
    import torch

    with pytest.raises(UsageError, match="fails on its example inputs"):
        edgeport.convert(tiny.make_module(), torch.rand(1, 4, 16, 16))


def test_an_archive_takes_no_example_inputs(tmp_path: Path) -> None:
    import torch

    with pytest.raises(UsageError, match="carries its own example inputs"):
        edgeport.convert(tmp_path / "model.pt2", torch.rand(1))


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        pytest.param(3, CalibrationError, id="no samples at all"),
        pytest.param("nowhere", CalibrationError, id="no folder"),
        pytest.param({"pixels": 1}, CalibrationError, id="one dict instead of many"),
    ],
)
def test_samples_that_can_be_none(samples: Any, error: type[Exception]) -> None:
    import torch

    with pytest.raises(error):
        edgeport.convert(
            tiny.make_module(), torch.rand(tiny.SHAPE), recipe="w8a8", calibration=samples
        )


# --- one conversion of a module with everything at its borders


class Result(NamedTuple):
    scores: Any
    nothing: None
    more: dict[str, Any]


@pytest.fixture(scope="module")
def module() -> Any:
    import torch
    from torch import nn

    class Mixed(nn.Module):
        """An image by position, an index by name; a named tuple with a dict, a tuple, None."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.dropout = nn.Dropout(0.5)
            self.table = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 5)

        def forward(self, image: torch.Tensor, *, index: torch.Tensor) -> Result:
            x = torch.relu(self.conv(image))
            pooled = self.dropout(x.mean((2, 3)))
            scores = self.head(pooled + self.table(index))
            return Result(scores, None, {"map": x, "pair": (index + 1, pooled)})

    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = Mixed()
    made.train()
    made.dropout.eval()  # a mixture that has to be found again
    return made


def make_inputs(seed: int) -> tuple[Any, Any]:
    import torch

    rng = np.random.default_rng(seed)
    image = torch.from_numpy(rng.random((1, 3, 8, 8), np.float32))
    return image, torch.from_numpy(rng.integers(0, 10, (1,)))


def make_samples() -> list[dict[str, Any]]:
    return [
        {"image": image, "index": index} for image, index in (make_inputs(i) for i in range(20))
    ]


class Converted(NamedTuple):
    artifact: edgeport.Artifact
    modes_before: list[bool]
    modes_after: list[bool]
    folder: Path


@pytest.fixture(scope="module")
def converted(module: Any, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    folder = tmp_path_factory.mktemp("api") / "out"
    image, index = make_inputs(0)
    before = [m.training for m in module.modules()]
    artifact = edgeport.convert(
        module, (image,), {"index": index}, recipe="w8a8", io_type="int8", layout="channels-last",
        calibration=make_samples(), output=folder, effort="fast",
    )  # fmt: skip
    return Converted(artifact, before, [m.training for m in module.modules()], folder)


def expected_of(module: Any, image: Any, index: Any) -> Result:
    import torch

    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    with torch.no_grad():
        result: Result = module(image, index=index)
    for submodule, training in modes:
        submodule.training = training
    return result


@pytest.mark.slow
def test_the_training_mode_of_each_submodule_is_kept(converted: Converted) -> None:
    assert any(converted.modes_before)
    assert not all(converted.modes_before)
    assert converted.modes_after == converted.modes_before
    assert any("training mode" in w for w in converted.artifact.report.warnings)


@pytest.mark.slow
def test_the_artifact_was_written_and_says_where(converted: Converted) -> None:
    artifact = converted.artifact
    assert artifact.folder == converted.folder
    assert artifact.files["model"] == converted.folder / "Mixed.tflite"
    assert (converted.folder / "Mixed.tflite").read_bytes() == artifact.model
    assert files_in(converted.folder) == set(artifact.contents)
    assert artifact.report.verdict == "passed", artifact.report.gates
    assert "TFL3" not in repr(artifact)  # nobody wants to see a model's bytes


@pytest.mark.slow
def test_the_file_is_int8_and_the_calls_are_float(converted: Converted) -> None:
    inputs = {t.name: t for t in converted.artifact.report.model.inputs}
    assert set(inputs) == {"image", "index"}
    assert (inputs["image"].dtype, inputs["image"].shape) == ("int8", (1, 8, 8, 3))
    assert inputs["image"].original_shape == (1, 3, 8, 8)
    assert inputs["index"].original_dtype == "int64"
    outputs = converted.artifact.report.model.outputs
    assert {o.dtype for o in outputs if o.original_dtype == "float32"} == {"int8"}


@pytest.mark.slow
def test_running_with_tensors_gives_what_the_module_gives(
    converted: Converted, module: Any
) -> None:
    import torch

    image, index = make_inputs(7)
    found = converted.artifact.run(image, index=index)
    expected = expected_of(module, image, index)
    assert type(found) is Result
    assert found.nothing is None
    assert list(found.more) == ["map", "pair"]
    assert type(found.more["pair"]) is tuple
    for here, there in (
        (found.scores, expected.scores),
        (found.more["map"], expected.more["map"]),
        (found.more["pair"][0], expected.more["pair"][0]),
        (found.more["pair"][1], expected.more["pair"][1]),
    ):
        assert isinstance(here, torch.Tensor)
        assert here.shape == there.shape
        assert here.dtype == there.dtype
        if there.is_floating_point():
            difference = (here - there).abs().max()
            assert difference < 0.1 * there.abs().max() + 0.02


@pytest.mark.slow
def test_running_with_arrays_gives_arrays_of_the_same_values(converted: Converted) -> None:
    image, index = make_inputs(7)
    tensors = converted.artifact.run(image, index=index)
    arrays = converted.artifact.run(image.numpy(), index=index.numpy())
    assert type(arrays) is Result
    assert isinstance(arrays.scores, np.ndarray)
    np.testing.assert_array_equal(arrays.scores, tensors.scores.numpy())
    np.testing.assert_array_equal(arrays.more["map"], tensors.more["map"].numpy())
    assert arrays.more["pair"][0].dtype == np.int64


@pytest.mark.slow
def test_results_of_earlier_runs_do_not_change(converted: Converted) -> None:
    first = converted.artifact.run(make_inputs(1)[0], index=make_inputs(1)[1])
    kept = first.scores.clone()
    converted.artifact.run(make_inputs(2)[0], index=make_inputs(2)[1])
    assert (first.scores == kept).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda i, n: ((i[:, :2],), {"index": n}), "`image`", id="shape"),
        pytest.param(lambda i, n: ((i[0],), {"index": n}), "`image`", id="rank"),
        pytest.param(lambda i, n: ((i.int(),), {"index": n}), "`image`", id="integers"),
        pytest.param(lambda i, n: ((i,), {"index": n.float()}), "`index`", id="floats"),
        pytest.param(lambda i, n: ((i,), {"index": [0, 1]}), "index", id="a list"),
        pytest.param(lambda i, n: ((i,), {}), "index", id="one missing"),
        pytest.param(lambda i, n: ((), {"index": n}), "image", id="the other missing"),
        pytest.param(lambda i, n: ((i, n, n), {}), "3 inputs", id="one too many"),
        pytest.param(lambda i, n: ((i,), {"index": n, "other": n}), "`other`", id="an unknown"),
        pytest.param(lambda i, n: (("text",), {"index": n}), "image", id="text"),
        pytest.param(lambda i, n: ((None,), {"index": n}), "image", id="None"),
    ],
)
def test_inputs_that_do_not_fit_are_told_by_name(
    converted: Converted, change: Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]],
    told: str,
) -> None:  # fmt: skip
    args, kwargs = change(*make_inputs(0))
    with pytest.raises(InputError) as caught:
        converted.artifact.run(*args, **kwargs)
    assert told in caught.value.what


@pytest.mark.slow
def test_a_value_that_is_not_finite_does_not_pass_as_a_number(converted: Converted) -> None:
    image, index = make_inputs(0)
    image[0, 0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="`image`"):
        converted.artifact.run(image, index=index)


@pytest.mark.slow
def test_saving_elsewhere_writes_the_same_files(converted: Converted, tmp_path: Path) -> None:
    folder = converted.artifact.save(tmp_path / "copy")
    assert folder == tmp_path / "copy"
    assert files_in(folder) == files_in(converted.folder)
    for name, content in converted.artifact.contents.items():
        assert (folder / name).read_bytes() == content


@pytest.mark.slow
def test_nothing_is_printed_and_nothing_written_without_an_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    artifact = edgeport.convert(tiny.make_module(), torch.rand(tiny.SHAPE), target="edgetpu")
    assert capfd.readouterr() == ("", "")
    assert files_in(tmp_path) == set()
    assert artifact.folder is None
    assert artifact.files["model"] in artifact.contents
    # Ranges from one example are a guess, and the report says so.
    assert any("no calibration samples" in w for w in artifact.report.warnings)


@pytest.mark.slow
def test_parts_that_forward_does_not_use_are_left_out() -> None:
    """As heads for training are."""
    import torch

    class WithAuxiliary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 5)
            self.auxiliary = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.ReLU())

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(features)
            return scores

    artifact = edgeport.convert(WithAuxiliary().eval(), torch.rand(1, 6))
    assert artifact.report.verdict == "passed"
    assert len(artifact.model) < 300 * 6 * 4


@pytest.mark.slow
def test_scores_and_the_best_class_can_both_be_outputs() -> None:
    import torch

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 5)

        def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.head(features)
            return {"scores": scores, "best": scores.argmax(1)}

    samples = [torch.rand(1, 6, generator=torch.Generator().manual_seed(i)) for i in range(16)]
    artifact = edgeport.convert(
        Classifier(), samples[0], recipe="w8a8", io_type="int8", calibration=samples
    )
    found = artifact.run(samples[3])
    assert found["best"].dtype is torch.int64
    assert found["best"].item() == found["scores"].argmax(1).item()


# --- the ways to give samples; without validation, since calibration is what they are about


def images(count: int = 17) -> list[Any]:
    import torch

    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.random(tiny.SHAPE, np.float32)) for _ in range(count)]


def as_generator() -> Iterator[Any]:
    yield from images()


def as_loader() -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    pixels = torch.cat(images())
    return DataLoader(TensorDataset(pixels, torch.arange(len(pixels))), batch_size=5)


@pytest.fixture(scope="module")
def plain_calibration() -> bytes:
    """The file from a list of tensors."""
    return calibrated(images()).model


def calibrated(samples: Any) -> edgeport.Artifact:
    return edgeport.convert(
        tiny.make_module(), images(1)[0], target="edgetpu", calibration=samples, validate=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: [(x,) for x in images()], id="tuples"),
        pytest.param(lambda: [{"pixels": x} for x in images()], id="dicts"),
        pytest.param(lambda: [x.numpy()[0] for x in images()], id="arrays without a batch"),
        pytest.param(as_generator, id="generator"),
        pytest.param(as_loader, id="loader with labels"),
    ],
)
def test_the_same_samples_in_any_form_give_the_same_file(
    plain_calibration: bytes, make: Callable[[], Any]
) -> None:
    artifact = calibrated(make())
    assert artifact.model == plain_calibration
    assert artifact.report.verdict == "not checked"
    assert artifact.report.accuracy == ()
    assert not [w for w in artifact.report.warnings if "samples" in w]


@pytest.mark.slow
def test_other_samples_give_another_file(plain_calibration: bytes) -> None:
    artifact = calibrated([4 * x for x in images(3)])
    assert artifact.model != plain_calibration
    assert any("only 3 calibration samples" in w for w in artifact.report.warnings)
