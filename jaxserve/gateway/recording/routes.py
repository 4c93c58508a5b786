"""Routes of the control door for sessions and for pausing inference."""

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
from jaxserve.gateway.exchange.pause import Gate
from jaxserve.gateway.http.json_http import command_of, number_in, plain_json
from jaxserve.gateway.recording.records import decode, lines
from jaxserve.gateway.recording.session import NotRecorded, Session, event_of
from jaxserve.gateway.recording.store import Sessions

_MOST_LINES = 1_000_000_000
_ALIVE_S = 15.0
"""Between two signs of life of a stream in which nothing happens."""


def gate_routes(gate: Gate) -> list[Route]:
    """Status, pause, resume, and the version of the weights."""

    async def status(request: Request) -> Response:
        return plain_json(gate.status())

    async def pause(request: Request) -> Response:
        gate.pause()
        return plain_json(gate.status())

    async def resume(request: Request) -> Response:
        gate.resume()
        return plain_json(gate.status())

    async def weights(request: Request) -> Response:
        """``{"version": "step-20"}`` stands in every record from now on."""
        asked = JsonObject(await command_of(request), "the command", ("version",))
        gate.weight_version = asked.text("version")
        return plain_json(gate.status())

    return [
        Route("/control/inference/status", status),
        Route("/control/inference/pause", pause, methods=["PUT", "POST"]),
        Route("/control/inference/resume", resume, methods=["PUT", "POST"]),
        Route("/control/weights", weights, methods=["PUT"]),
    ]


class SessionRoutes:
    """What a controller may do with sessions."""

    def __init__(self, sessions: Sessions) -> None:
        """Args: all of them."""
        self._sessions = sessions

    def routes(self) -> list[Route]:
        """For the control door."""
        one = "/sessions/{id}"
        return [
            Route("/sessions", self._all, methods=["GET", "POST"]),
            Route(one, self._one, methods=["GET", "DELETE"]),
            Route(f"{one}/close", self._close, methods=["POST"]),
            Route(f"{one}/completions", self._completions),
            Route(f"{one}/events", self._events),
        ]

    async def _all(self, request: Request) -> Response:
        """GET lists them; POST ``{"id", "durable", "metadata"}``, each of which may be left out,
        makes one, and is the only answer that has its key."""
        if request.method == "GET":
            found = [await self._described(one) for one in self._sessions]
            return plain_json({"sessions": found})
        known = ("id", "durable", "metadata")
        asked = JsonObject(await command_of(request), "the session", known)
        session, key = await self._sessions.create(
            asked.text("id") if "id" in asked else None,
            durable=asked.flag("durable") if "durable" in asked else False,
            metadata=asked.inside("metadata") if "metadata" in asked else {},
        )
        return plain_json({**await self._described(session), "key": key}, 201)

    async def _one(self, request: Request) -> Response:
        session = self._session(request)
        if request.method == "DELETE":
            await self._sessions.delete(session)
            return Response(status_code=204)
        return plain_json(await self._described(session))

    async def _close(self, request: Request) -> Response:
        """Refuses its key; what was said stays."""
        session = self._session(request)
        try:
            await self._sessions.close(session)
        except NotRecorded:
            raise _unreadable(session) from None
        return plain_json(session.describe())

    async def _completions(self, request: Request) -> Response:
        """``?after=0&limit=100``: records as they stand in the file, a line each."""
        session = self._session(request)
        after = int(number_in(request, "after", 0, _MOST_LINES, 0))
        limit = int(number_in(request, "limit", 1, _MOST_LINES, _MOST_LINES))
        return StreamingResponse(
            _slice(session.path, after, limit), media_type="application/x-ndjson"
        )

    async def _events(self, request: Request) -> Response:
        """Every completion in a few words, those so far first; after the one that ``Last-Event-ID``
        or ``?after=`` names."""
        session = self._session(request)
        last = request.headers.get("last-event-id", "")
        after = int(
            number_in(request, "after", 0, _MOST_LINES, int(last) if last.isdecimal() else 0)
        )
        return StreamingResponse(_follow(session, after), media_type="text/event-stream")

    async def _described(self, session: Session) -> dict[str, Any]:
        try:
            return await self._sessions.described(session)
        except NotRecorded:
            raise _unreadable(session) from None

    def _session(self, request: Request) -> Session:
        session = self._sessions.get(request.path_params["id"])
        if session is None:
            raise HTTPException(404, "there is no such session")
        return session


def _unreadable(session: Session) -> HTTPException:
    return HTTPException(500, f"the records of session {session.info.id} cannot be read")


def _slice(path: Path, after: int, limit: int) -> Iterator[bytes]:
    """Lines of a file; starlette reads them in a thread."""
    for number, line in enumerate(lines(path), 1):
        if number > after + limit:
            return
        if number > after:
            yield line


async def _follow(session: Session, after: int) -> AsyncIterator[bytes]:
    queue = session.listen()
    try:
        said = after
        yield b": connected\n\n"
        for event, seq in await asyncio.to_thread(_so_far, session.path, after):
            said = seq
            yield event
        while True:
            try:
                told = await asyncio.wait_for(queue.get(), _ALIVE_S)
            except TimeoutError:
                yield b": alive\n\n"
                continue
            if told is None:
                yield b"event: end\ndata: {}\n\n"
                return
            seq, event = told
            if seq > said:
                said = seq
                yield event
    finally:
        session.leave(queue)


def _so_far(path: Path, after: int) -> list[tuple[bytes, int]]:
    records = (decode(line) for line in _slice(path, after, _MOST_LINES))
    return [(event_of(record), record.seq) for record in records]
