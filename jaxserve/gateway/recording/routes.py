"""Routes of the control port for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jaxserve.checks import JsonObject
from jaxserve.gateway.http.json_http import command_of, number_in, plain_json
from jaxserve.gateway.recording.records import decode, lines
from jaxserve.gateway.recording.session import NotRecorded, RecordedSession, completion_event
from jaxserve.gateway.recording.store import SessionStore

_MAX_LINES = 1_000_000_000
_KEEP_ALIVE_S = 15.0
"""Time between two keep-alive comments of an idle stream, s."""


class SessionRoutes:
    """Handlers of all routes for sessions."""

    def __init__(self, sessions: SessionStore) -> None:
        """Args: the store of all sessions."""
        self._sessions = sessions

    def routes(self) -> list[Route]:
        """The routes."""
        one = "/sessions/{id}"
        return [
            Route("/sessions", self._all, methods=["GET", "POST"]),
            Route(one, self._one, methods=["GET", "DELETE"]),
            Route(f"{one}/close", self._close, methods=["POST"]),
            Route(f"{one}/completions", self._completions),
            Route(f"{one}/events", self._events),
        ]

    async def _all(self, request: Request) -> Response:
        """GET lists all sessions. POST ``{"id", "durable", "metadata"}``, all optional, creates a
        session; only this response has its key."""
        if request.method == "GET":
            found = [await self._described(one) for one in self._sessions]
            return plain_json({"sessions": found})
        known = ("id", "durable", "metadata")
        fields = JsonObject(await command_of(request), "the session", known)
        session, key = await self._sessions.create(
            fields.text("id") if "id" in fields else None,
            durable=fields.flag("durable") if "durable" in fields else False,
            metadata=fields.inside("metadata") if "metadata" in fields else {},
        )
        return plain_json({**await self._described(session), "key": key}, 201)

    async def _one(self, request: Request) -> Response:
        session = self._session(request)
        if request.method == "DELETE":
            await self._sessions.delete(session)
            return Response(status_code=204)
        return plain_json(await self._described(session))

    async def _close(self, request: Request) -> Response:
        """Closes a session: its key is refused, its records stay."""
        session = self._session(request)
        try:
            await self._sessions.close(session)
        except NotRecorded:
            raise _unreadable(session) from None
        return plain_json(session.describe())

    async def _completions(self, request: Request) -> Response:
        """``?after=0&limit=100``: lines of the file of records."""
        session = self._session(request)
        after = int(number_in(request, "after", 0, _MAX_LINES, 0))
        limit = int(number_in(request, "limit", 1, _MAX_LINES, _MAX_LINES))
        return StreamingResponse(
            _slice(session.path, after, limit), media_type="application/x-ndjson"
        )

    async def _events(self, request: Request) -> Response:
        """Server-sent events of all completions, past ones first, after the number in
        ``Last-Event-ID`` or ``?after=``."""
        session = self._session(request)
        last = request.headers.get("last-event-id", "")
        after = int(
            number_in(request, "after", 0, _MAX_LINES, int(last) if last.isdecimal() else 0)
        )
        return StreamingResponse(_follow(session, after), media_type="text/event-stream")

    async def _described(self, session: RecordedSession) -> dict[str, Any]:
        try:
            return await self._sessions.described(session)
        except NotRecorded:
            raise _unreadable(session) from None

    def _session(self, request: Request) -> RecordedSession:
        session = self._sessions.get(request.path_params["id"])
        if session is None:
            raise HTTPException(404, "there is no such session")
        return session


def _unreadable(session: RecordedSession) -> HTTPException:
    return HTTPException(500, f"the records of session {session.info.id} cannot be read")


def _slice(path: Path, after: int, limit: int) -> Iterator[bytes]:
    """Lines of a file; Starlette reads them in a thread."""
    for number, line in enumerate(lines(path), 1):
        if number > after + limit:
            return
        if number > after:
            yield line


async def _follow(session: RecordedSession, after: int) -> AsyncIterator[bytes]:
    queue = session.listen()
    try:
        last = after
        yield b": connected\n\n"
        for event, seq in await asyncio.to_thread(_past_events, session.path, after):
            last = seq
            yield event
        while True:
            try:
                item = await asyncio.wait_for(queue.get(), _KEEP_ALIVE_S)
            except TimeoutError:
                yield b": alive\n\n"
                continue
            if item is None:
                yield b"event: end\ndata: {}\n\n"
                return
            seq, event = item
            if seq > last:
                last = seq
                yield event
    finally:
        session.leave(queue)


def _past_events(path: Path, after: int) -> list[tuple[bytes, int]]:
    records = (decode(line) for line in _slice(path, after, _MAX_LINES))
    return [(completion_event(record), record.seq) for record in records]
