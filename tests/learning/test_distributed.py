"""Several processes: how they meet, exchange numbers and fail together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxserve
from jaxserve.errors import InputError
from jaxserve.learning.distributed import exchanged, is_first, join_processes, together
from jaxserve.learning.ppo import Learner
from jaxserve.learning.returns import task_discount
from jaxserve.learning.run_directory import read_metrics
from jaxserve.learning.run_options import check_run
from jaxserve.runtime.child_processes import own_process
from server.local import free_port

SCRIPT = """
import sys
from jaxserve.learning.distributed import exchanged, is_first, join_processes, together
from jaxserve.errors import InputError

coordinator, index = sys.argv[1], int(sys.argv[2])
join_processes(coordinator, 2, index)
print(is_first(), exchanged(index + 1.0, 0.5).tolist())
with together():
    print("both")
try:
    with together():
        if index == 1:
            raise InputError("mine")
except InputError as error:
    print(error)
"""


def free_address() -> str:
    """HOST:PORT that nobody listens at."""
    return f"127.0.0.1:{free_port()}"


def test_two_processes_stay_in_step(tmp_path: Path) -> None:
    """Both learn both numbers, only the first is first, and what one refuses the other drops."""
    command = [sys.executable, "-c", SCRIPT, free_address()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = pipes | {"cwd": tmp_path, "env": os.environ | {"JAX_NUM_CPU_DEVICES": "1"}}
    with (
        own_process([*command, "0"], **options) as one,
        own_process([*command, "1"], **options) as other,
    ):
        running = (one, other)
        outputs = [process.communicate(timeout=300.0) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    numbers = "[[1.0, 0.5], [2.0, 0.5]]"
    # The library that carries the numbers says on stdout that it is connected.
    first, second = (
        [line for line in text.splitlines() if not line.startswith("[Gloo]")] for text, _ in outputs
    )
    assert first == [f"True {numbers}", "both", "process 1 cannot train, and says why"]
    assert second == [f"False {numbers}", "both", "mine"]


@pytest.mark.deep
def test_two_processes_train_one_policy(tmp_path: Path) -> None:
    """Their updates are those of one process; Ctrl-C in either stops both with a checkpoint; and
    one process alone can finish what they began."""
    out = tmp_path / "run"
    one_device = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "jaxserve.cli", "train", "--task", "static_workload"]
    command += ["--environments", "16", "--steps", "80000", "--out", str(out)]
    both = [*command, "--coordinator", free_address(), "--processes", "2"]
    pipes = {"stderr": subprocess.PIPE, "text": True, "env": one_device}
    with (
        own_process([*both, "--process", "0"], **pipes) as first,
        own_process([*both, "--process", "1"], **pipes) as second,
    ):
        assert first.stderr is not None
        for line in first.stderr:
            if "windows/s" in line:
                break
        second.send_signal(signal.SIGINT)
        for process in (first, second):
            _, said = process.communicate(timeout=300.0)
            assert process.returncode == 130 and "continue with --resume" in said, said
            assert "Traceback" not in said
    assert not (out / "weights.npz").exists()

    env = jaxserve.make("static_workload")
    config = check_run(80_000, 0, 1, 16, learning_rate=2e-3, discount=task_discount(env))
    learner = Learner.create(env, config)
    state, update = jax.jit(learner.init)(jax.random.key(0)), jax.jit(learner.update)
    for row in read_metrics(out, 3, (0,)):
        state, report = update(state)
        for name, value in vars(report).items():
            assert row[name] == pytest.approx(float(value), rel=1e-2, abs=1e-4), name

    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, env=one_device, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(read_metrics(out, 200, (0,))) == 200
    assert (out / "weights.npz").exists()


def test_alone() -> None:
    """Without arguments nothing is joined: the only process is the first and fails by itself."""
    join_processes(None, None, None)
    assert is_first() and exchanged(2.0).tolist() == [[2.0]]
    with pytest.raises(InputError, match="mine"), together():
        raise InputError("mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("host:1", None, None), "go together"),
        ((None, 2, 0), "go together"),
        (("host:1", 2, None), "go together"),
        (("host", 2, 0), "--coordinator is 'host'; it must be HOST:PORT"),
        ((":80", 2, 0), "must be HOST:PORT"),
        (("host:http", 2, 0), "must be HOST:PORT"),
        (("host:70000", 2, 0), "must be HOST:PORT"),
        (("host:1", 0, 0), "--processes is 0; it must be a whole number from 1"),
        (("host:1", 2, 2), "--process is 2; it must be a whole number from 0 to 1"),
        (("host:1", 2, -1), "--process is -1; it must be a whole number from 0 to 1"),
    ],
)
def test_combinations_that_make_no_sense(arguments: tuple[Any, Any, Any], message: str) -> None:
    """Each gets a sentence before anything is tried."""
    with pytest.raises(InputError, match=message):
        join_processes(*arguments)
