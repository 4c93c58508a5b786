"""Routers of the HTTP routes, and the session that a query or a header names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute

from jaxserve.errors import InputError
from server.json_responses import OrjsonResponse
from server.middleware.limits import client_of
from server.middleware.query_names import known_query
from server.sessions.session import DefaultSession, SessionName
from server.wire.error_sentences import read_json
from server.wire.request_bodies import SessionId


class _JsonRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class _JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


def json_router(tag: str) -> APIRouter:
    """A router whose routes answer JSON, and refuse unknown names in a query and repeated ones in a
    body."""
    return APIRouter(
        tags=[tag],
        default_response_class=OrjsonResponse,
        dependencies=[Depends(known_query)],
        route_class=_JsonRoute,
    )


async def named_session(
    request: Request,
    session_id: Annotated[SessionId | None, Query()] = None,
    x_session_id: Annotated[SessionId | None, Header()] = None,
) -> SessionName:
    """The session of the query or the header, else the client's default session; async, since
    FastAPI runs others in a thread.

    Raises:
      InputError: query and headers name different sessions.
    """
    named: SessionName = DefaultSession(client_of(request.scope))
    for stated in (session_id, *request.headers.getlist("x-session-id")):
        named = one_session(stated, named)
    return named


NamedSession = Annotated[SessionName, Depends(named_session)]


def one_session(stated: str | None, named: SessionName) -> SessionName:
    """``stated`` if it is an id, else ``named``.

    Raises:
      InputError: both are ids, and they differ.
    """
    if stated is None:
        return named
    if isinstance(named, str) and named != stated:
        raise InputError(f"session_id is {stated!r} and {named!r}; name one session")
    return stated
