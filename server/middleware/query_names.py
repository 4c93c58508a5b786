"""Names in a query that no route knows: a misspelt one would be somebody else's session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxserve.errors import InputError
from server.json_responses import problem

_OF_SOCKETS = {"/ws": ("session_id",), "/mcp": ()}


async def known_query(request: Request) -> None:
    """A dependency of routes.

    Raises:
      InputError: the query has a name that the route does not take.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    if request.url.query:
        _check(request.query_params, [*_names(route.dependant)])


def _names(dependant: Dependant) -> Iterator[str]:
    """What a route takes from the query, itself or by what it depends on."""
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _names(each)


class CheckSocketQuery:
    """ASGI middleware: the same for WebSockets."""

    def __init__(self, app: ASGIApp) -> None:
        """Args: what is protected."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 422 in place of a WebSocket."""
        if scope["type"] == "websocket" and scope["path"] in _OF_SOCKETS:
            try:
                _check(QueryParams(scope["query_string"]), _OF_SOCKETS[scope["path"]])
            except InputError as error:
                await problem(422, str(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _check(given: QueryParams, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"query {name!r:.60} is unknown; allowed are {allowed}")
