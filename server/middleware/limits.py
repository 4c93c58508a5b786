"""How much and how often one client may send."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta

from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from throttled import RateLimiterType, Throttled, rate_limiter, store

from server.json_responses import problem
from server.server_settings import Rate

OPEN = frozenset({"/health"})
"""Paths that anybody may ask for, at any rate."""
_CLIENTS = 100_000
"""Addresses that are remembered."""
_BODY_S = 60.0
"""How long a request's body may take."""


def client_address(scope: Scope) -> str:
    """Where a request or a WebSocket comes from, without the port."""
    return (scope.get("client") or ("unknown", 0))[0]


class LimitRate:
    """ASGI middleware: a number of requests and messages per client address and time.

    Requests beyond it are refused, and so are WebSockets; messages of an open one wait.
    """

    def __init__(self, app: ASGIApp, rate: Rate) -> None:
        """Args: what is protected, and how."""
        self._app = app
        self._rate = rate
        # The algorithm that reads the monotonic clock: a changed wall clock locks nobody out.
        self._limiter = Throttled(
            using=RateLimiterType.GCRA.value,
            quota=rate_limiter.per_duration(
                timedelta(seconds=rate.period_s), rate.count, rate.count
            ),
            store=store.MemoryStore(options={"MAX_SIZE": _CLIENTS}),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 429 beyond the rate; messages of an open WebSocket are read later instead."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        client = client_address(scope)
        if wait_s := self._wait_s(client):
            per = f"{self._rate.count} per {self._rate.period_s:g} s"
            answer = problem(429, f"too many requests from {client}; allowed are {per}")
            answer.headers["Retry-After"] = str(math.ceil(wait_s))
            await answer(scope, receive, send)
            return

        async def paced() -> Message:
            message = await receive()
            while message["type"] == "websocket.receive" and (wait_s := self._wait_s(client)):
                await asyncio.sleep(wait_s)
            return message

        await self._app(scope, paced if scope["type"] == "websocket" else receive, send)

    def _wait_s(self, client: str) -> float:
        """0 if the client may call now, and that is counted; else seconds until it may."""
        found = self._limiter.limit(client)
        return max(found.state.retry_after, 1e-3) if found.limited else 0.0


class LimitBody:
    """ASGI middleware: the library's limit of request bodies, with an answer like all others, and a
    time in which a body must be there."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_s: float = _BODY_S) -> None:
        """Args: what is protected, the largest body, and the time."""
        self._app = RequestBodyLimitMiddleware(app, max_body_size=max_bytes)
        self._max_bytes, self._max_s = max_bytes, max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 413 to a larger body, whether or not its length was announced, and 408 to a slow
        one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._max_s
        whole = late = False

        async def in_time() -> Message:
            nonlocal whole, late
            # After the body an application listens for the end of the connection, without limit.
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                late = True
                return {"type": "http.disconnect"}
            whole = not message.get("more_body", False)
            return message

        refused = False

        async def answer(message: Message) -> None:
            nonlocal refused
            if refused:
                return
            refused = message["type"] == "http.response.start" and (
                late or message["status"] == 413
            )
            if not refused:
                await send(message)
            elif late:
                text = f"the request body has not come within {self._max_s:g} s"
                refusal = problem(408, text)
                refusal.headers["Connection"] = "close"
                await refusal(scope, receive, send)
            else:
                text = f"the request body is too large; at most {self._max_bytes} bytes are read"
                await problem(413, text)(scope, receive, send)

        await self._app(scope, in_time, answer)
