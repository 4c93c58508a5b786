"""``python -m benchmarks.paired REVISION``: speed of the hard task beside another revision's.

Both trees play on this machine in processes of their own that take turns: the same windows in one,
then in the other, and in the next pair the other way round. Other load on the machine disturbs
both, so that the ratio of a pair is known better than either speed. Seconds of the processor tell
most where others keep it busy.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.page import missed, page_parser, publish
from benchmarks.paired_player import TASK
from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.evaluation.episode_statistics import CONFIDENCE, Interval

FEWEST_PAIRS, MOST_PAIRS = 10, 1000
MOST_ENVIRONMENTS = 2**20
_HERE = Path(__file__).resolve().parent.parent
_PLAYER = Path(__file__).with_name("paired_player.py")


@dataclass(frozen=True)
class Paired:
    """Seconds by the clock and of the processor, float64[pairs, 2] each."""

    windows: int
    """windows of one turn, all environments together."""
    before_s: NDArray[np.float64]
    """seconds of the other revision's turns."""
    after_s: NDArray[np.float64]
    """seconds of this tree's turns."""

    def ratio(self, clock: int) -> Interval:
        """How many times as fast this tree is: the median pair, and the 95 % interval that pairs
        of any distribution give it. A mean would be that of the turns that others disturbed.

        Args:
          clock: 0 for seconds by the clock, 1 for those of the processor.
        """
        ratios = np.sort(self.before_s[:, clock] / self.after_s[:, clock])
        beyond = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(ratios), 0.5))
        low, high = ratios[beyond - 1], ratios[-beyond]
        return Interval(float(np.median(ratios)), float(low), float(high))


class Player:
    """A process that plays the hard task with the ``jaxserve`` of one tree."""

    def __init__(self, tree: Path, environments: int) -> None:
        """Starts the process and waits for its first turn.

        Raises:
          InputError: the process ends before.
        """
        # Neither the script's own folder nor an installed jaxserve may come before the tree's.
        surroundings = os.environ | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_PLAYER), str(tree), str(environments)],
            cwd=tree,
            env=surroundings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.windows = int(self._answer())

    def turn_s(self) -> tuple[float, float]:
        """Seconds of one turn, by the clock and of the processor."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        by_clock, of_processor = map(float, self._answer().split())
        return by_clock, of_processor

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InputError("a process that plays has ended; what it said is above")
        return line


@contextlib.contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A worktree of a revision, in a folder that is removed afterwards.

    Raises:
      InputError: git knows no such revision.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        added = _git("worktree", "add", "--detach", str(tree), revision)
        if added.returncode:
            why = added.stderr.strip().rpartition("\n")[2]
            raise InputError(f"git has no tree of {revision!r}: {why}")
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def measure(before: Path, pairs: int, environments: int) -> Paired:
    """Plays the tree ``before`` and this one in turn."""
    seconds = np.empty((2, pairs, 2))
    with contextlib.ExitStack() as stack:
        players = [Player(tree, environments) for tree in (before, _HERE)]
        for player in players:
            stack.callback(player.close)
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                seconds[which, pair] = players[which].turn_s()
            found = " ".join(f"{ratio:.3f}" for ratio in seconds[0, pair] / seconds[1, pair])
            print(f"pair {pair + 1}: {found}", file=sys.stderr)
    return Paired(players[0].windows, *seconds)


def report(revision: str, environments: int, found: Paired) -> str:
    """Markdown: both speeds and their ratio."""
    pairs = len(found.after_s)
    before, after = (found.windows / np.median(s, axis=0) for s in (found.before_s, found.after_s))
    lines = [
        "# Benchmark against an earlier revision",
        "",
        f"Printed by `python -m benchmarks.paired {revision}`.",
        "",
        f"Task `{TASK}`, {environments:,} environments on one device, {found.windows:,} windows a "
        f"turn, {pairs} pairs; jax {jax.__version__} on {jax.devices()[0].device_kind}, "
        f"{os.cpu_count()} cores. The speeds are medians on a machine that may have had other "
        "work; the ratio is that of the median pair, whose turns came one after the other. "
        "The aim is missed where the whole interval is below 1.",
        "",
        f"| windows/s | {revision} | this tree | times as fast (95 % interval) | aim |",
        "|---|--:|--:|--:|---|",
    ]
    for clock, name in enumerate(("by the clock", "by seconds of the processor")):
        ratio = found.ratio(clock)
        lines.append(
            f"| {name} | {before[clock]:,.0f} | {after[clock]:,.0f} "
            f"| {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) "
            f"| not slower{missed(ratio.high < 1)} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.paired", __doc__)
    parser.add_argument("revision", help="what this tree is compared with, as git names it")
    parser.add_argument("--pairs", type=int, default=20, help="turns of each (default %(default)s)")
    parser.add_argument(
        "--environments", type=int, default=4096, help="side by side (default %(default)s)"
    )
    chosen = parser.parse_args(arguments)

    def page() -> str:
        pairs = checks.whole("--pairs", chosen.pairs, FEWEST_PAIRS, MOST_PAIRS)
        environments = checks.whole("--environments", chosen.environments, 1, MOST_ENVIRONMENTS)
        with tree_of(chosen.revision) as tree:
            found = measure(tree, pairs, environments)
        return report(chosen.revision, environments, found)

    return publish(page, chosen.markdown)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=_HERE, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
