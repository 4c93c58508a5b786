"""Files of tests are held to their budget of processor time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.processor_budget import KINDS, ProcessorBudget


def spent(*reports: tuple[str, str, float]) -> ProcessorBudget:
    """A budget after the reports (file, kind, processor seconds)."""
    budget = ProcessorBudget()
    for file, kind, seconds in reports:
        report: Any = SimpleNamespace(nodeid=f"{file}::test_x", kind=kind, processor_s=seconds)
        budget.pytest_runtest_logreport(report)
    return budget


def test_a_file_is_over_the_budget_of_its_slowest_test() -> None:
    """The seconds of all tests of a file count together; a slow test widens the budget of all."""
    half = 0.6 * KINDS["fast"]
    assert spent(("a", "fast", half), ("b", "fast", half)).over_budget() == {}
    assert spent(("a", "fast", half), ("a", "fast", half)).over_budget() == {"a": KINDS["fast"]}
    assert spent(("a", "slow", half), ("a", "fast", half)).over_budget() == {}
    assert spent(("a", "deep", 1e6)).over_budget() == {}


@pytest.mark.parametrize(("in_ci", "code"), [(True, 1), (False, 0)])
def test_only_ci_fails(in_ci: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file over its budget fails a run in CI; elsewhere the summary names the file."""
    monkeypatch.setenv("CI", "true" if in_ci else "")
    budget = spent(("a", "fast", 2.0 * KINDS["fast"]), ("b", "fast", 1.0))
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    budget.pytest_sessionfinish(session)
    assert session.exitstatus == code
    lines: list[str] = []
    budget.pytest_terminal_summary(SimpleNamespace(section=lines.append, line=lines.append))
    assert lines == [
        f"processor time: {2.0 * KINDS['fast'] + 1.0:.0f} s",
        f"{2.0 * KINDS['fast']:6.1f} s a, over its budget of {KINDS['fast']:.0f} s",
    ]
