"""Replicas as processes of this machine, which outlive the controller that started them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError

STOP_S = 30.0
"""Time that a process has to end by itself, s."""
_BEGIN = 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"'
"""Shell that writes its process id and becomes the replica: the file is there even if the
controller is killed in between."""


class LocalProcesses:
    """A process for each place, with a file of its id and a log of its output."""

    def __init__(self, command: str, first_port: int, folder: Path) -> None:
        """Args:
          command: command of a replica, in which ``{port}`` stands for its port.
          first_port: port of place 0; the other places follow.
          folder: folder for process ids and logs; one controller's own.

        Raises:
          InputError: the command is empty or names no port.
        """
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise InputError(f"--start cannot be split into words: {error}") from None
        if not any("{port}" in word for word in words):
            raise InputError(f"--start is {command!r}; it must name its port as {{port}}")
        self._words: Sequence[str] = words
        self._first_port = first_port
        self._folder = folder
        self._own: dict[int, subprocess.Popen[bytes]] = {}
        """children of this controller by place; those of an earlier one are nobody's children."""
        self._told_s: dict[int, float] = {}
        """time at which the process of a place was told to end, monotonic clock, s."""
        folder.mkdir(parents=True, exist_ok=True)

    async def size(self) -> int:
        """See ``Actuator``."""
        return max(self._running(), default=-1) + 1

    async def resize(self, count: int) -> None:
        """See ``Actuator``; a process that ended by itself is started anew, and is an error too."""
        running = self._running()
        ended = []
        for place in range(count):
            if place not in running:
                ended.append(self._end_of(place))
                self._start(place)
        for place, process in running.items():
            # A process that was told to end does so, even if its place is wanted again by then.
            if place >= count or place in self._told_s:
                self._stop(place, process)
        if reasons := list(filter(None, ended)):
            raise ActuatorError("; ".join(reasons))

    def _end_of(self, place: int) -> str | None:
        """How the process of an empty place ended, unless it was told to or is unknown."""
        child, told_s = self._own.pop(place, None), self._told_s.pop(place, None)
        if child is None or told_s is not None:
            return None
        code = child.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return (
            f"the process of place {place} ended with {how} and is started anew; its output is in "
            f"{self._log(place)}"
        )

    def _log(self, place: int) -> Path:
        return self._folder / f"place-{place}.log"

    def _running(self) -> dict[int, psutil.Process]:
        """Processes by place."""
        for child in self._own.values():
            child.poll()  # a child that has ended stays in the table of processes until it is asked
        found = {}
        for file in self._folder.glob("place-*.pid"):
            with contextlib.suppress(psutil.Error, ValueError, OSError):
                process = psutil.Process(int(file.read_text()))
                # A younger process than the file has the number of one that is gone.
                ours = process.create_time() <= file.stat().st_mtime + 1.0
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[int(file.stem.partition("-")[2])] = process
        return found

    def _start(self, place: int) -> None:
        port = self._first_port + place
        argv = [word.replace("{port}", str(port)) for word in self._words]
        file = self._folder / f"place-{place}.pid"
        file.unlink(missing_ok=True)
        try:
            with open(self._log(place), "ab") as log:
                child = subprocess.Popen(
                    ["sh", "-c", _BEGIN, str(file), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ActuatorError(f"place {place} cannot be started: {error}") from None
        self._own[place] = child
        while not file.exists() and child.poll() is None:
            time.sleep(0.002)

    def _stop(self, place: int, process: psutil.Process) -> None:
        told_s = self._told_s.setdefault(place, time.monotonic())
        late = time.monotonic() - told_s > STOP_S
        with contextlib.suppress(ProcessLookupError):
            # The process leads a group of its own, with the workers that it has started.
            os.killpg(process.pid, signal.SIGKILL if late else signal.SIGTERM)
