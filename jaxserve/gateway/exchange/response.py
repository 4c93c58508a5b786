"""The response to a client: whole, in events, or one clear error."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.types import Message, Scope, Send

from jaxserve.gateway.dialects.dialect import Dialect
from jaxserve.gateway.http.errors import RequestError, client_left
from jaxserve.gateway.http.headers import REQUEST_ID
from jaxserve.gateway.measure.records import RequestRecord

CONNECTION = "jaxserve.connection"
"""ASGI extension with the transport, for aborting a connection that cannot be written to."""

_ERROR_WRITE_S = 5.0
_PIECE_BYTES = 65_536


class ResponseWriter:
    """Writes the response to one request, and counts its bytes."""

    def __init__(self, scope: Scope, send: Send, dialect: Dialect, record: RequestRecord) -> None:
        """Args: ASGI scope and channel, the dialect of errors, and the record of the request."""
        self._asgi_send = send
        self._connection: asyncio.Transport = scope["extensions"][CONNECTION]
        self._dialect = dialect
        self._record = record
        self._is_whole = False
        self.started = False
        """whether status and headers have been sent."""
        self.events = 0
        """events sent so far, for the number of an error event."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends status and headers."""
        self.started = True
        self._record.status = status
        headers = [*headers, (REQUEST_ID, self._record.id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Sends a whole response."""
        self._is_whole = True
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Sends a part of the body, in pieces, so that a client that does not read is noticed."""
        for start in range(0, max(len(data), 1), _PIECE_BYTES):
            stop = start + _PIECE_BYTES
            piece = data[start:stop]
            unfinished = more or stop < len(data)
            await self._send({"type": "http.response.body", "body": piece, "more_body": unfinished})
            self._record.bytes_out += len(piece)

    async def fail(self, error: RequestError) -> None:
        """Ends the response with an error, in any state; never raises if the client left."""
        self._record.status = self._record.status or error.status
        if error.reason == "client_left":
            return
        if error.reason == "client_stalled" or (self.started and self._is_whole):
            await self._abort()
            return
        try:
            async with asyncio.timeout(_ERROR_WRITE_S):
                if self.started:
                    await self.write(self._dialect.error_event(error, self.events), more=False)
                else:
                    await send_error(self._send, self._dialect, error, self._record.id)
        except TimeoutError:
            await self._abort()
        except RequestError:
            pass  # the client left meanwhile

    async def _send(self, message: Message) -> None:
        try:
            await self._asgi_send(message)
        except RuntimeError:
            # The ASGI server notices a lost connection a moment after the transport.
            if self._connection.is_closing():
                raise client_left() from None
            raise

    async def _abort(self) -> None:
        """Aborts the connection: the client does not read, or half a whole body has been sent."""
        self._connection.abort()
        await asyncio.sleep(0)  # lets the ASGI server notice


async def send_error(
    send: Send, dialect: Dialect, error: RequestError, request_id: str | None = None
) -> None:
    """Sends an error as the whole response."""
    body = orjson.dumps(dialect.error(error))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if request_id is not None:
        headers.append((REQUEST_ID, request_id.encode()))
    start: dict[str, Any] = {"type": "http.response.start", "status": error.status}
    await send({**start, "headers": headers})
    await send({"type": "http.response.body", "body": body})
