"""A token on every route but ``/health``, for HTTP and WebSocket alike."""

from __future__ import annotations

import base64
import binascii
import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.json_responses import problem
from server.middleware.limits import OPEN


class RequireToken:
    """ASGI middleware: ``Authorization: Bearer TOKEN``, or Basic with the token as password.

    Basic is there for browsers, which ask for it themselves and then send it with every request
    and WebSocket of the page.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Args: what is protected, and by what."""
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 where the token is missing or wrong."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        given = _given_token(Headers(scope=scope).get("authorization", ""))
        if given is not None and secrets.compare_digest(given, self._token):
            await self._app(scope, receive, send)
        else:
            answer = problem(401, "this server asks for a token: Authorization: Bearer TOKEN")
            answer.headers["WWW-Authenticate"] = 'Basic realm="jaxserve", charset="UTF-8"'
            await answer(scope, receive, send)


def _given_token(header: str) -> bytes | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded.partition(b":")[2]
