"""Validation compares what it should, on as many samples as it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pytest

from edgeport.errors import ConversionError, RunnerRefusedError
from edgeport.runtime_check.validate import Compared, check_conversion, validate
from edgeport.targets.base import Availability


class Session:
    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def __enter__(self) -> Self:
        self.runner.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.opened -= 1

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
        self.runner.seen.append(float(inputs["x"][0]))
        return {"y": inputs["x"] * 2 + self.runner.error, "n": inputs["x"].astype(np.int32)}, 0.002


class Runner:
    """A runner without a runtime: doubles, with an error."""

    title = "made for the test"

    def __init__(self, name: str = "made", error: float = 0.0) -> None:
        self.name, self.error = name, error
        self.opened = 0
        self.seen: list[float] = []

    def available(self) -> Availability:
        return Availability(True, "made")

    def open(self, model: bytes) -> Any:
        assert model == b"model"
        return Session(self)


calls: list[float] = []


def reference(sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    calls.append(float(sample["x"][0]))
    return {"y": sample["x"] * 2, "n": sample["x"].astype(np.int64)}


COMPARED = Compared(
    reference=reference,
    to_file=lambda sample: {"x": sample["x"]},
    from_file=dict,
    outputs=("y", "n"),
    classes=frozenset({"y"}),
)


def samples(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.array([i + 1.0, 0.5, 0.1], np.float32)} for i in range(count)]


def test_every_runner_sees_as_many_samples_as_it_may() -> None:
    few, all_of_them = Runner("few"), Runner("all", error=0.01)
    told: list[int] = []
    found = validate(
        [(few, 3), (all_of_them, None)], b"model", COMPARED,
        [("example", samples(1)), ("evaluation", samples(40))],
        progress=lambda done, total: told.append(done),
    )  # fmt: skip
    assert [(a.runner, a.samples, a.count) for a in found] == [
        ("few", "example", 1), ("all", "example", 1),
        ("few", "evaluation", 3), ("all", "evaluation", 40),
    ]  # fmt: skip
    assert few.seen == [1, 1, 2, 3]
    assert all_of_them.seen == [1, *range(1, 41)]
    assert told[-1] == 41
    assert told == sorted(told)
    assert few.opened == all_of_them.opened == 0
    assert [o.output for o in found[0].outputs] == ["y", "n"]
    assert found[0].outputs[0].sqnr_db == 200
    assert found[1].outputs[0].max_abs_difference == pytest.approx(0.01, rel=1e-3)
    assert found[0].outputs[0].top1_agreement == 1.0
    assert found[0].outputs[1].top1_agreement is None
    assert found[0].median_ms == 2.0


def test_the_original_runs_once_for_all_runners_and_no_more_than_needed() -> None:
    calls.clear()
    validate([(Runner("a"), 3), (Runner("b"), 5)], b"model", COMPARED, [("example", samples(99))])
    assert calls == [1, 2, 3, 4, 5]


def test_sessions_are_closed_when_a_sample_fails() -> None:
    runner = Runner()

    def broken() -> Any:
        yield from samples(1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        validate([(runner, None)], b"model", COMPARED, [("example", broken())])
    assert runner.opened == 0


def test_a_set_without_samples_is_left_out() -> None:
    assert validate([(Runner(), None)], b"model", COMPARED, [("evaluation", [])]) == ()


def test_a_float_file_that_computes_the_same_passes() -> None:
    check_conversion(Runner(error=1e-4), b"model", COMPARED, samples(2))


@pytest.mark.parametrize("error", [3.0, np.nan, np.inf])
def test_a_float_file_that_computes_something_else_is_refused(error: float) -> None:
    with pytest.raises(ConversionError, match="output `y` has an SQNR"):
        check_conversion(Runner(error=error), b"model", COMPARED, samples(2))


class Refusing(Runner):
    def open(self, model: bytes) -> Any:
        raise RunnerRefusedError("no such operator\nand more")


def test_a_further_runner_that_refuses_is_left_out_and_told() -> None:
    refused: list[str] = []
    runners = [(Runner("first"), None), (Refusing("second"), None)]
    found = validate(runners, b"model", COMPARED, [("example", samples(1))], refused=refused)
    assert [a.runner for a in found] == ["first"]
    assert refused == ["not checked on `second`: no such operator"]


def test_the_first_runner_must_not_refuse() -> None:
    runners = [(Refusing("first"), None), (Runner("second"), None)]
    with pytest.raises(RunnerRefusedError):
        validate(runners, b"model", COMPARED, [("example", samples(1))], refused=[])


def test_a_float_file_that_does_not_run_is_a_failed_conversion() -> None:
    with pytest.raises(ConversionError, match="can't run the converted file: no such operator"):
        check_conversion(Refusing("host"), b"model", COMPARED, samples(1))
