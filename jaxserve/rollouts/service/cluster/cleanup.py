"""What outlives a killed node: containers on its machine, and keys at its gateway."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.bounded_process import ProcessLimits, run_process
from jaxserve.rollouts.runtimes import CommandLine, containers_removal, list_containers
from jaxserve.rollouts.service.gateway_client import GatewayClient
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.open_keys import OpenKey

_LOG = logging.getLogger("jaxserve.rollouts")
_LOOK_S = 2.0
_LONGEST_WAIT_S = 300.0
_LONGEST_SILENCE_S = 86_400.0
"""For a door to answer, since a key was noted."""
_DOCKER_S = 60.0
_MOST_PRINTED = 2**20
_AT_ONCE = (0.0, _LOOK_S)


async def remove_containers(save_dir: Path) -> None:
    """Removes the containers of an earlier life of the node that works in a folder; must end before
    the node begins any. Where there is no docker, or it does not answer, they stay."""
    tasks = save_dir.absolute() / "tasks"
    if not tasks.is_dir() or shutil.which("docker") is None:
        return
    found = await _printed(list_containers(tasks))
    if found:
        await _printed(containers_removal(found))


async def _printed(process: CommandLine) -> list[str]:
    """The words that a command prints; none where it fails, or the disk is full."""
    limits = ProcessLimits(_DOCKER_S, output_bytes=_MOST_PRINTED)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder, printed = Path(name), Path(name, "printed")
            ended = await run_process(process.argv, folder, process.environment, printed, limits)
            return [] if ended.code else printed.read_text().split()
    except OSError:
        return []


class KeyCleanup:
    """Closes keys of sessions that ended elsewhere than on their node, at the gateway that the node
    used, as soon as that answers; what was said stays there.

    A gateway that does not know a session may be another one at the same address: it is asked again
    for some minutes. A door that does not answer is asked until a key has been noted for a day, and
    for some minutes by every life of the service. Then a key is given up.
    """

    def __init__(self, state: StateDatabase, token: str | None) -> None:
        """Args: where they stand, and the token of control doors; None shows what each made."""
        self._keys, self._token = state.keys, token
        self._later: dict[tuple[str, ...], tuple[float, float]] = {}
        """Doors that did not answer, and sessions that one does not know: when they are asked
        again, and the wait before it, s."""

    async def look(self) -> None:
        """Again and again, for ever."""
        while True:
            try:
                doors: dict[str, list[OpenKey]] = {}
                for key in self._keys.all():
                    if self._is_due(key.control) and self._is_due(key.control, key.recorded):
                        doors.setdefault(key.control, []).append(key)
                await asyncio.gather(*(self._close(*one) for one in doors.items()))
            except sqlite3.Error:
                pass  # the service says so elsewhere
            await asyncio.sleep(_LOOK_S)

    async def _close(self, url: str, keys: list[OpenKey]) -> None:
        try:
            async with GatewayClient(url, self._token) as control:
                for key in keys:
                    if await control.shut(key.recorded, 0.0) or self._is_nowhere(key):
                        self._keys.forget(key)
                        self._later.pop((url, key.recorded), None)
            self._later.pop((url,), None)
        except InputError as error:  # it may be there again later
            if self._put_off(url) >= _LONGEST_WAIT_S:
                self._give_up(url, error)

    def _is_nowhere(self, key: OpenKey) -> bool:
        """Whether a session was asked for often enough at a door that does not know it. That is a
        warning only where it was there once: one that was cancelled early may never have been."""
        if self._put_off(key.control, key.recorded) < _LONGEST_WAIT_S:
            return False
        level = logging.WARNING if key.made else logging.INFO
        said = "the gateway at %s has no session %s; its key is given up"
        _LOG.log(level, said, key.control, key.recorded)
        return True

    def _give_up(self, url: str, error: InputError) -> None:
        """Forgets the keys that a door which does not answer has had for too long."""
        for key in self._keys.all():
            if key.control == url and time.time() - key.since >= _LONGEST_SILENCE_S:
                hours = _LONGEST_SILENCE_S / 3600.0
                said = "the key of session %s is given up after %g h and may be open: %s"
                _LOG.warning(said, key.recorded, hours, error)
                self._keys.forget(key)

    def _is_due(self, *who: str) -> bool:
        return self._later.get(who, _AT_ONCE)[0] <= time.monotonic()

    def _put_off(self, *who: str) -> float:
        """Asks again after twice the wait, which it gives, s."""
        wait_s = min(2.0 * self._later.get(who, _AT_ONCE)[1], _LONGEST_WAIT_S)
        self._later[who] = (time.monotonic() + wait_s, wait_s)
        return wait_s
