"""Processes that end with the one that started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxserve.runtime.process_group import own_process
from tests.patience import PATIENCE_S, alive, wait_until

_PARENT = """
import sys, time
from jaxserve.runtime.process_group import own_process
with own_process(["sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait"], stdout=sys.stdout):
    time.sleep(1000)
"""


def _wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), "the end of all")


def _started(output: str) -> list[int]:
    return [int(pid) for pid in output.split()]


def test_it_ends_with_the_block() -> None:
    """And what it started with it, however deaf they are."""
    command = ["sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait"]
    with own_process(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = _started(process.stdout.readline())
        assert len(started) == 2 and all(map(alive, started))
    assert process.returncode != 0
    _wait_until_gone(started)


def test_it_ends_with_a_parent_that_is_killed() -> None:
    """Which can clean up nothing."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        started = _started(it.stdout.readline())
        it.kill()
    assert len(started) == 2
    _wait_until_gone(started)


def test_its_own_end_is_its_own() -> None:
    """The group's leader does not stand in the way of who waits for it."""
    with own_process([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert process.wait(PATIENCE_S) == 3


def test_what_cannot_be_started(tmp_path: Path) -> None:
    """Is said by the system, and leaves no leader behind."""
    before = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError), own_process([str(tmp_path / "none")]):
        raise AssertionError
    assert set(psutil.Process().children()) <= before
