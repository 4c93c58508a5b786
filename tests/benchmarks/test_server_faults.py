"""The fault benchmark: its exit code says whether anything failed, and a row what was seen."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import pytest

from benchmarks import server_faults
from benchmarks.server_faults import Trial, rebuilt_seen, soak_trial
from benchmarks.server_load import aimed

FINE = Trial("harm", tried=3, survived=3, failed=0, lost=0, seen="")


@pytest.mark.parametrize(
    ("trial", "code"),
    [
        (FINE, 0),
        (replace(FINE, survived=2), 1),
        (replace(FINE, failed=1), 1),
        (replace(FINE, lost=1), 1),
        (replace(FINE, grown=True), 1),
    ],
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, trial: Trial, code: int) -> None:
    """1 where an answer, a step or a session did not survive, or the server grew."""

    def page(chosen: argparse.Namespace, trials: list[Trial]) -> str:
        del chosen
        trials.extend([FINE, trial])
        return ""

    monkeypatch.setattr(server_faults, "faults_page", page)
    monkeypatch.setattr(sys, "argv", ["server_faults"])
    assert server_faults.main() == code


@pytest.mark.parametrize(
    ("last", "passed"),
    [
        ((800, 84, 98), True),
        ((839, 84, 98), True),
        ((700, 80, 90), True),
        ((841, 84, 98), False),
        ((800, 85, 98), False),
        ((800, 84, 99), False),
    ],
)
def test_a_soak_fails_where_the_server_grows(last: tuple[int, int, int], passed: bool) -> None:
    """More memory by over 5 %, or a handle or thread more, in the last third of the time; the first
    third is the server's own to grow in."""
    seen = [(500.0, 60, 70)] * 20 + [(800.0, 84, 98)] * 20 + [(800.0, 84, 98), last] * 10
    trial = soak_trial(seen, steps=100, seconds=600.0)
    assert trial.passed == passed
    assert trial.seen.endswith("it grew") != passed
    assert (trial.tried, trial.survived) == (100, 100)


def test_a_missed_aim_is_said() -> None:
    """Behind the aim, on both pages, and only where it is missed."""
    assert rebuilt_seen(3.2, 49.0, 2.0).count("miss") == 1
    assert "(aim 3 s, miss)" in rebuilt_seen(3.2, 49.0, 2.0)
    assert "(aim 50 ms, miss; 2 ms when alone)" in rebuilt_seen(2.9, 51.0, 2.0)
    assert (aimed(2000, 1999.0), aimed(2000, 2000.0)) == ("2,000, miss", "2,000")
