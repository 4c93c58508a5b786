"""The GPU's time, which may pass faster or slower than the host's."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import Protocol

_TIMER_S = 1e-3
"""of the host, by which a timer of an event loop may be late."""


class Clock(Protocol):
    """Time that can be waited for, s."""

    def now(self) -> float:
        """Seconds since the start."""
        ...

    async def reach(self, time_s: float) -> None:
        """Returns when it is ``time_s``, having let others run."""
        ...

    async def reach_or(self, time_s: float, wake: asyncio.Event) -> None:
        """Returns when it is ``time_s``, which may be infinite, or when ``wake`` is set."""
        ...


class ScaledClock:
    """``speed`` seconds pass in one of the host's.

    Times are absolute: whoever wakes late loses nothing of the next wait.
    """

    def __init__(self, speed: float) -> None:
        """Args: seconds of this clock in one of the host's."""
        self._speed = speed
        self._start = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return (time.monotonic() - self._start) * self._speed

    async def reach(self, time_s: float) -> None:
        """Returns when it is ``time_s``, having let others run."""
        # Event loops count in milliseconds; the rest is spent looking for requests.
        await asyncio.sleep((time_s - self.now()) / self._speed - _TIMER_S)
        while self.now() < time_s:
            await asyncio.sleep(0)

    async def reach_or(self, time_s: float, wake: asyncio.Event) -> None:
        """Returns when it is ``time_s``, which may be infinite, or when ``wake`` is set."""
        left_s = (time_s - self.now()) / self._speed
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                await wake.wait()
