"""The service's own book: states in the database, trajectories in files, and who hears of it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxserve.gateway.recording.records import sync
from jaxserve.rollouts.service.leases import Lease
from jaxserve.rollouts.service.state import State

_LOG = logging.getLogger("jaxserve.rollouts")
_AGAIN_S = 1.0


class ServiceBook:
    """Where sessions stand, as the service has it."""

    def __init__(self, state: State, traces: Path, moved: Callable[[], None]) -> None:
        """Args: the database, the folder of trajectories, and who hears of every change."""
        self._state, self._traces, self._moved = state, traces, moved

    def path(self, task: str, sample: int) -> Path:
        """The file of a session's trajectory."""
        return self._traces / task / f"{sample}.jsonl"

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """See ``Book``. A full disk is waited for."""
        while True:
            try:
                return await self.try_move(lease, state, reason, values, line)
            except (OSError, sqlite3.Error) as error:
                _LOG.error("session %s cannot be kept: %s", lease.session.id, error)
                await asyncio.sleep(_AGAIN_S)

    async def try_move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """The same once.

        Raises:
          OSError: the trajectory cannot be written.
          sqlite3.Error: the state cannot.
        """
        session, path = lease.session, self.path(lease.session.task, lease.session.sample)
        part = path.with_name(f".{session.sample}.{session.lease}")
        if line:
            await asyncio.to_thread(_write, part, line)
        # From here on nobody else comes in between.
        if line and self._state.holds(*lease.key):
            os.replace(part, path)
            sync(path.parent)
        elif line:
            part.unlink(missing_ok=True)
        moved = self._state.move(session.id, state, reason, session.lease, **values)
        if moved:
            self._moved()
        return moved


def _write(path: Path, line: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
