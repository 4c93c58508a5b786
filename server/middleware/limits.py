"""Limits of one client: request rate, body size and time, open WebSockets, silence on them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from datetime import timedelta

from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from throttled import RateLimiterType, Throttled, rate_limiter, store

from jaxserve.runtime.hosts import client_network
from server.json_responses import problem
from server.middleware.proxies import route_path
from server.server_settings import Rate
from server.turns import CLIENT

OPEN = frozenset({"/health"})
"""Paths without token, with a rate of their own."""
_OPEN_RATE = Rate(50, 1.0)
"""Rate of open paths per client: probes ask once a second or less."""
_CLIENTS = 100_000
"""Client addresses whose rate is remembered."""
_BODY_S = 60.0
"""Time in which a request's body must arrive."""
_FIRST_S = 30.0
"""Silence of a WebSocket before its first message at most."""
_GOING_AWAY = 1001


def client_address(scope: Scope) -> str:
    """Client address of a request or a WebSocket, without the port."""
    return (scope.get("client") or ("unknown", 0))[0]


def client_of(scope: Scope) -> str:
    """The client of a request or a WebSocket, see ``client_network``."""
    return client_network(client_address(scope))


def is_open(scope: Scope) -> bool:
    """Whether a request needs no token and has a rate of its own."""
    return route_path(scope) in OPEN


class LimitRate:
    """ASGI middleware: limits the rate of requests and WebSocket messages per client.

    Requests and new WebSockets beyond the rate are refused; messages of an open one wait. Open
    paths have a rate of their own, so that a client that plays too fast can still be probed.
    """

    def __init__(self, app: ASGIApp, rate: Rate) -> None:
        """Args: the application, and the rate of all paths that are not open."""
        self._app = app
        self._rates = {False: (rate, _limiter(rate)), True: (_OPEN_RATE, _limiter(_OPEN_RATE))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 429 beyond the rate; delays messages of an open WebSocket instead."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
        CLIENT.set(client)
        rate, limiter = self._rates[is_open(scope)]
        if wait_s := _wait_s(limiter, client):
            per = f"{rate.count} per {rate.period_s:g} s"
            answer = problem(429, f"too many requests from {client}; allowed are {per}")
            answer.headers["Retry-After"] = str(math.ceil(wait_s))
            await answer(scope, receive, send)
            return

        async def paced() -> Message:
            message = await receive()
            while message["type"] == "websocket.receive" and (wait_s := _wait_s(limiter, client)):
                await asyncio.sleep(wait_s)
            return message

        await self._app(scope, paced if scope["type"] == "websocket" else receive, send)


def _limiter(rate: Rate) -> Throttled:
    # GCRA reads the monotonic clock: a change of the wall clock locks nobody out.
    return Throttled(
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_duration(timedelta(seconds=rate.period_s), rate.count, rate.count),
        store=store.MemoryStore(options={"MAX_SIZE": _CLIENTS}),
    )


def _wait_s(limiter: Throttled, client: str) -> float:
    """0 if the client may call now, which is counted; else seconds until it may."""
    found = limiter.limit(client)
    return max(found.state.retry_after, 1e-3) if found.limited else 0.0


class LimitBody:
    """ASGI middleware: limits a request body's size, by Starlette's middleware, and its time."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_s: float = _BODY_S) -> None:
        """Args: the application, bytes of a body at most, and seconds until it is complete."""
        self._app = RequestBodyLimitMiddleware(app, max_body_size=max_bytes)
        self._max_bytes, self._max_s = max_bytes, max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 413 to a larger body, with or without Content-Length, and 408 to a slower one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._max_s
        whole = late = False

        async def in_time() -> Message:
            nonlocal whole, late
            # After the body an application waits for the disconnect, without limit.
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


class LimitSockets:
    """ASGI middleware: limits WebSockets per client address, and closes silent ones.

    An idle WebSocket holds a place that another client could play on.
    """

    def __init__(
        self, app: ASGIApp, per_address: int, idle_s: float, first_s: float = _FIRST_S
    ) -> None:
        """Args: the application, open WebSockets per address, and seconds of silence at most: after
        a message, and before the first one."""
        self._app = app
        self._per_address, self._idle_s, self._first_s = per_address, idle_s, first_s
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 429 beyond the number of WebSockets; closes silent ones with a reason."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
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
        """``receive`` with a time limit."""
        limit_s = min(self._first_s, self._idle_s)

        async def listen() -> Message:
            nonlocal limit_s
            try:
                async with asyncio.timeout(limit_s):
                    message = await receive()
            except TimeoutError:
                reason = f"nothing was asked for {limit_s:g} s; the session stays, resume it"
                await send({"type": "websocket.close", "code": _GOING_AWAY, "reason": reason})
                return {"type": "websocket.disconnect", "code": _GOING_AWAY, "reason": reason}
            if message["type"] == "websocket.receive":
                limit_s = self._idle_s
            return message

        return listen
