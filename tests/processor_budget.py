"""A plugin of pytest that holds each file of tests to a budget of processor time."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

KINDS = {"deep": float("inf"), "slow": 360.0, "fast": 240.0}
"""Processor seconds that a file may take, by the slowest kind of test that ran in it: about three
times what the files take on an empty compilation cache."""
_SHOWN = 15
"""Files in the summary, and the number of files from which there is a summary."""


def kind(item: pytest.Item) -> str:
    """The kind of a test, by its marker."""
    return next((name for name in KINDS if item.get_closest_marker(name)), "fast")


class ProcessorBudget:
    """Sums the processor time of each file, child processes that have ended included.

    Processor time, unlike a duration, depends little on what else the machine does. Files over
    their budget fail a run in CI (the variable ``CI`` is set); other runs name them.
    """

    def __init__(self) -> None:
        """Begins with no file."""
        self._last_s = 0.0
        self._spent_s: dict[str, float] = {}
        self._kinds: dict[str, set[str]] = {}

    def restart(self) -> None:
        """Charges no file with the time since the last report."""
        self._last_s = sum(os.times()[:4])

    def pytest_collection_finish(self) -> None:
        """Charges no file with the collection."""
        self.restart()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Adds kind and processor time to a report, which a worker sends to the main process."""
        report = yield
        before_s = self._last_s
        self.restart()
        report.kind, report.processor_s = kind(item), self._last_s - before_s
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a report; the report of a worker that died bears no time."""
        file = report.nodeid.partition("::")[0]
        self._spent_s[file] = self._spent_s.get(file, 0.0) + getattr(report, "processor_s", 0.0)
        self._kinds.setdefault(file, set()).add(getattr(report, "kind", "fast"))

    def over_budget(self) -> dict[str, float]:
        """The budget in seconds of each file that took more."""
        budgets_s = {
            file: KINDS[next(kind for kind in KINDS if kind in kinds)]
            for file, kinds in self._kinds.items()
        }
        return {file: limit for file, limit in budgets_s.items() if self._spent_s[file] > limit}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run of CI in which a file was over its budget."""
        if session.exitstatus == pytest.ExitCode.OK and os.environ.get("CI") and self.over_budget():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Lists the files that took most, and every file over its budget."""
        over = self.over_budget()
        costly = sorted(self._spent_s, key=self._spent_s.__getitem__, reverse=True)
        shown = costly[:_SHOWN] if len(costly) > _SHOWN else []
        if not over and not shown:
            return
        total_s = sum(self._spent_s.values())
        terminalreporter.section(f"processor time: {total_s:.0f} s")
        for file in dict.fromkeys([*over, *shown]):
            note = f", over its budget of {over[file]:.0f} s" if file in over else ""
            terminalreporter.line(f"{self._spent_s[file]:6.1f} s {file}{note}")
