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
    """In place of a process: this tree takes 2 s, the other 3 s, and who played is remembered."""

    played: ClassVar[list[str]] = []
    windows = 6000

    def __init__(self, tree: Path, environments: int) -> None:
        self.name = tree.name

    def turn_s(self) -> float:
        self.played.append(self.name)
        return 3.0 if self.name == "before" else 2.0

    def close(self) -> None:
        self.played.append(f"{self.name} closed")


def test_trees_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair begins with the tree that ended the one before, and both processes end."""
    monkeypatch.setattr(paired, "Player", Turns)
    monkeypatch.setattr(Turns, "played", [])
    found = paired.measure(Path("before"), 2, 8)
    here = Path(paired.__file__).parent.parent.name
    turns = ["before", here, here, "before"]
    assert Turns.played == [*turns, f"{here} closed", "before closed"]
    assert found.ratio.mean == pytest.approx(1.5)
    page = paired.report("abc", 8, found)
    assert "| abc | 2,000 |\n| this tree | 3,000 |\n" in page
    assert "1.500 (1.500 to 1.500) ; aim: not slower |" in page


@pytest.mark.parametrize(("ratio", "miss"), [(0.9, True), (1.1, False)])
def test_a_slower_tree_misses(ratio: float, miss: bool) -> None:
    """Where the whole interval is below 1."""
    after_s = np.linspace(1.0, 1.01, 10)
    page = paired.report("abc", 8, paired.Paired(1, ratio * after_s, after_s))
    assert ("not slower, miss" in page) is miss


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
