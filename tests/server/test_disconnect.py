"""A client that closes its connection ends the work that only it waits for."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request

from server.background import while_connected
from server.json_responses import answer_problems
from server.request_errors import ClientLeft, UnknownSession
from server.routes.episode_routes import episode_routes
from server.routes.grading_routes import grading_routes
from server.server_settings import IN_MEMORY, Settings
from tests.patience import PATIENCE_S
from tests.server.middleware.asgi import scope


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


GRADED: dict[str, dict[str, Any]] = {
    "session": {},
    "actions": {"task_id": 1, "seed": 1, "actions": [{}]},
    "log": {"task_id": 1, "seed": 1, "episode_log": [{"action": {}, "reward": 0.0}]},
}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/episode_log", {})] + [("POST", "/grader", body) for body in GRADED.values()],
    ids=["episode_log", *GRADED],
)
def test_what_is_computed_again_ends_with_its_client(
    method: str, path: str, body: dict[str, Any]
) -> None:
    """Grades and logs, over HTTP."""

    async def play() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def compute(*arguments: Any) -> None:
            del arguments
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def history(session: Any, *, watching: bool) -> None:
            del session, watching

        service: Any = SimpleNamespace(
            settings=Settings(IN_MEMORY),
            agents=None,
            background=None,
            model_budget=None,
            history=history,
            windows=compute,
            grade_session=compute,
            grade_actions=compute,
            grade_log=compute,
        )
        app = FastAPI()
        app.include_router(episode_routes(service))
        app.include_router(grading_routes(service))
        answer_problems(app)
        asked = scope(method=method, path=path, headers={"content-type": "application/json"})
        content = {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        left: asyncio.Queue[Any] = asyncio.Queue()
        left.put_nowait(content)
        answering = asyncio.ensure_future(app(asked, left.get, _nowhere))
        computing = asyncio.ensure_future(begun.wait())
        await asyncio.wait((answering, computing), return_when=asyncio.FIRST_COMPLETED)
        assert computing.done() and not answering.done()
        assert not ended.is_set()
        left.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        await answering

    asyncio.run(play())


async def _nowhere(message: Any) -> None:
    """Nobody is there to be answered."""
    del message
