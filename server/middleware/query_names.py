"""Checks of names in a query: a misspelt ``session_id`` would mean the default session, and of two
values of a name one would be ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxserve.errors import InputError
from server.json_responses import problem
from server.middleware.limits import OPEN
from server.middleware.proxies import route_path

_KNOWN_TO_SOCKETS = {"/ws": ("session_id",), "/mcp": ()}


async def known_query(request: Request) -> None:
    """A FastAPI dependency of HTTP routes.

    Raises:
      InputError: the query has a name that the route does not take, or a name twice.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    # Probes of an open path may add a name against caches.
    if request.url.query and route.path not in OPEN:
        _check(request.query_params, [*_names(route.dependant)])


def _names(dependant: Dependant) -> Iterator[str]:
    """Query parameters of a route and of its dependencies."""
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _names(each)


class CheckSocketQuery:
    """ASGI middleware: checks the query of a WebSocket."""

    def __init__(self, app: ASGIApp) -> None:
        """Args: the application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 422 to a WebSocket whose query has an unknown name."""
        if scope["type"] == "websocket" and route_path(scope) in _KNOWN_TO_SOCKETS:
            try:
                _check(QueryParams(scope["query_string"]), _KNOWN_TO_SOCKETS[route_path(scope)])
            except InputError as error:
                await problem(422, str(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _check(given: QueryParams, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"query {name!r:.60} is unknown; allowed are {allowed}")
        if len(given.getlist(name)) > 1:
            raise InputError(f"query {name!r:.60} is given twice; name it once")
