"""Long computations: few at a time, stopped when nobody waits, computed once for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from server.background import Abandoned, BackgroundExecutor, SharedResults, StopSignal
from server.request_errors import OutOfTime, Overloaded
from server.turns import CLIENT


def test_more_than_may_wait_are_told_to_come_back() -> None:
    """And those that were there before get their answers."""

    async def play() -> None:
        executor = BackgroundExecutor(threads=1, queued=2)
        gate, running = threading.Event(), []
        for client in ("one", "one", "other"):
            CLIENT.set(client)
            running.append(asyncio.create_task(executor.run(gate.wait, 60.0)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 long computations are under way"):
            await executor.run(gate.wait)
        gate.set()
        assert await asyncio.gather(*running) == [True] * 3
        assert await executor.run(gate.wait) is True

    asyncio.run(play())


def test_clients_take_turns() -> None:
    """Many computations of one do not delay those of others, and one has half of the places."""

    async def play() -> None:
        executor, gate, order = BackgroundExecutor(threads=1, queued=8), threading.Event(), []

        async def ask(client: str, count: int) -> list[asyncio.Task[None]]:
            CLIENT.set(client)
            tasks = [asyncio.create_task(executor.run(order.append, client)) for _ in range(count)]
            await asyncio.sleep(0)
            return tasks

        first = asyncio.create_task(executor.run(gate.wait, 60.0))
        await asyncio.sleep(0)
        waiting = [*await ask("many", 5), *await ask("few", 2)]
        CLIENT.set("many")
        with pytest.raises(Overloaded, match="5 long computations are under way"):
            await executor.run(gate.wait)
        gate.set()
        await asyncio.gather(first, *waiting)
        assert order == ["many", "few", "many", "few", "many", "many", "many"]

    asyncio.run(play())


def test_what_has_not_begun_never_does_once_its_client_has_left() -> None:
    """Its place is free for others at once."""

    async def play() -> None:
        executor = BackgroundExecutor(threads=1, queued=1)
        gate, begun = threading.Event(), threading.Event()
        first = asyncio.ensure_future(executor.run(gate.wait, 60.0))
        second = asyncio.ensure_future(executor.run(begun.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        third = asyncio.ensure_future(executor.run(gate.is_set))
        await asyncio.sleep(0)
        gate.set()
        assert await first is True
        assert await third is True
        assert not begun.is_set()

    asyncio.run(play())


def counted(calls: list[StopSignal]) -> Callable[[StopSignal], Awaitable[int]]:
    """A computation that goes on until its watch stops it, or until a second one is begun."""

    async def compute(watch: StopSignal) -> int:
        calls.append(watch)
        while len(calls) < 2:
            watch.check()
            await asyncio.sleep(0.001)
        return len(calls)

    return compute


def test_one_computation_answers_all_who_ask_and_ends_with_the_last_of_them() -> None:
    """A client that leaves takes nothing from another, and nobody inherits an abandoned one."""

    async def play() -> None:
        shared: SharedResults[int] = SharedResults(keep=1)
        calls: list[StopSignal] = []
        waiting = [asyncio.ensure_future(shared.get("key", counted(calls), 60.0)) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert len(calls) == 1
        waiting[0].cancel()
        await asyncio.sleep(0.01)
        calls[0].check()
        waiting[1].cancel()
        await asyncio.sleep(0.01)
        with pytest.raises(Abandoned):
            calls[0].check()
        assert await shared.get("key", counted(calls), 60.0) == 2
        assert await shared.get("key", counted(calls), 60.0) == 2
        assert len(calls) == 2
        await shared.get("other", counted(calls), 60.0)
        await shared.get("key", counted(calls), 60.0)
        assert len(calls) == 4

    asyncio.run(play())


def test_time_is_limited() -> None:
    """With a sentence; and nothing is remembered of what failed."""

    async def play() -> None:
        shared: SharedResults[int] = SharedResults(keep=9)
        calls: list[StopSignal] = []
        with pytest.raises(OutOfTime, match=r"stopped after 0\.01 s"):
            await shared.get("key", counted(calls), 0.01)
        assert await shared.get("key", counted(calls), 60.0) == 2

    asyncio.run(play())
