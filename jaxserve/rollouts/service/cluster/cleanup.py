"""Cleans up after killed nodes: containers on this machine, and keys at their gateways."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import time
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.bounded_process import ProcessLimits, run_process
from jaxserve.rollouts.sandboxes.containers import containers_removal, list_containers
from jaxserve.rollouts.sandboxes.processes import client_variables
from jaxserve.rollouts.service.control_client import ControlClient
from jaxserve.rollouts.service.state.database import OpenKey, StateDatabase

_LOG = logging.getLogger("jaxserve.rollouts")
_INTERVAL_S = 2.0
_LONGEST_WAIT_S = 300.0
_LONGEST_SILENCE_S = 86_400.0
"""Age of a key after which a gateway that does not answer is given up."""
_DOCKER_S = 60.0
_AT_ONCE = (0.0, _INTERVAL_S)


async def remove_containers(save_dir: Path) -> None:
    """Removes containers of earlier processes of the node that uses a folder.

    Must end before the node starts containers. Without docker, or while docker does not answer, the
    containers stay.
    """
    tasks = save_dir.absolute() / "tasks"
    if not tasks.is_dir() or shutil.which("docker") is None:
        return
    containers = await _words(list_containers(tasks))
    if containers:
        await _words(containers_removal(containers))


async def _words(command: tuple[str, ...]) -> list[str]:
    """Words of a command's output; none where the command fails."""
    pieces: list[bytes] = []
    try:
        ended = await run_process(
            command, Path("/"), client_variables(), pieces.append, ProcessLimits(_DOCKER_S)
        )
    except OSError:  # the disk is full
        return []
    return [] if ended.code else b"".join(pieces).decode(errors="replace").split()


class KeyCleanup:
    """Closes the keys of sessions that left a lost node, at the gateway that the node used.

    Records stay at the gateway. A gateway that does not know a session may be another one at the
    same address: it is asked again for some minutes. A gateway that does not answer is asked until
    a key is a day old, and for some minutes after each start of the service. Then the key is given
    up.
    """

    def __init__(self, state: StateDatabase, token: str | None) -> None:
        """Args: the database; the token of control ports, None reads each one's own file."""
        self._state, self._token = state, token
        self._later: dict[tuple[str, ...], tuple[float, float]] = {}
        """Gateways that did not answer, and sessions unknown to a gateway: time of the next
        request, and the wait before it, s."""

    async def run(self) -> None:
        """Closes keys forever, every two seconds."""
        while True:
            try:
                gateways: dict[str, list[OpenKey]] = {}
                for key in self._state.open_keys():
                    if self._is_due(key.control) and self._is_due(key.control, key.recorded):
                        gateways.setdefault(key.control, []).append(key)
                await asyncio.gather(*(self._close(*one) for one in gateways.items()))
            except sqlite3.Error:
                pass  # logged by the service's scheduling loop
            await asyncio.sleep(_INTERVAL_S)

    async def _close(self, url: str, keys: list[OpenKey]) -> None:
        try:
            async with ControlClient(url, self._token) as gateway:
                for key in keys:
                    if await gateway.shut(key.recorded, 0.0) or self._is_nowhere(key):
                        self._state.forget_key(key)
                        self._later.pop((url, key.recorded), None)
            self._later.pop((url,), None)
        except InputError as error:  # the gateway may be back later
            if self._put_off(url) >= _LONGEST_WAIT_S:
                self._give_up(url, error)

    def _is_nowhere(self, key: OpenKey) -> bool:
        """Whether a gateway has denied a session often enough to give up its key.

        Logged as a warning only where the session certainly had a key: a session that was cancelled
        early may have had none.
        """
        if self._put_off(key.control, key.recorded) < _LONGEST_WAIT_S:
            return False
        level = logging.WARNING if key.made else logging.INFO
        message = "the gateway at %s has no session %s; its key is given up"
        _LOG.log(level, message, key.control, key.recorded)
        return True

    def _give_up(self, url: str, error: InputError) -> None:
        """Forgets old keys of a gateway that does not answer."""
        for key in self._state.open_keys():
            if key.control == url and time.time() - key.since >= _LONGEST_SILENCE_S:
                hours = _LONGEST_SILENCE_S / 3600.0
                message = "the key of session %s is given up after %g h and may be open: %s"
                _LOG.warning(message, key.recorded, hours, error)
                self._state.forget_key(key)

    def _is_due(self, *subject: str) -> bool:
        return self._later.get(subject, _AT_ONCE)[0] <= time.monotonic()

    def _put_off(self, *subject: str) -> float:
        """Doubles the wait before the next request; returns the wait, s."""
        wait_s = min(2.0 * self._later.get(subject, _AT_ONCE)[1], _LONGEST_WAIT_S)
        self._later[subject] = (time.monotonic() + wait_s, wait_s)
        return wait_s
