"""Rules that hold for every test: no skips where everything can be installed, no hidden state."""

from __future__ import annotations

import os
from collections.abc import Generator

import hypothesis
import pytest

NO_SKIPS = "EDGEPORT_NO_SKIPS"
"""Environment variable: set to 1, a skipped test fails, so that CI can't quietly test less."""

DEVICE = "device"
"""Marks tests that need hardware or a tool that can't be installed; they may be skipped always."""

# No deadline, since no test here is about time; no database, since a test that failed in one
# checkout has to fail in the next as well. In CI the examples don't change from run to run.
hypothesis.settings.register_profile(
    "edgeport", deadline=None, database=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("edgeport")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker for tests that even a complete installation may have to skip."""
    config.addinivalue_line(
        "markers", f"{DEVICE}: needs hardware or a tool that no package registry offers"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skipped test into a failed one where skipping is not allowed."""
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker(DEVICE) is not None
    if not expected:
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a skipped module, as `pytest.importorskip` makes them, into a failed one."""
    report = yield
    _fail_if_skipped(report)
    return report


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get(NO_SKIPS) == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{NO_SKIPS}=1 allows no skipped test: {reason}"
