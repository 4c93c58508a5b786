"""The client's side of a request: an answer, whole or in events, or one clear error."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.types import Message, Scope, Send

from jaxserve.gateway.dialects.dialect import Dialect
from jaxserve.gateway.http.errors import Problem, client_left
from jaxserve.gateway.http.headers import REQUEST_ID
from jaxserve.gateway.measure.records import RequestRecord

CONNECTION = "jaxserve.connection"
"""Extension of the ASGI scope: the transport, to end a connection that cannot be written to."""

_LAST_WORDS_S = 5.0
_PIECE_BYTES = 65_536


class Answer:
    """What a client gets."""

    def __init__(self, scope: Scope, send: Send, dialect: Dialect, record: RequestRecord) -> None:
        """Args: whose answer it is, and in which form errors are."""
        self._asgi_send = send
        self._connection: asyncio.Transport = scope["extensions"][CONNECTION]
        self._dialect = dialect
        self._record = record
        self._is_whole = False
        self.started = False
        """whether status and headers are sent."""
        self.events = 0
        """sent so far, for the number of an error among them."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends status and headers."""
        self.started = True
        self._record.status = status
        headers = [*headers, (REQUEST_ID, self._record.id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Sends everything."""
        self._is_whole = True
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Sends a part of the body, in pieces: only between two of them a client that does not read
        is noticed."""
        for start in range(0, max(len(data), 1), _PIECE_BYTES):
            stop = start + _PIECE_BYTES
            piece = data[start:stop]
            unfinished = more or stop < len(data)
            await self._send({"type": "http.response.body", "body": piece, "more_body": unfinished})
            self._record.bytes_out += len(piece)

    async def fail(self, problem: Problem) -> None:
        """Ends the answer with an error, wherever it is; never raises for a client that is gone."""
        self._record.status = self._record.status or problem.status
        if problem.reason == "client_left":
            return
        if problem.reason == "client_stalled" or (self.started and self._is_whole):
            await self._break_off()
            return
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                if self.started:
                    await self.write(self._dialect.error_event(problem, self.events), more=False)
                else:
                    await send_problem(self._send, self._dialect, problem, self._record.id)
        except TimeoutError:
            await self._break_off()
        except Problem:
            pass  # the client has left meanwhile

    async def _send(self, message: Message) -> None:
        try:
            await self._asgi_send(message)
        except RuntimeError:
            # The server hears of a lost connection a moment after it is lost.
            if self._connection.is_closing():
                raise client_left() from None
            raise

    async def _break_off(self) -> None:
        """For what can neither go on nor end: a client that does not read, half a body."""
        self._connection.abort()
        await asyncio.sleep(0)  # until the server has heard of it


async def send_problem(
    send: Send, dialect: Dialect, problem: Problem, request_id: str | None = None
) -> None:
    """An error as the whole answer."""
    body = orjson.dumps(dialect.error(problem))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", str(problem.retry_after_s).encode()))
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if request_id is not None:
        headers.append((REQUEST_ID, request_id.encode()))
    start: dict[str, Any] = {"type": "http.response.start", "status": problem.status}
    await send({**start, "headers": headers})
    await send({"type": "http.response.body", "body": body})
