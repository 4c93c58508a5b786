"""The fault run finds what is lost, there twice, or without a reason, and says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.rollout_faults import Outcome, report, run


def outcome() -> Outcome:
    """Two tasks that went well, one of them in its second attempt."""
    return Outcome(
        tasks=2,
        states=Counter({"COMPLETED": 1, "ERROR the agent ended with exit code 3": 1}),
        harms=Counter(node=1, disk=2),
        ends=Counter({"t0.0": 1, "t1.0": 1}),
        pushed=Counter(t0=1, t1=2),
        noted=6,
        failures=Counter({"status 429": 4}),
        attempts=Counter({1: 1, 2: 1}),
    )


def test_the_table_has_every_count() -> None:
    """One row for each kind of harm."""
    found = outcome()
    assert found.whole
    lines = report(found).splitlines()
    assert "| killed: node | 1 |" in lines and "| killed: gateway | 0 |" in lines
    assert "| disk full for a second | 2 |" in lines
    assert "| other answers that agents got | status 429: 4 |" in lines
    assert "| callbacks taken | 2 tasks, 3 times |" in lines
    assert "| sessions by attempts | 1: 1; 2: 1 |" in lines


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"doubled": 1},
        {"differing": ["t0.0"]},
        {"ends": Counter({"t0.0": 1})},
        {"ends": Counter({"t0.0": 2, "t1.0": 1})},
        {"pushed": Counter(t0=2)},
        {"states": Counter(COMPLETED=1, ERROR=1)},
        {"misjudged": ["t0.0"]},
    ],
)
def test_what_is_wrong_is_not_whole(wrong: dict[str, object]) -> None:
    """Each by itself."""
    found = outcome()
    vars(found).update(wrong)
    assert not found.whole


@pytest.mark.deep
def test_a_small_run(tmp_path: Path) -> None:
    """Two nodes are harmed while six agents talk: nothing that was acknowledged is lost, nothing is
    counted twice, and every task ends once, with a status and a reason, whatever it is."""
    told: list[str] = []
    found = run(tmp_path, 6, 5, 0, told.append)
    page = report(found)
    assert found.whole, page
    assert found.noted > 0 and found.harms.total() == len(told) == 5, page
    assert len(found.ends) == len(found.pushed) == 6
    ends = [said.partition(" ") for said in found.states.elements()]
    assert {state for state, *_ in ends} > {"TIMEOUT", "ERROR"}, page
    assert all(bool(reason) == (state != "COMPLETED") for state, _, reason in ends)
