import time
from pathlib import Path

import numpy as np
import pytest

from edgeport import measure
from edgeport.measure import NoProgress, Progress, Stages, peak_memory

MIB = 1 << 20


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def start(self, stage: str) -> None:
        self.events.append(("start", stage))

    def update(self, done: int, total: int | None) -> None:
        self.events.append(("update", done, total))

    def finish(self, stage: str, seconds: float) -> None:
        self.events.append(("finish", stage, seconds))


def test_stages_are_told_and_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5, 20.0, 20.25])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    told = Told()
    stages = Stages(told)
    with stages.stage("load"):
        stages.progress.update(1, 2)
    with stages.stage("convert"):
        pass
    assert [(s.name, s.seconds) for s in stages.done] == [("load", 2.5), ("convert", 0.25)]
    assert told.events == [
        ("start", "load"),
        ("update", 1, 2),
        ("finish", "load", 2.5),
        ("start", "convert"),
        ("finish", "convert", 0.25),
    ]


def test_a_stage_that_fails_is_not_kept() -> None:
    stages = Stages(NoProgress())
    with pytest.raises(ValueError, match="broken"), stages.stage("load"):
        raise ValueError("broken")
    with stages.stage("next"):
        pass
    assert [s.name for s in stages.done] == ["next"]


def test_a_stage_that_fails_is_not_told_as_finished() -> None:
    told = Told()
    with pytest.raises(ValueError, match="broken"), Stages(told).stage("load"):
        raise ValueError("broken")
    assert told.events == [("start", "load")]


def test_progress_of_nothing_takes_everything() -> None:
    progress: Progress = NoProgress()
    progress.start("load")
    progress.update(1, None)
    progress.finish("load", 1.0)


def test_a_peak_counts_memory_that_was_given_back() -> None:
    before = peak_memory()
    block = np.ones(64 * MIB, np.uint8)
    del block
    assert before > MIB  # bytes, not kilobytes
    assert peak_memory() >= before


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux lets a process reset its peak"
)
def test_the_peak_of_a_stage_is_its_own() -> None:
    stages = Stages(NoProgress())
    with stages.stage("large"):
        block = np.ones(256 * MIB, np.uint8)
        del block
    with stages.stage("small"):
        pass
    large, small = (s.peak_memory for s in stages.done)
    assert large - small > 128 * MIB


def test_without_proc_the_peak_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "nowhere")
    monkeypatch.setattr(measure, "_CLEAR_REFS", tmp_path / "nowhere" / "either")
    stages = Stages(NoProgress())
    with stages.stage("load"):
        pass
    assert stages.done[0].peak_memory > MIB
