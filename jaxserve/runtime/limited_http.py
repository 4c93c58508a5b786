"""uvicorn's HTTP protocol with limits that it does not have: heads, connections, dead clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_REFUSAL = (
    b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
)


@dataclass(frozen=True)
class HttpLimits:
    """Of what comes before an application sees a request."""

    max_connections: int
    """at a port: clients of one do not shut those of another out."""
    max_head_bytes: int
    """of a request's line and headers."""
    head_s: float
    """how long a head may take, and a connection may be silent before one."""


def limited_protocol(limits: HttpLimits) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn with these limits."""
    open_at: Counter[int | None] = Counter()

    class LimitedProtocol(HttpToolsProtocol):
        """One connection of a client."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._head_bytes = 0
            self._in_head = True
            self._unread_bytes = 0
            self._head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._port = self.server[1] if self.server else None
            open_at[self._port] += 1
            if open_at[self._port] > limits.max_connections:
                self._refuse(b"503 Service Unavailable", b"too many connections")
            else:
                self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            open_at[self._port] -= 1
            self._stop_timer()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self) -> None:
            """From now on another protocol has the connection, and hears of its end."""
            open_at[self._port] -= 1
            super().handle_websocket_upgrade()

        def data_received(self, data: bytes) -> None:
            if self._in_head:
                self._head_bytes += len(data)
                self._start_timer()
            super().data_received(data)
            # A head that ended in this piece is measured by the application.
            if self._in_head and self._head_bytes > limits.max_head_bytes:
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large")

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:  # trailers of a chunked body come here as well
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head, self._head_bytes = True, 0

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():  # uvicorn looks after open ones only
                self._look_again()

        def timeout_keep_alive_handler(self) -> None:
            """Nothing has come for a while: ends the connection, at once if what is left of the
            last answer is not being read either."""
            left = 0 if self.parser is None else self.transport.get_write_buffer_size()
            if left and left == self._unread_bytes:
                self.transport.abort()
            elif left:
                self._unread_bytes = left
                self._look_again()
            else:
                super().timeout_keep_alive_handler()

        def _look_again(self) -> None:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

        def _start_timer(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.head_s, self._too_slow)

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

    return LimitedProtocol
