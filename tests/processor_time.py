"""A plugin of pytest that names the files of tests that took most processor time."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

_SHOWN = 15
"""Files in the summary, and the number of files from which there is a summary."""


class ProcessorTime:
    """Sums the processor time of each file, child processes that have ended included.

    Processor time depends less than a duration on what else a machine does, yet as much on the
    machine: a run names the files that took most, and no figure fails it.
    """

    def __init__(self) -> None:
        """Begins with no file."""
        self._last_s = 0.0
        self._spent_s: dict[str, float] = {}

    def restart(self) -> None:
        """Charges no file with the time since the last report."""
        self._last_s = sum(os.times()[:4])

    def pytest_collection_finish(self) -> None:
        """Charges no file with the collection."""
        self.restart()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Adds the processor time to a report, which a worker sends to the main process."""
        report = yield
        before_s = self._last_s
        self.restart()
        report.processor_s = self._last_s - before_s
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a report; the report of a worker that died bears no time."""
        file = report.nodeid.partition("::")[0]
        self._spent_s[file] = self._spent_s.get(file, 0.0) + getattr(report, "processor_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Lists the files that took most."""
        if len(self._spent_s) <= _SHOWN:
            return
        terminalreporter.section(f"processor time: {sum(self._spent_s.values()):.0f} s")
        for file in sorted(self._spent_s, key=self._spent_s.__getitem__, reverse=True)[:_SHOWN]:
            terminalreporter.line(f"{self._spent_s[file]:6.1f} s {file}")
