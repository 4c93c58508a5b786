"""Work over processes: in order, with errors passed on, and one answer to Ctrl-C."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxserve.runtime.process_pool import map_in_processes


def test_results_come_in_the_order_of_the_jobs() -> None:
    """Whatever finishes first, and as many as there are jobs."""
    seen: list[tuple[int, int]] = []
    jobs = [(number, 10) for number in range(5)]
    found = map_in_processes(operator.mul, jobs, 2, lambda *done: seen.append(done))
    assert found == [0, 10, 20, 30, 40]
    assert seen == [(done, 5) for done in range(1, 6)]
    assert map_in_processes(operator.mul, [], 2) == []


def test_one_worker_is_this_process() -> None:
    """Nothing is pickled, and no process started."""
    seen: list[tuple[int, int]] = []
    found = map_in_processes(lambda n: (n, os.getpid()), [(1,), (2,)], 1, lambda *d: seen.append(d))
    assert found == [(1, os.getpid()), (2, os.getpid())] and seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_are_passed_on(workers: int) -> None:
    """A job that fails fails the whole."""
    with pytest.raises(ValueError, match="invalid literal"):
        map_in_processes(int, [("1",), ("x",)], workers)


@pytest.mark.slow
def test_an_interrupt_is_answered_once() -> None:
    """Ctrl-C reaches the workers too, which stay silent; jobs not begun are dropped."""
    program = """
import sys, time
from jaxserve.runtime.process_pool import map_in_processes
try:
    map_in_processes(time.sleep, [(0.1,)] + [(2,)] * 400, 2, lambda *_: print("busy", flush=True))
except KeyboardInterrupt:
    sys.exit(130)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=300) == 130
        assert process.stderr.read() == ""
