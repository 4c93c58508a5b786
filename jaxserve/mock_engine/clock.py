"""Time of the simulated GPU, which may pass faster or slower than the host's."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import Protocol

_TIMER_S = 1e-3
"""Lateness of an event loop's timer, in seconds of the host."""


class Clock(Protocol):
    """A clock that coroutines can wait for, s."""

    def now(self) -> float:
        """Seconds since the start."""
        ...

    async def reach(self, time_s: float) -> None:
        """Waits until ``time_s``; other tasks run at least once."""
        ...

    async def reach_or(self, time_s: float, wake: asyncio.Event) -> None:
        """Waits until ``time_s``, which may be infinite, or until ``wake`` is set."""
        ...


class ScaledClock:
    """A clock on which ``speed`` seconds pass per second of the host.

    Times are absolute: a late wake-up does not shift the next one.
    """

    def __init__(self, speed: float) -> None:
        """Args: seconds of this clock per second of the host."""
        self._speed = speed
        self._start = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return (time.monotonic() - self._start) * self._speed

    async def reach(self, time_s: float) -> None:
        """Waits until ``time_s``; other tasks run at least once."""
        # Event loops count in milliseconds; the last one is spent polling, so that requests enter.
        await asyncio.sleep((time_s - self.now()) / self._speed - _TIMER_S)
        while self.now() < time_s:
            await asyncio.sleep(0)

    async def reach_or(self, time_s: float, wake: asyncio.Event) -> None:
        """Waits until ``time_s``, which may be infinite, or until ``wake`` is set."""
        left_s = (time_s - self.now()) / self._speed
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                await wake.wait()
