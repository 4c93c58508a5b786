"""The paired benchmark: turns of two trees, and what their ratio says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchmarks import paired
from jaxserve.errors import InputError


class Turns:
    """In place of a process: this tree takes 2 s by the clock, the other 3 s; turns are kept."""

    played: ClassVar[list[str]] = []
    windows = 6000

    def __init__(self, tree: Path, environments: int) -> None:
        self.name = tree.name

    def turn_s(self) -> tuple[float, float]:
        self.played.append(self.name)
        return (3.0, 1.0) if self.name == "before" else (2.0, 1.0)

    def close(self) -> None:
        self.played.append(f"{self.name} closed")


def test_trees_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair begins with the tree that ended the one before, and both processes end."""
    monkeypatch.setattr(paired, "Player", Turns)
    monkeypatch.setattr(Turns, "played", [])
    found = paired.measure(Path("before"), 10, 8)
    here = Path(paired.__file__).parent.parent.name
    turns = ["before", here, here, "before"]
    assert Turns.played == [*turns * 5, f"{here} closed", "before closed"]
    page = paired.report("abc", 8, found)
    assert "| by the clock | 2,000 | 3,000 | 1.500 (1.500 to 1.500) | not slower |" in page
    assert "processor | 6,000 | 6,000 | 1.000 (1.000 to 1.000) | not slower |" in page


@pytest.mark.parametrize(("ratio", "miss"), [(0.9, True), (1.1, False)])
def test_a_slower_tree_misses(ratio: float, miss: bool) -> None:
    """Where the whole interval is below 1."""
    after_s = np.linspace(1.0, 1.01, 20).reshape(10, 2)
    page = paired.report("abc", 8, paired.Paired(1, ratio * after_s, after_s))
    assert ("not slower, miss" in page) is miss


def test_a_disturbed_turn_says_little() -> None:
    """The median and its interval are those of the other pairs."""
    after_s = np.ones((20, 2))
    before_s = 0.9 * after_s
    before_s[:3] = 50.0
    ratio = paired.Paired(1, before_s, after_s).ratio(1)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((0.9, 0.9, 0.9))


def test_a_revision_that_git_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with what git says."""
    failed = subprocess.CompletedProcess([], 128, "", "fatal: invalid reference: no-such\n")
    monkeypatch.setattr(paired, "_git", lambda *arguments: failed)
    with (
        pytest.raises(InputError, match="git has no tree of 'no-such': fatal"),
        paired.tree_of("no-such"),
    ):
        raise AssertionError


def test_a_process_that_ends_is_told(tmp_path: Path) -> None:
    """A folder without jaxserve has nothing to play."""
    with pytest.raises(InputError, match="has ended"):
        paired.Player(tmp_path, 1)
