"""The application for clients: its routes, and the checks that a request must pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from jaxserve.gateway.app.proxy import Proxy
from jaxserve.gateway.app.queries import TOKENIZE, EngineQueries
from jaxserve.gateway.dialects.dialect import model_cards
from jaxserve.gateway.dialects.engine_reader import engine_error
from jaxserve.gateway.dialects.routes import (
    INFERENCE,
    counts_tokens,
    dialect_of,
    lists_models,
    models_response,
    translates,
)
from jaxserve.gateway.exchange.in_flight import InFlight
from jaxserve.gateway.exchange.response import send_error
from jaxserve.gateway.http.auth import browser_page_refusal, has_token
from jaxserve.gateway.http.errors import RequestError, stopping
from jaxserve.gateway.http.headers import RawHeaders, headers_size
from jaxserve.gateway.recording.recorded import RecordingContext, SessionRecorder, record_refusal
from jaxserve.gateway.recording.session import NotRecorded
from jaxserve.gateway.settings import TOKEN_VARIABLE, GatewaySettings
from jaxserve.runtime.hosts import is_loopback


class Access(Enum):
    """Requirement on the sender of a request."""

    ANYONE = auto()
    """no token and no session key."""
    CLIENT = auto()
    """the client token or the key of a session."""
    SESSION = auto()
    """the key of a session."""


class Operation(Enum):
    """Service behind a route."""

    HEALTH = auto()
    """health of an engine."""
    MODELS = auto()
    """list of models."""
    TOKENS = auto()
    """tokens of a prompt, counted by the engine: the request passes as it is."""
    COUNT = auto()
    """tokens of a prompt; in a session the request is translated, otherwise it passes as it is."""
    OUTPUT = auto()
    """output of a model."""


@dataclass(frozen=True, slots=True)
class ClientRoute:
    """Paths with a common operation and access."""

    has: Callable[[str], bool]
    """whether a path belongs to the route."""
    methods: tuple[str, ...]
    """allowed HTTP methods."""
    access: Access
    """requirement on the sender."""
    operation: Operation
    """service behind the route."""


_READ, _WRITE = ("GET", "HEAD"), ("POST",)
_HEALTH, _MODELS = "/health", "/v1/models"
_COUNT = "/v1/messages/count_tokens"
"""Route of Anthropic's dialect that engines have as well."""

ROUTES = (
    ClientRoute(lambda path: path == _HEALTH, _READ, Access.ANYONE, Operation.HEALTH),
    ClientRoute(lambda path: path == _MODELS, _READ, Access.CLIENT, Operation.MODELS),
    ClientRoute(lambda path: path in INFERENCE, _WRITE, Access.CLIENT, Operation.OUTPUT),
    ClientRoute(lambda path: path == TOKENIZE, _WRITE, Access.CLIENT, Operation.TOKENS),
    ClientRoute(lambda path: path == _COUNT, _WRITE, Access.CLIENT, Operation.COUNT),
    ClientRoute(lists_models, _READ, Access.SESSION, Operation.MODELS),
    ClientRoute(
        lambda path: translates(path) and counts_tokens(path),
        _WRITE,
        Access.SESSION,
        Operation.COUNT,
    ),
    ClientRoute(translates, _WRITE, Access.SESSION, Operation.OUTPUT),
)
"""All routes for clients; the first one that has a path counts."""


def route_of(path: str) -> ClientRoute | None:
    """Route of a path; None for an unknown path."""
    return next((route for route in ROUTES if route.has(path)), None)


class ClientApp:
    """ASGI application for clients; no other path of an engine can be reached."""

    def __init__(
        self,
        settings: GatewaySettings,
        token: str | None,
        in_flight: InFlight,
        proxy: Proxy,
        queries: EngineQueries,
        recording: SessionRecorder | None,
    ) -> None:
        """Args:
        settings: limits.
        token: client token; None asks for none.
        in_flight: requests in flight.
        proxy: server of requests for output.
        queries: server of all other requests.
        recording: sessions by their keys; None without sessions.
        """
        self._settings = settings
        self._token = token
        self._in_flight = in_flight
        self._proxy = proxy
        self._queries = queries
        self._recording = recording
        self._is_local = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        try:
            route, context = self._check(scope)
            await self._check_load(route, context, scope)
            await self._serve(route, context, scope, receive, send)
        except RequestError as error:
            await send_error(send, dialect_of(scope["path"]), error)

    def _check(self, scope: Scope) -> tuple[ClientRoute, RecordingContext | None]:
        """Route and session of a request, in the order of the refusals.

        Raises:
          RequestError: the head is too large (431), the route unknown (404), the token wrong (401),
            the request one of a page in a browser (403), or the method wrong (405).
        """
        self._check_head(scope)
        route = route_of(scope["path"])
        if route is None or (route.access is Access.SESSION and self._recording is None):
            raise _unknown_route()
        headers, query = scope["headers"], scope["query_string"]
        context = None if self._recording is None else self._recording.context(headers, query)
        if context is None and route.access is not Access.ANYONE:
            self._check_client(scope)
            if route.access is Access.SESSION:
                raise _unknown_route()
        if scope["method"] not in route.methods:
            allowed = " and ".join(route.methods)
            raise RequestError(405, "wrong_method", f"this route takes {allowed} only")
        return route, context

    def _check_head(self, scope: Scope) -> None:
        size = headers_size(scope["headers"]) + len(scope["raw_path"]) + len(scope["query_string"])
        most = self._settings.max_head_bytes
        if size > most:
            raise RequestError(431, "head_too_large", f"the headers are larger than {most} bytes")

    def _check_client(self, scope: Scope) -> None:
        """Checks the token of a request without a session.

        A gateway with sessions and without a client token refuses all of them: the request may be
        of an agent whose session has been closed.
        """
        no_token = self._token is None and self._recording is not None
        if no_token or not has_token(scope["headers"], self._token):
            raise RequestError(
                401, "unauthorized", "this gateway asks for a token: Authorization: Bearer TOKEN"
            )
        if self._token is None:
            page = browser_page_refusal(
                TOKEN_VARIABLE, Headers(scope=scope), is_here=self._is_local
            )
            if page is not None:
                raise RequestError(403, "forbidden", page)

    async def _check_load(
        self, route: ClientRoute, context: RecordingContext | None, scope: Scope
    ) -> None:
        """Refuses a request during shutdown or overload; a refused request for output is measured,
        and recorded in its session.

        Raises:
          RequestError: the refusal.
        """
        most = self._settings.max_requests
        if self._in_flight.stopping:
            error = stopping()
        elif route.methods == _WRITE and len(self._in_flight) >= most:
            message = f"{most} requests are in the gateway; try again later"
            error = RequestError(429, "too_many_requests", message, 1)
        else:
            return
        if route.operation is Operation.OUTPUT:
            record = self._proxy.refused(scope, error)
            if context is not None:
                with suppress(NotRecorded):  # logged already, and the client gets its error anyway
                    await record_refusal(context, record)
        raise error

    async def _serve(
        self,
        route: ClientRoute,
        context: RecordingContext | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serves a request that has passed all checks."""
        # The query of a session's request may have its key.
        query = scope["query_string"] if context is None else b""
        match route.operation:
            case Operation.OUTPUT:
                await self._output(context, scope, receive, send)
            case Operation.COUNT if context is not None:
                await _send_json(send, await self._queries.count_tokens(scope, receive))
            case Operation.COUNT | Operation.TOKENS:
                await _send_whole(send, *await self._queries.pass_on(scope, receive))
            case Operation.MODELS if context is not None:
                status, _, answer = await self._queries.get(_MODELS, query)
                if status != 200:
                    raise engine_error(status, answer, "first")
                cards = model_cards(answer)
                await _send_json(send, models_response(scope["path"], scope["headers"], cards))
            case Operation.HEALTH | Operation.MODELS:
                status, headers, body = await self._queries.get(scope["path"], query)
                await _send_whole(send, status, headers, body)

    async def _output(
        self, context: RecordingContext | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serves a request for output; in a session with a record."""
        if context is None:
            return await self._proxy.infer(scope, receive, send)
        try:
            async with context.sessions.entered(context.session):
                await self._proxy.infer(scope, receive, send, context)
        except NotRecorded:
            raise RequestError(
                507, "not_recorded", "the records of this session cannot be read"
            ) from None


def _unknown_route() -> RequestError:
    return RequestError(404, "unknown_route", "there is no such route at this gateway")


async def _send_json(send: Send, body: bytes) -> None:
    await _send_whole(send, 200, [(b"content-type", b"application/json")], body)


async def _send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
