"""Access: bearer token, origins and host names of pages."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxserve.runtime.hosts import is_local, is_loopback
from server.json_responses import problem
from server.middleware.limits import client_address, is_open

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class RequireToken:
    """ASGI middleware: ``Authorization: Bearer TOKEN``, or Basic with the token as password.

    Basic serves browsers: they ask for the password themselves and send it with every request and
    WebSocket of the page.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Args: the application to protect, and its token."""
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 if the token is missing or wrong."""
        if scope["type"] not in ("http", "websocket") or is_open(scope):
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


class CheckOrigin:
    """ASGI middleware: pages of other sites may neither change anything nor open a WebSocket.

    Browsers let any page send a plain POST or open a WebSocket to any address, and add a password
    that they have stored.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """Args: the application, and the origins of other sites whose pages may call."""
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 403 to requests of another site's page."""
        if scope["type"] in ("http", "websocket") and scope.get("method") not in _SAFE:
            origin = self._foreign(scope)
            if origin is not None:
                allowed = "this server's own, or one that JAXSERVE_CORS_ORIGINS lists"
                answer = problem(403, f"Origin is {origin!r:.80}; it must be {allowed}")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> str | None:
        """The page's origin; None if it is this server's or allowed."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        # Browsers forbid pages to set this header; it is right also if a proxy changes the host.
        if headers.get("sec-fetch-site") == "same-origin":
            return None
        own = _host_and_port(f"//{headers.get('host', '')}", origin)
        return None if _host_and_port(origin) == own else origin


class CheckHost:
    """ASGI middleware against DNS rebinding, for servers without a token.

    The owner of a page's name may resolve it to this server. To a browser that page is then the
    server's own: its ``Host`` and ``Origin`` agree. A server with a token needs no such check: the
    page does not know the token.

    Starlette's ``TrustedHostMiddleware`` compares ``Host`` with a fixed list. This server has none:
    any address and any name without a dot is trusted, other names only if the request can come from
    no page.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """Args: the application, and the origins whose host names are trusted."""
        self._app = app
        self._any = "*" in origins
        self._names = frozenset(urlsplit(origin).hostname for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 403 to requests under an untrusted name."""
        guarded = scope["type"] in ("http", "websocket") and not is_open(scope)
        if guarded and not self._any:
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            # Such a page has no certificate, so its origin is http. Its GET requests carry no
            # Origin: they are refused from this machine only, where they may come from a browser.
            plain = headers.get("origin", "").startswith("http:")
            if (plain or is_loopback(client_address(scope))) and not self._trusted(host):
                allowed = (
                    "an IP address, a name without a dot like localhost, or the host of an origin "
                    "that JAXSERVE_CORS_ORIGINS lists, as the server has no token"
                )
                answer = problem(403, f"Host is {host!r:.80}; it must be {allowed}")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _trusted(self, host: str) -> bool:
        name, _ = _host_and_port(f"//{host}")
        return name is None or is_local(name) or name in self._names


def _host_and_port(url: str, like: str | None = None) -> tuple[str | None, int | None]:
    """Host and port of a URL, by default the port of its scheme or of the scheme of ``like``."""
    try:
        parts, scheme = urlsplit(url), urlsplit(like or url).scheme
        return parts.hostname, parts.port or _PORTS.get(scheme)
    except ValueError:  # the port is no number
        return url, None
