"""The door for clients: which routes there are, and what a request must pass before it is read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from jaxserve.gateway import headers as names
from jaxserve.gateway.answers import send_problem
from jaxserve.gateway.auth import shows
from jaxserve.gateway.calls import Calls
from jaxserve.gateway.dialects import INFERENCE, dialect_of
from jaxserve.gateway.problems import Problem, stopping
from jaxserve.gateway.proxy import Proxy
from jaxserve.gateway.sessions.capture import Place
from jaxserve.gateway.settings import GatewaySettings

PlaceOf = Callable[[names.RawHeaders], Place | None]
"""The session whose key a request shows."""

_HEALTH = "/health"
_LOOKS = frozenset((_HEALTH, "/v1/models"))


class ClientDoor:
    """ASGI application. The paths here are all that an engine is ever asked for."""

    def __init__(
        self,
        settings: GatewaySettings,
        token: str | None,
        calls: Calls,
        proxy: Proxy,
        place_of: PlaceOf | None,
    ) -> None:
        """Args: the limits, what clients must show, what is in flight, what is behind, and whose
        session a request belongs to, None without sessions."""
        self._place_of = place_of
        self._settings = settings
        self._token = token
        self._calls = calls
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = scope["path"]
        try:
            place = self._check(path, scope)
            if path in INFERENCE:
                await self._proxy.infer(path, scope, receive, send, place)
            else:
                status, headers, body = await self._proxy.look(path, scope["query_string"])
                length = (b"content-length", str(len(body)).encode())
                headers = [*headers, length]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        except Problem as problem:
            await send_problem(send, dialect_of(path), problem)

    def _check(self, path: str, scope: Scope) -> Place | None:
        headers, most = scope["headers"], self._settings.max_head_bytes
        if names.size(headers) + len(scope["raw_path"]) + len(scope["query_string"]) > most:
            raise Problem(431, "head_too_large", f"the headers are larger than {most} bytes")
        if path not in _LOOKS and path not in INFERENCE:
            raise Problem(404, "unknown_route", "there is no such route at this gateway")
        place = None if self._place_of is None else self._place_of(headers)
        if path != _HEALTH and place is None and not self._may_pass(headers):
            raise Problem(
                401, "unauthorized", "this gateway asks for a token: Authorization: Bearer TOKEN"
            )
        allowed = ("GET", "HEAD") if path in _LOOKS else ("POST",)
        if scope["method"] not in allowed:
            raise Problem(405, "wrong_method", f"this route takes {' and '.join(allowed)} only")
        if self._calls.stopping:
            raise stopping()
        most = self._settings.max_requests
        if path in INFERENCE and len(self._calls) >= most:
            raise Problem(
                429, "too_many_requests", f"{most} requests are in the gateway; try again later", 1
            )
        return place

    def _may_pass(self, headers: names.RawHeaders) -> bool:
        """Whether a request that belongs to no session is served. Where there are sessions, one
        that shows nothing is not: it could be an agent whose key has been closed."""
        if self._token is None and self._place_of is not None:
            return False
        return shows(headers, self._token)
