"""A run names the files of tests that took most processor time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.processor_time import ProcessorTime


def summary(*reports: tuple[str, float]) -> list[str]:
    """The lines of the summary after the reports (file, processor seconds)."""
    plugin = ProcessorTime()
    for file, seconds in reports:
        report: Any = SimpleNamespace(nodeid=f"{file}::test_x", processor_s=seconds)
        plugin.pytest_runtest_logreport(report)
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(section=lines.append, line=lines.append))
    return lines


def test_the_seconds_of_a_file_count_together() -> None:
    """The file with most seconds comes first, and the section's title has the sum of all."""
    files = [(f"{number:02d}", float(number)) for number in range(1, 20)]
    lines = summary(*files, ("05", 100.0))
    assert lines[:3] == ["processor time: 290 s", " 105.0 s 05", "  19.0 s 19"]
    assert len(lines) == 1 + 15


def test_a_run_of_a_few_files_has_no_summary() -> None:
    """Someone who runs one file has asked for no list."""
    assert summary(("a", 1e6), ("b", 1.0)) == []
