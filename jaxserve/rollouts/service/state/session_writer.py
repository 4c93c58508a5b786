"""Writes a session's progress: its state to the database, its trajectory to a file."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from jaxserve.gateway.recording.records import sync
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import Lease

_LOG = logging.getLogger("jaxserve.rollouts")
_RETRY_S = 1.0


class SessionWriter(Protocol):
    """Writes the progress of sessions: into the database, or to the service over HTTP."""

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """Moves a session to a state, and retries until that is written.

        Args:
          values: columns of the session to set.
          line: the trajectory, for a session that ends; empty where there is none.

        Returns:
          False where the lease is void; nothing is changed then.
        """
        ...


class DatabaseWriter:
    """The ``SessionWriter`` of the service itself."""

    def __init__(self, state: StateDatabase, traces: Path, moved: Callable[[], None]) -> None:
        """Args: the database, the folder of trajectories, and a callback for every change."""
        self._state, self._traces, self._moved = state, traces, moved

    def path(self, task: str, sample: int) -> Path:
        """The file of a session's trajectory."""
        return self._traces / task / f"{sample}.jsonl"

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """See ``SessionWriter``. Retries while the disk is full."""
        while True:
            try:
                return await self.try_move(lease, state, reason, values, line)
            except (OSError, sqlite3.Error) as error:
                _LOG.error("session %s cannot be kept: %s", lease.session.id, error)
                await asyncio.sleep(_RETRY_S)

    async def try_move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """``move`` without retries.

        Raises:
          OSError: the trajectory cannot be written.
          sqlite3.Error: the state cannot be written.
        """
        session, path = lease.session, self.path(lease.session.task, lease.session.sample)
        part = path.with_name(f".{session.sample}.{session.lease}")
        if line:
            await asyncio.to_thread(_write, part, line)
        # No await from here on: no other task can change the lease in between.
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
