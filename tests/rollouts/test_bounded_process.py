"""Processes end in time, with their group, and what they print is bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts.bounded_process import (
    CommandOutput,
    ProcessExit,
    ProcessLimits,
    run_process,
)
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]


def run(
    folder: Path, code: str, redaction: Redaction | None = None, **limits: float
) -> ProcessExit:
    """Runs a few lines of Python; the output is in ``log``."""
    command = (sys.executable, "-c", code)
    chosen = ProcessLimits(**{"budget_s": 60.0, **limits})  # type: ignore[arg-type]
    with CommandOutput(folder / "log", chosen.output_bytes, redaction) as output:
        return asyncio.run(run_process(command, folder, {"A": "b"}, output.write, chosen))


def test_it_gets_its_variables_and_no_others(tmp_path: Path) -> None:
    """And its exit code comes back."""
    code = "import os; print(dict(os.environ)); raise SystemExit(7)"
    ended = run(tmp_path, code)
    assert (ended.code, ended.timed_out) == (7, False)
    said = (tmp_path / "log").read_text()
    assert "'A': 'b'" in said and "PATH" not in said


def test_output_is_bounded(tmp_path: Path) -> None:
    """Output beyond the bound is read, so that the process is not blocked, and dropped."""
    ended = run(tmp_path, "print('x' * 5_000_000)", output_bytes=1000)
    assert ended.code == 0
    assert len((tmp_path / "log").read_bytes()) < 1100


def test_no_secret_is_in_the_output(tmp_path: Path) -> None:
    """A secret in pieces is removed too; the first half of one alone is kept, also at the end."""
    code = """
import sys, time
for piece in ("key sk-1", "2345", "6, sk-123", "4!", " sk-123456 sk-12"):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.05)
"""
    assert run(tmp_path, code, Redaction(("sk-123456",))).code == 0
    assert (tmp_path / "log").read_text() == "key [secret], sk-1234! [secret] sk-12"


@pytest.mark.parametrize("deaf", [False, True])
def test_time_is_bounded(deaf: bool, tmp_path: Path) -> None:
    """TERM lets it say goodbye; KILL ends who does not hear it, and its children."""
    code = f"""
import os, signal, subprocess, sys, time
def leave(*_):
    print("bye", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if {deaf} else leave)
child = subprocess.Popen([sys.executable, "-c", "import signal, time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"])
open("child", "w").write(str(child.pid))
time.sleep(1000)
"""
    ended = run(tmp_path, code, budget_s=3.0, grace_s=0.5)
    assert ended.timed_out and ended.code == (-9 if deaf else 0)
    assert (tmp_path / "log").read_text() == ("" if deaf else "bye\n")
    child = (tmp_path / "child").read_text()
    wait_until(lambda: _gone(child), "the child's end")


DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={env},
    start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with open("part", "w") as file:
    file.write(str(child.pid))
os.rename("part", "child")
time.sleep({sleeps})
"""
"""Begins a process that leaves the group."""


@pytest.mark.skipif(sys.platform != "linux", reason="is found by /proc")
@pytest.mark.parametrize("sleeps", [0, 1000], ids=["ended", "late"])
def test_what_has_left_the_group_ends(sleeps: int, tmp_path: Path) -> None:
    """Processes outside of the group end with the command, and at the time limit."""
    code = DAEMON.format(env="None", sleeps=sleeps)
    assert run(tmp_path, code, budget_s=20.0 if sleeps else 60.0).timed_out == bool(sleeps)
    child = (tmp_path / "child").read_text()
    wait_until(lambda: _gone(child), "its end")


def runner_of_a_daemon(folder: Path) -> str:
    """Lines of Python that run ``DAEMON`` as a command of their own."""
    return f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from jaxserve.rollouts.bounded_process import ProcessLimits, run_process
folder, code = Path({str(folder)!r}), {DAEMON.format(env="None", sleeps=1000)!r}
command = (sys.executable, "-c", code)
asyncio.run(run_process(command, folder, {{}}, print, ProcessLimits(1000.0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="is found by /proc")
def test_what_has_left_the_group_of_a_runner_that_is_killed(tmp_path: Path) -> None:
    """Ends, too."""
    with subprocess.Popen([sys.executable, "-c", runner_of_a_daemon(tmp_path)]) as runner:
        try:
            wait_until((tmp_path / "child").exists, "the daemon")
            child = (tmp_path / "child").read_text()
            assert not _gone(child)
        finally:
            runner.kill()
    wait_until(lambda: _gone(child), "its end")


@pytest.mark.skipif(sys.platform != "linux", reason="is found by /proc")
def test_a_runner_that_is_a_command_itself(tmp_path: Path) -> None:
    """Takes with it what its commands have started, under a mark of their own."""

    async def ended() -> None:
        command = (sys.executable, "-c", runner_of_a_daemon(tmp_path))
        limits = ProcessLimits(1000.0)
        running = asyncio.create_task(run_process(command, tmp_path, {}, print, limits))
        async with asyncio.timeout(PATIENCE_S):
            while not (tmp_path / "child").exists():
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while not _gone((tmp_path / "child").read_text()):
                await asyncio.sleep(0.01)

    asyncio.run(ended())


def test_what_has_not_the_mark_lives_on(tmp_path: Path) -> None:
    """Nobody could tell whose it is, and what is another command's is left alone."""
    run(tmp_path, DAEMON.format(env={"JAXSERVE_RUN": "another"}, sleeps=0))
    child = (tmp_path / "child").read_text()
    try:
        assert not _gone(child)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_caller_that_is_cancelled(tmp_path: Path) -> None:
    """Leaves no process behind."""

    async def cancel() -> None:
        code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(1000)"
        command = (sys.executable, "-c", code)
        running = asyncio.create_task(
            run_process(command, tmp_path, {}, print, ProcessLimits(60.0))
        )
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    wait_until(lambda: _gone((tmp_path / "pid").read_text()), "its end")


def _gone(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
