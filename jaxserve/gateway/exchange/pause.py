"""Pausing all inference while engines load other weights.

A request is inside from before its queue until it has released its engine. A trainer pauses and
waits until no request is inside: then no engine works on a request of this gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class InferencePause:
    """Holds back new requests between ``pause`` and ``resume``."""

    def __init__(self) -> None:
        """Requests pass at first."""
        self._open = asyncio.Event()
        self._open.set()
        self._inside = self._waiting = 0
        self.weight_version: str | None = None
        """version of the engines' weights, as set on the control port."""

    @property
    def is_open(self) -> bool:
        """Whether requests pass without waiting."""
        return self._open.is_set()

    def pause(self) -> None:
        """New requests wait until ``resume``."""
        self._open.clear()

    def resume(self) -> None:
        """Lets the waiting requests proceed."""
        self._open.set()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Context manager: waits while paused, then counts as inside until the end of its block."""
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
        """State for the control port; JSON-able."""
        return {
            "paused": not self._open.is_set(),
            "inside": self._inside,
            "waiting": self._waiting,
            "weight_version": self.weight_version,
        }
