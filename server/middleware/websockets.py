"""How many WebSockets one client may hold, and how long it may say nothing on them."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.json_responses import problem
from server.middleware.limits import client_address

_FIRST_S = 30.0
"""How long a WebSocket may be silent before it has asked for anything."""
_GOING_AWAY = 1001


class LimitSockets:
    """ASGI middleware: WebSockets per client address, and those that say nothing.

    A place that is held by nobody who plays would keep out somebody who would.
    """

    def __init__(
        self, app: ASGIApp, per_address: int, idle_s: float, first_s: float = _FIRST_S
    ) -> None:
        """Args: what is protected, WebSockets of one address at the same time, how long one may be
        silent, and how long before its first message."""
        self._app = app
        self._per_address, self._idle_s, self._first_s = per_address, idle_s, first_s
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 429 to one WebSocket too many, and closes silent ones with a reason."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        client = client_address(scope)
        if self._open[client] >= self._per_address:
            text = f"{client} has {self._per_address} WebSockets open, which is all it may have"
            answer = problem(429, f"{text}; close one, or play several sessions over HTTP")
            answer.headers["Retry-After"] = "1"
            await answer(scope, receive, send)
            return
        self._open[client] += 1
        try:
            await self._app(scope, self._listening(receive, send), send)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _listening(self, receive: Receive, send: Send) -> Receive:
        """``receive``, until nothing has come for too long."""
        patience_s = min(self._first_s, self._idle_s)

        async def listen() -> Message:
            nonlocal patience_s
            try:
                async with asyncio.timeout(patience_s):
                    message = await receive()
            except TimeoutError:
                reason = f"nothing was asked for {patience_s:g} s; the session stays, resume it"
                await send({"type": "websocket.close", "code": _GOING_AWAY, "reason": reason})
                return {"type": "websocket.disconnect", "code": _GOING_AWAY, "reason": reason}
            if message["type"] == "websocket.receive":
                patience_s = self._idle_s
            return message

        return listen
