"""Read-only routes: tasks, sessions, records, trajectories and changes of state."""

from __future__ import annotations

import asyncio
import time
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
from jaxserve.rollouts.service.api.history import history
from jaxserve.rollouts.service.api.results import session_result, task_result
from jaxserve.rollouts.service.client import TokenAuth
from jaxserve.rollouts.service.cluster.registry import NodeRegistry
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import SessionRow
from jaxserve.rollouts.service.state.session_writer import DatabaseWriter

_MOST_EVENTS = 10_000
_MOST = 1_000_000_000_000
_ALIVE_S = 15.0
"""Interval between comments in an event stream without events."""
_GATEWAY_S = 30.0
_MOST_POINTS = 1000
_MOST_SPANS = 5000
"""Sessions in a history: those that changed last."""


class ChangeNotifier:
    """Wakes everyone waiting for a change."""

    def __init__(self) -> None:
        """Starts open, without a change."""
        self._next = asyncio.Event()
        self.closed = False
        """whether no change can follow."""

    def notify(self) -> None:
        """Wakes everyone who waits for the next change."""
        self._next.set()
        self._next = asyncio.Event()

    def close(self) -> None:
        """Wakes everyone for the last time."""
        self.closed = True
        self.notify()

    def next_change(self) -> asyncio.Event:
        """The event that the next change sets."""
        return self._next


class ReadRoutes:
    """Routes that change nothing."""

    def __init__(
        self,
        state: StateDatabase,
        nodes: NodeRegistry,
        writer: DatabaseWriter,
        changes: ChangeNotifier,
        control_token: str | None,
    ) -> None:
        """Args: the service's parts, and the token of gateways' control ports; None reads each
        gateway's own file."""
        self._state, self._nodes, self._writer, self._changes = state, nodes, writer, changes
        self._control_token = control_token

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route("/tasks", self._tasks),
            Route("/tasks/{id}/sessions", self._sessions),
            Route("/history", self._history),
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
        self._check_task(task)
        return plain_json(task_result(self._state, task))

    async def _history(self, request: Request) -> Response:
        """``?task=ID&points=60``: figures over time, of one task or of all."""
        task = request.query_params.get("task")
        if task is not None:
            self._check_task(task)
        points = int(number_in(request, "points", 1, _MOST_POINTS, 60))
        return plain_json(history(self._state.spans(task, _MOST_SPANS), points, time.time()))

    async def _session(self, request: Request) -> Response:
        """One session: its task as submitted, its state, and its changes of state."""
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
        """``?after=0&limit=100``: records of the last attempt, from its gateway."""
        row = self._row(request)
        control = None if row.node is None else self._nodes.control_of(row.node)
        if control is None or not row.attempt:
            raise HTTPException(404, "no gateway has records of this session yet")
        recorded = quote(row.recorded, safe="")
        params = {
            "after": str(int(number_in(request, "after", 0, _MOST, 0))),
            "limit": str(int(number_in(request, "limit", 1, 10_000, 100))),
        }
        url = f"{control.rstrip('/')}/sessions/{recorded}/completions"
        try:
            auth = TokenAuth(CONTROL, control, self._control_token)
            async with httpx.AsyncClient(timeout=_GATEWAY_S, auth=auth, trust_env=False) as http:
                answer = await http.get(url, params=params)
        except httpx.HTTPError as error:
            raise HTTPException(502, f"the gateway at {control} does not answer: {error}") from None
        if answer.is_error:
            raise HTTPException(404, f"the gateway at {control} has no records of this session")
        return Response(answer.content, media_type="application/x-ndjson")

    async def _trajectory(self, request: Request) -> Response:
        """The file of the session's traces with masks, log-probabilities and rewards."""
        row = self._row(request)
        path = self._writer.path(row.task, row.sample)
        if not path.is_file():
            raise HTTPException(404, "the session has no trajectory")
        return FileResponse(path, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        """``?after=0&limit=1000``: changes of state, in order."""
        after = int(number_in(request, "after", 0, _MOST, 0))
        limit = int(number_in(request, "limit", 1, _MOST_EVENTS, 1000))
        return plain_json({"events": self._state.events(after, limit)})

    async def _stream(self, request: Request) -> Response:
        """Changes of state as server-sent events, after ``Last-Event-ID`` or ``?after=``."""
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
            changed = self._changes.next_change()
            while events := self._state.events(after, 1000):
                after = events[-1]["seq"]
                yield b"".join(map(_event, events))
            try:
                await asyncio.wait_for(changed.wait(), _ALIVE_S)
            except TimeoutError:
                yield b": alive\n\n"

    def _row(self, request: Request) -> SessionRow:
        with suppress(IndexError):
            return self._state.session(request.path_params["id"])
        raise HTTPException(404, f"there is no session {request.path_params['id']!r:.100}")

    def _check_task(self, task: str) -> None:
        if self._state.spec(task) is None:
            raise HTTPException(404, f"there is no task {task!r:.100}")


def _event(event: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: state\ndata: %b\n\n" % (event["seq"], orjson.dumps(event))
