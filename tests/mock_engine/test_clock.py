"""The GPU's time."""

from __future__ import annotations

import asyncio
import math

import pytest

from jaxserve.mock_engine.clock import ScaledClock

pytestmark = pytest.mark.anyio


async def test_nobody_wakes_early() -> None:
    """Waits add up to no less than was asked for, whatever the event loop rounds to."""
    clock = ScaledClock(50.0)
    for step in range(100):
        await clock.reach(0.01 * step)
        assert clock.now() >= 0.01 * step


async def test_a_wake_up_ends_the_wait() -> None:
    """Also one for ever; and a time that has passed is no wait."""
    clock, wake = ScaledClock(1.0), asyncio.Event()
    waits = [asyncio.create_task(clock.reach_or(t, wake)) for t in (math.inf, 1e6)]
    await asyncio.sleep(0)
    wake.set()
    await asyncio.gather(*waits)
    await clock.reach_or(-1.0, asyncio.Event())
