"""Pausing all inference, for the time in which engines get other weights.

A request is inside from before it queues for an engine until it has let go of it. Whoever pauses
waits until nobody is inside: then no engine works on a request of this gateway, and none will.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Gate:
    """Open unless somebody has closed it."""

    def __init__(self) -> None:
        """It is open."""
        self._open = asyncio.Event()
        self._open.set()
        self._inside = self._waiting = 0
        self.weight_version: str | None = None
        """of the engines' weights, as the control door was told last."""

    @property
    def is_open(self) -> bool:
        """Whether a request goes through without waiting."""
        return self._open.is_set()

    def pause(self) -> None:
        """Who comes from now on waits."""
        self._open.clear()

    def resume(self) -> None:
        """Who waits goes on."""
        self._open.set()

    @asynccontextmanager
    async def passage(self) -> AsyncIterator[None]:
        """``async with gate.passage():`` waits while paused; whatever ends the block, its place is
        given back."""
        self._waiting += 1
        try:
            while not self._open.is_set():
                await self._open.wait()
        finally:
            self._waiting -= 1
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def status(self) -> dict[str, Any]:
        """For the control door."""
        return {
            "paused": not self._open.is_set(),
            "inside": self._inside,
            "waiting": self._waiting,
            "weight_version": self.weight_version,
        }
