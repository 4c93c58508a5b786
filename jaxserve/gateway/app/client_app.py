"""The door for clients: which routes there are, and what a request must pass before it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from jaxserve.gateway.app.proxy import Proxy
from jaxserve.gateway.dialects.dialect import INFERENCE, dialect_of
from jaxserve.gateway.dialects.engine_reader import engine_problem
from jaxserve.gateway.dialects.models import cards_of
from jaxserve.gateway.dialects.routes import counts, lists_models, models_body, translates
from jaxserve.gateway.exchange.in_flight import Calls
from jaxserve.gateway.exchange.response import send_problem
from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.auth import of_a_page, shows
from jaxserve.gateway.http.errors import Problem, stopping
from jaxserve.gateway.recording.recorded import Place, record_refusal
from jaxserve.gateway.recording.session import NotRecorded
from jaxserve.gateway.settings import TOKEN_VARIABLE, GatewaySettings
from jaxserve.runtime.hosts import is_loopback

PlaceOf = Callable[[names.RawHeaders, bytes], Place | None]
"""The session whose key a request shows, in its headers or its query."""

_HEALTH = "/health"
_MODELS = "/v1/models"
_LOOKS = frozenset((_HEALTH, _MODELS))


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
        self._is_here = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = scope["path"]
        try:
            place = self._check(path, scope)
            await self._find_room(place, path, scope)
            if place is not None:
                await self._serve_session(place, path, scope, receive, send)
            elif path in INFERENCE:
                await self._proxy.infer(path, scope, receive, send)
            else:
                status, headers, body = await self._proxy.look(path, scope["query_string"])
                await _send_whole(send, status, headers, body)
        except Problem as problem:
            await send_problem(send, dialect_of(path), problem)

    async def _serve_session(
        self, place: Place, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answers in the dialect that the path speaks."""
        if lists_models(path):
            status, _, said = await self._proxy.look(_MODELS, b"")
            if status != 200:
                raise engine_problem(status, said, "first")
            body = models_body(path, scope["headers"], cards_of(said))
        elif path == _HEALTH:
            status, headers, body = await self._proxy.look(path, b"")
            return await _send_whole(send, status, headers, body)
        elif counts(path):
            body = await self._proxy.count(path, scope, receive)
        else:
            try:
                async with place.sessions.entered(place.session):
                    return await self._proxy.infer(path, scope, receive, send, place)
            except NotRecorded:
                raise Problem(
                    507, "not_recorded", "the records of this session cannot be read"
                ) from None
        await _send_whole(send, 200, [(b"content-type", b"application/json")], body)

    def _check(self, path: str, scope: Scope) -> Place | None:
        headers, most = scope["headers"], self._settings.max_head_bytes
        if names.size(headers) + len(scope["raw_path"]) + len(scope["query_string"]) > most:
            raise Problem(431, "head_too_large", f"the headers are larger than {most} bytes")
        of_sessions = self._place_of is not None and (translates(path) or lists_models(path))
        if path not in _LOOKS and path not in INFERENCE and not of_sessions:
            raise _unknown_route()
        query = scope["query_string"]
        place = None if self._place_of is None else self._place_of(headers, query)
        if path != _HEALTH and place is None and not self._may_pass(headers):
            raise Problem(
                401, "unauthorized", "this gateway asks for a token: Authorization: Bearer TOKEN"
            )
        if path != _HEALTH and place is None and self._token is None:
            page = of_a_page(TOKEN_VARIABLE, Headers(scope=scope), is_here=self._is_here)
            if page is not None:
                raise Problem(403, "forbidden", page)
        if place is None and path not in _LOOKS and path not in INFERENCE:
            raise _unknown_route()
        is_look = path == _HEALTH or lists_models(path)
        allowed = ("GET", "HEAD") if is_look else ("POST",)
        if scope["method"] not in allowed:
            raise Problem(405, "wrong_method", f"this route takes {' and '.join(allowed)} only")
        return place

    async def _find_room(self, place: Place | None, path: str, scope: Scope) -> None:
        """Refuses a request for which there is no time or no room; one for output is booked, and
        recorded in its session.

        Raises:
          Problem: the refusal.
        """
        most, is_look = self._settings.max_requests, scope["method"] != "POST"
        if self._calls.stopping:
            problem = stopping()
        elif not is_look and len(self._calls) >= most:
            message = f"{most} requests are in the gateway; try again later"
            problem = Problem(429, "too_many_requests", message, 1)
        else:
            return
        if not is_look and not counts(path):
            record = self._proxy.turned_away(path, scope["headers"], problem)
            if place is not None:
                with suppress(NotRecorded):  # said in the log, and the client gets its error anyway
                    await record_refusal(place, record)
        raise problem

    def _may_pass(self, headers: names.RawHeaders) -> bool:
        """Whether a request that belongs to no session is served. Where there are sessions, one
        that shows nothing is not: it could be an agent whose key has been closed."""
        if self._token is None and self._place_of is not None:
            return False
        return shows(headers, self._token)


def _unknown_route() -> Problem:
    return Problem(404, "unknown_route", "there is no such route at this gateway")


async def _send_whole(send: Send, status: int, headers: names.RawHeaders, body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
