"""The load of sessions says which aims it misses, and fails where it does."""

from __future__ import annotations

import sys

import pytest

from benchmarks import rollout_load
from benchmarks.rollout_load import Found, load_page, main

GOOD = Found("calls", 2.5, 3.0)
BAD = Found("rate", 299.0, 300.0, "per second", least=True)


def test_a_figure_beside_its_aim() -> None:
    """On either side of it."""
    assert GOOD.row == "| calls | 2.5 ms | at most 3 ms |" and not GOOD.misses
    assert BAD.row == "| rate | 299 per second | at least 300 per second, miss |" and BAD.misses
    assert Found("calls", 3.01, 3.0).misses and not Found("rate", 300.0, 300.0, least=True).misses


@pytest.mark.parametrize(("found", "code"), [([GOOD], 0), ([GOOD, BAD], 1)])
def test_the_exit_code(found: list[Found], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 where any is missed."""
    monkeypatch.setattr(rollout_load, "load_page", lambda *_: ("page", found))
    monkeypatch.setattr(sys, "argv", ["rollout_load"])
    assert main() == code


@pytest.mark.deep
def test_a_small_run() -> None:
    """Everything is measured, and every aim of the page has a row."""
    page, found = load_page(2, 40, 20)
    assert len(found) == 6 and all(one.row in page for one in found)
    assert all(one.value > 0 for one in found[2:5])
