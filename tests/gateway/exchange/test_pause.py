"""Inference is paused and goes on, and no place is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.exchange.pause import InferencePause

pytestmark = pytest.mark.anyio


class Oops(Exception):
    """Something goes wrong inside."""


async def test_whatever_ends_a_passage_gives_its_place_back() -> None:
    """An exception or a cancellation inside leaks no place, so that a pause does not hang."""
    pause = InferencePause()
    with pytest.raises(Oops):
        async with pause.entered():
            assert pause.status()["inside"] == 1
            raise Oops
    held = asyncio.create_task(_hold(pause))
    await asyncio.sleep(0)
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    pause.pause()
    waiting = asyncio.create_task(_hold(pause))
    await asyncio.sleep(0)
    assert pause.status() == {
        "paused": True,
        "inside": 0,
        "waiting": 1,
        "weight_version": None,
    }
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert pause.status()["waiting"] == pause.status()["inside"] == 0


async def _hold(pause: InferencePause) -> None:
    async with pause.entered():
        await asyncio.Event().wait()


@given(
    st.lists(st.sampled_from(["enter", "leave", "fail", "cancel", "pause", "resume"]), max_size=30)
)
async def test_counts_are_true(moves: list[str]) -> None:
    """Inside are those that passed and have not ended; nobody passes a closed pause."""
    pause, inside = InferencePause(), 0
    tasks: list[asyncio.Task[None]] = []
    ends: list[asyncio.Future[None]] = []

    async def visit(end: asyncio.Future[None]) -> None:
        nonlocal inside
        with suppress(Oops):
            async with pause.entered():
                assert pause.is_open
                inside += 1
                try:
                    await end
                finally:
                    inside -= 1

    for move in moves:
        if move == "enter":
            ends.append(asyncio.get_running_loop().create_future())
            tasks.append(asyncio.create_task(visit(ends[-1])))
        elif move in ("pause", "resume"):
            getattr(pause, move)()
        elif tasks and move == "cancel":
            tasks[len(moves) % len(tasks)].cancel()
        elif ends and not ends[0].done():
            if move == "leave":
                ends[0].set_result(None)
            else:
                ends[0].set_exception(Oops())
                ends[0].exception()  # a visit that is cancelled at the pause never looks at it
        for _ in range(4):
            await asyncio.sleep(0)
        ends = [end for end in ends if not end.done()]
        tasks = [task for task in tasks if not task.done()]
        status = pause.status()
        assert status["inside"] == inside
        assert status["waiting"] == len(tasks) - inside
        assert status["waiting"] == 0 or status["paused"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert pause.status()["inside"] == pause.status()["waiting"] == 0
