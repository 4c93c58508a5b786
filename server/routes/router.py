"""Routers of the HTTP routes, and the session that a query or a header names."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query

from server.json_responses import OrjsonResponse
from server.middleware.query_names import known_query
from server.wire.request_bodies import SessionId


def json_router(tag: str) -> APIRouter:
    """A router whose routes answer JSON and refuse unknown names in a query."""
    return APIRouter(
        tags=[tag], default_response_class=OrjsonResponse, dependencies=[Depends(known_query)]
    )


async def named_session(
    session_id: Annotated[SessionId | None, Query()] = None,
    x_session_id: Annotated[SessionId | None, Header()] = None,
) -> str | None:
    """The session of the query or the header; async, since FastAPI runs others in a thread."""
    return session_id or x_session_id


NamedSession = Annotated[str | None, Depends(named_session)]
