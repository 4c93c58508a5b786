"""Replicas as processes: started once, stopped from the top, found again by another controller."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError
from jaxserve.live.replicas import local_processes
from jaxserve.live.replicas.local_processes import LocalProcesses
from tests.patience import wait_until

FIRST = 4000
"""``sleep {port}`` sleeps for an hour and more."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes end with the test."""
    yield tmp_path / "replicas"
    for pid in pids(tmp_path / "replicas").values():
        os.killpg(pid, signal.SIGKILL)


def controller(folder: Path, command: str = "sleep {port}") -> LocalProcesses:
    """A controller that knows nothing but the folder."""
    return LocalProcesses(command, FIRST, folder)


def pids(folder: Path) -> dict[int, int]:
    """Process ids of the places whose process runs."""
    found = {}
    for file in folder.glob("place-*.pid"):
        pid = int(file.read_text())
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            found[int(file.stem.removeprefix("place-"))] = pid
    return found


def resize(actuator: LocalProcesses, count: int) -> int:
    """The size after a resize."""
    asyncio.run(actuator.resize(count))
    return asyncio.run(actuator.size())


def test_places_get_their_ports(folder: Path) -> None:
    """Each once, however often it is asked for."""
    actuator = controller(folder)
    assert asyncio.run(actuator.size()) == 0
    assert resize(actuator, 3) == 3
    first = pids(folder)
    for place in range(3):
        process, words = psutil.Process(first[place]), ["sleep", str(FIRST + place)]
        wait_until(lambda process=process, words=words: process.cmdline() == words)
    assert resize(actuator, 3) == 3 and pids(folder) == first


def test_the_highest_places_stop(folder: Path) -> None:
    """The others stay what they are."""
    actuator = controller(folder)
    resize(actuator, 3)
    first = pids(folder)
    asyncio.run(actuator.resize(1))
    wait_until(lambda: asyncio.run(actuator.size()) == 1)
    assert pids(folder) == {0: first[0]}


def test_another_controller_goes_on(folder: Path) -> None:
    """A controller that is killed leaves its replicas, and the next one finds them."""
    resize(controller(folder), 2)
    first = pids(folder)
    second = controller(folder)
    assert asyncio.run(second.size()) == 2
    assert resize(second, 2) == 2 and pids(folder) == first


def test_a_killed_replica_is_started_anew(folder: Path) -> None:
    """In its own place, with the reason."""
    actuator = controller(folder)
    resize(actuator, 2)
    first = pids(folder)
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: 0 not in pids(folder))
    with pytest.raises(ActuatorError, match="place 0 ended with signal 9 and is started anew; its"):
        asyncio.run(actuator.resize(2))
    assert resize(actuator, 2) == 2
    after = pids(folder)
    assert after[0] != first[0] and after[1] == first[1]


def test_a_command_that_ends_at_once_is_told(folder: Path) -> None:
    """Its code and the file of its output, each time; a place that was told to end is no error."""
    actuator = controller(folder, "sh -c 'echo no such model; exit 3' {port}")
    asyncio.run(actuator.resize(1))
    for _ in range(2):
        wait_until(lambda: asyncio.run(actuator.size()) == 0)
        with pytest.raises(ActuatorError, match="ended with exit code 3"):
            asyncio.run(actuator.resize(1))
    assert "no such model" in (folder / "place-0.log").read_text()
    sleeping = controller(folder)
    assert resize(sleeping, 2) == 2
    asyncio.run(sleeping.resize(1))
    wait_until(lambda: asyncio.run(sleeping.size()) == 1)
    assert resize(sleeping, 2) == 2


@pytest.mark.slow
def test_a_replica_that_ends_when_it_is_wanted_again(folder: Path) -> None:
    """A replica that was told to end is replaced by a new one, and that is no error."""
    slow = controller(
        folder, "sh -c 'trap \"sleep 0.3; exit 0\" TERM; while true; do sleep 0.05; done' {port}"
    )
    resize(slow, 1)
    first = pids(folder)
    time.sleep(0.2)  # the shell sets its trap
    asyncio.run(slow.resize(0))

    def anew() -> bool:
        return resize(slow, 1) == 1 and pids(folder) != first

    wait_until(anew)


def test_a_number_that_another_process_has_now(folder: Path) -> None:
    """A file that is older than the process of its number belongs to one that is gone."""
    actuator = controller(folder)
    (folder / "place-0.pid").write_text(str(os.getpid()))
    os.utime(folder / "place-0.pid", (0.0, 0.0))
    assert asyncio.run(actuator.size()) == 0
    (folder / "place-0.pid").unlink()


def test_a_replica_that_does_not_stop_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time; until then it counts."""
    monkeypatch.setattr(local_processes, "STOP_S", 0.2)
    stubborn = controller(folder, "sh -c 'trap \"\" TERM; while true; do sleep 0.1; done' {port}")
    resize(stubborn, 1)

    def gone() -> bool:
        asyncio.run(stubborn.resize(0))
        return asyncio.run(stubborn.size()) == 0

    wait_until(gone)
    assert not pids(folder)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("vllm serve MODEL", "it must name its port as {port}"),
        ("vllm 'serve {port}", "--start cannot be split into words: No closing quotation"),
    ],
)
def test_commands_that_cannot_be(command: str, error: str, tmp_path: Path) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=error):
        controller(tmp_path, command)
