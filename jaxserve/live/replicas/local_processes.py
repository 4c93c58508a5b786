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
from jaxserve.live.replicas.actuator import ActuatorError

STOP_S = 30.0
"""Time that a process has to end by itself, s."""
_BEGIN = 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"'
"""Shell that writes its process id and becomes the replica: the file is there even if the
controller is killed in between."""


class LocalProcesses:
    """One process for each place, with a file of its id and a log of its output."""

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
        self._own: list[subprocess.Popen[bytes]] = []
        self._told_s: dict[int, float] = {}
        """time at which the process of a place was told to end, monotonic clock, s."""
        folder.mkdir(parents=True, exist_ok=True)

    async def size(self) -> int:
        """See ``Actuator``."""
        return max(self._running(), default=-1) + 1

    async def resize(self, count: int) -> None:
        """See ``Actuator``."""
        running = self._running()
        for place in range(count):
            if place not in running:
                self._start(place)
        for place, process in running.items():
            if place >= count:
                self._stop(place, process)
            else:
                self._told_s.pop(place, None)

    def _running(self) -> dict[int, psutil.Process]:
        """Processes by place."""
        # A child that has ended stays in the table of processes until it is asked.
        self._own = [child for child in self._own if child.poll() is None]
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
            with open(self._folder / f"place-{place}.log", "ab") as log:
                child = subprocess.Popen(
                    ["sh", "-c", _BEGIN, str(file), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ActuatorError(f"place {place} cannot be started: {error}") from None
        self._own.append(child)
        while not file.exists() and child.poll() is None:
            time.sleep(0.002)

    def _stop(self, place: int, process: psutil.Process) -> None:
        told_s = self._told_s.setdefault(place, time.monotonic())
        late = time.monotonic() - told_s > STOP_S
        with contextlib.suppress(ProcessLookupError):
            # The process leads a group of its own, with the workers that it has started.
            os.killpg(process.pid, signal.SIGKILL if late else signal.SIGTERM)
