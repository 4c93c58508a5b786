"""Routes for those who look: tasks, sessions, what was said, and changes as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxserve.gateway.http.json_http import number_in, plain_json
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.rollouts.service.books import ServiceBook
from jaxserve.rollouts.service.doors import Shown
from jaxserve.rollouts.service.lifecycle import SessionRow
from jaxserve.rollouts.service.nodes import Nodes
from jaxserve.rollouts.service.results import session_result, task_result
from jaxserve.rollouts.service.state import State

_MOST_EVENTS = 10_000
_MOST = 1_000_000_000_000
_ALIVE_S = 15.0
"""Between two signs of life of a stream in which nothing happens."""
_GATEWAY_S = 30.0


class Changes:
    """Tells all who wait that something is different."""

    def __init__(self) -> None:
        """Nothing is yet."""
        self._next = asyncio.Event()
        self.closed = False
        """whether nothing will be any more."""

    def tell(self) -> None:
        """Something is."""
        self._next.set()
        self._next = asyncio.Event()

    def close(self) -> None:
        """Lets all go."""
        self.closed = True
        self.tell()

    def following(self) -> asyncio.Event:
        """Is set when something is different from now."""
        return self._next


class Views:
    """What there is to see. Nothing here changes anything."""

    def __init__(
        self,
        state: State,
        nodes: Nodes,
        book: ServiceBook,
        changes: Changes,
        control_token: str | None,
    ) -> None:
        """Args: where everything is, and the token of gateways' control doors; None shows each
        what it made itself."""
        self._state, self._nodes, self._book, self._changes = state, nodes, book, changes
        self._control_token = control_token

    def routes(self) -> list[Route]:
        """For the service."""
        return [
            Route("/tasks", self._tasks),
            Route("/tasks/{id}/sessions", self._sessions),
            Route("/sessions/{id}", self._session),
            Route("/sessions/{id}/completions", self._completions),
            Route("/sessions/{id}/trajectory", self._trajectory),
            Route("/events", self._events),
            Route("/events/stream", self._stream),
        ]

    async def _tasks(self, request: Request) -> Response:
        return plain_json({"tasks": self._state.tasks()})

    async def _sessions(self, request: Request) -> Response:
        task = request.path_params["id"]
        if self._state.spec(task) is None:
            raise HTTPException(404, "there is no such task")
        return plain_json(task_result(self._state, task))

    async def _session(self, request: Request) -> Response:
        """One session: its task as submitted, where it stands, and all that it went through."""
        row = self._row(request)
        return plain_json(
            {
                "task": self._state.spec(row.task),
                "node": row.node,
                "attempt": row.attempt,
                "events": self._state.events(0, _MOST_EVENTS, row.id),
                **session_result(row),
            }
        )

    async def _completions(self, request: Request) -> Response:
        """``?after=0&limit=100``: records of its last attempt, from the gateway that has them."""
        row = self._row(request)
        control = None if row.node is None else self._nodes.control_of(row.node)
        if control is None or not row.attempt:
            raise HTTPException(404, "no gateway has records of this session yet")
        recorded = quote(row.recorded, safe="")
        asked = {
            "after": str(int(number_in(request, "after", 0, _MOST, 0))),
            "limit": str(int(number_in(request, "limit", 1, 10_000, 100))),
        }
        url = f"{control.rstrip('/')}/sessions/{recorded}/completions"
        try:
            shown = Shown(CONTROL, control, self._control_token)
            async with httpx.AsyncClient(timeout=_GATEWAY_S, auth=shown, trust_env=False) as http:
                answer = await http.get(url, params=asked)
        except httpx.HTTPError as error:
            raise HTTPException(502, f"the gateway at {control} does not answer: {error}") from None
        if answer.is_error:
            raise HTTPException(404, f"the gateway at {control} has no records of this session")
        return Response(answer.content, media_type="application/x-ndjson")

    async def _trajectory(self, request: Request) -> Response:
        """Its traces with masks, log-probabilities and rewards, as the file has them."""
        row = self._row(request)
        path = self._book.path(row.task, row.sample)
        if not path.is_file():
            raise HTTPException(404, "the session has no trajectory")
        return FileResponse(path, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        """``?after=0&limit=1000``: changes of state, in order."""
        after = int(number_in(request, "after", 0, _MOST, 0))
        limit = int(number_in(request, "limit", 1, _MOST_EVENTS, 1000))
        return plain_json({"events": self._state.events(after, limit)})

    async def _stream(self, request: Request) -> Response:
        """The same as they happen, after the one that ``Last-Event-ID`` or ``?after=`` names."""
        last = request.headers.get("last-event-id", "")
        default = int(last) if last.isdecimal() and len(last) < 12 else 0
        after = int(number_in(request, "after", 0, _MOST, default))
        return StreamingResponse(
            self._follow(after),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def _follow(self, after: int) -> AsyncIterator[bytes]:
        yield b": connected\n\n"
        while not self._changes.closed:
            following = self._changes.following()
            while events := self._state.events(after, 1000):
                after = events[-1]["seq"]
                yield b"".join(map(_event, events))
            try:
                await asyncio.wait_for(following.wait(), _ALIVE_S)
            except TimeoutError:
                yield b": alive\n\n"

    def _row(self, request: Request) -> SessionRow:
        with suppress(IndexError):
            return self._state.session(request.path_params["id"])
        raise HTTPException(404, "there is no such session")


def _event(event: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: state\ndata: %b\n\n" % (event["seq"], orjson.dumps(event))
