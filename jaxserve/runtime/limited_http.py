"""uvicorn's HTTP protocol with further limits: size and time of heads, connections, dead clients.

A response to HTTP/1.0 has no chunks.

The protocol overrides callbacks of httptools and asyncio, and uses public names of uvicorn's
classes that are alike from uvicorn 0.30 to 0.54: ``timeout_keep_alive``, its task and its handler,
and of a response ``send``, ``chunked_encoding`` and ``expected_content_length``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from jaxserve.runtime.hosts import client_network

_REFUSAL = (
    b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
)


@dataclass(frozen=True)
class HttpLimits:
    """Limits of connections and heads, before an application sees a request."""

    max_connections: int
    """open connections per port, so that clients of one port do not block another."""
    max_head_bytes: int
    """bytes of the request line and the headers."""
    head_s: float
    """seconds until a head is complete, silence before it included."""
    max_per_address: int | None = None
    """open connections per port of one client, see ``client_network``; None: as many as the port
    has."""


def limited_protocol(limits: HttpLimits) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn with these limits."""
    return type(
        "LimitedProtocol",
        (_LimitedProtocol,),
        {"limits": limits, "open_at": Counter(), "open_of": Counter()},
    )


class _LimitedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    limits: HttpLimits
    open_at: Counter[int | None]
    """open connections by port."""
    open_of: Counter[tuple[int | None, str | None]]
    """open connections by port and client, of clients that have any."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._unread_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._port = self.server[1] if self.server else None
        self._peer = self._port, client_network(self.client[0]) if self.client else None
        self.open_at[self._port] += 1
        self.open_of[self._peer] += 1
        most_of_one = self.limits.max_per_address or self.limits.max_connections
        if (
            self.open_at[self._port] > self.limits.max_connections
            or self.open_of[self._peer] > most_of_one
        ):
            self._refuse(b"503 Service Unavailable", b"too many connections")
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        self._stop_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to a WebSocket protocol, which hears of its end instead."""
        self._uncount()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            self._start_timer()
        super().data_received(data)
        # The application measures a head that ended in this piece.
        if self._in_head and self._head_bytes > self.limits.max_head_bytes:
            self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # httptools also reports the trailers of a chunked body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle and self.cycle.scope is self.scope:
            _end_by_closing(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # uvicorn sets a timer for open connections only
            self._restart_keep_alive()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a silent connection; aborts it if the client does not read the last response."""
        left = 0 if self.parser is None else self.transport.get_write_buffer_size()
        if left and left == self._unread_bytes:
            self.transport.abort()
        elif left:
            self._unread_bytes = left
            self._restart_keep_alive()
        else:
            super().timeout_keep_alive_handler()

    def _uncount(self) -> None:
        self.open_at[self._port] -= 1
        self.open_of[self._peer] -= 1
        if not self.open_of[self._peer]:
            del self.open_of[self._peer]

    def _restart_keep_alive(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: bytes, text: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL % (status, len(text), text))
            self.transport.close()


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """Sends the body of a response to HTTP/1.0 without chunks: it ends with the connection."""
    send, cycle.chunked_encoding = cycle.send, False

    async def send_plain(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]
