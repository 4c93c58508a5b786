"""A client that closes its connection ends the work that only it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request

from server.doors.leaving import while_connected
from server.problems import ClientLeft, UnknownSession


def request(messages: asyncio.Queue[Any]) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, messages.get)


def test_work_ends_with_its_client() -> None:
    """Cancelled where it waits."""

    async def play() -> None:
        messages: asyncio.Queue[Any] = asyncio.Queue()
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60.0)
            finally:
                ended.set()

        answer = asyncio.ensure_future(while_connected(request(messages), work()))
        await asyncio.sleep(0.01)
        assert not ended.is_set()
        messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientLeft):
            await answer
        await asyncio.wait_for(ended.wait(), 10.0)

    asyncio.run(play())


def test_a_client_that_stays_gets_the_answer() -> None:
    """Or the reason why there is none."""

    async def one() -> int:
        return 1

    async def none() -> int:
        raise UnknownSession("no such session")

    async def play() -> None:
        assert await while_connected(request(asyncio.Queue()), one()) == 1
        with pytest.raises(UnknownSession):
            await while_connected(request(asyncio.Queue()), none())

    asyncio.run(play())
