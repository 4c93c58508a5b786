"""Who asks: a client behind a proxy, or a page of somebody else's; and where redirects lead."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from jaxserve.runtime.hosts import is_local, is_loopback
from server.json_responses import problem
from server.middleware.limits import OPEN, client_address

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_LOOPBACK = ("127.0.0.1", 0)


class TrustedProxies:
    """ASGI middleware: ``X-Forwarded-For`` of proxies that are known, and of nobody else."""

    def __init__(self, app: ASGIApp, proxies: Collection[str]) -> None:
        """Args: what is protected, and whom to believe."""
        self._app = app
        self._believing = ProxyHeadersMiddleware(app, list(proxies)) if proxies else None  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands on the request with its client's address."""
        if self._believing is not None:
            await self._believing(scope, receive, send)  # type: ignore[arg-type]
            return
        # By itself uvicorn believes whoever is on this machine. The port 0 is a sign of that.
        if scope["type"] in ("http", "websocket") and (scope.get("client") or ("", 1))[1] == 0:
            scope = {**scope, "client": _LOOPBACK}
        await self._app(scope, receive, send)


class CheckOrigin:
    """ASGI middleware: pages of other sites may neither change anything nor open a WebSocket.

    Browsers let any page send a plain POST or open a WebSocket anywhere, and add a password that
    they know.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """Args: what is protected, and whose pages may call."""
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 403 to what another site's page sends."""
        if scope["type"] in ("http", "websocket") and scope.get("method") not in _SAFE:
            origin = self._foreign(scope)
            if origin is not None:
                allowed = "this server's own, or one that JAXSERVE_CORS_ORIGINS lists"
                answer = problem(403, f"Origin is {origin!r:.80}; it must be {allowed}")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> str | None:
        """The page's origin, if it is neither this server nor allowed."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        # No page can write this header; it is right also where a proxy changes the host.
        if headers.get("sec-fetch-site") == "same-origin":
            return None
        return None if _place(origin) == _place(f"//{headers.get('host', '')}", origin) else origin


class CheckHost:
    """ASGI middleware: no page plays under a name that its owner has made to lead here.

    To a browser such a page is the server's own (DNS rebinding): its ``Host`` and ``Origin`` agree.
    Where there is a token, it does not know that.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """Args: what is protected, and origins whose names are known."""
        self._app = app
        self._any = "*" in origins
        self._names = frozenset(urlsplit(origin).hostname for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 403 to what comes under such a name."""
        guarded = scope["type"] in ("http", "websocket") and scope["path"] not in OPEN
        if guarded and not self._any:
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            # No such page has a certificate. Reading has no Origin; who reads elsewhere than on
            # this machine may be a client that calls the server by its name.
            plain = headers.get("origin", "").startswith("http:")
            if (plain or is_loopback(client_address(scope))) and not self._known(host):
                allowed = (
                    "an IP address, a name without a dot like localhost, or the host of an origin "
                    "that JAXSERVE_CORS_ORIGINS lists, as the server has no token"
                )
                answer = problem(403, f"Host is {host!r:.80}; it must be {allowed}")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _known(self, host: str) -> bool:
        name, _ = _place(f"//{host}")
        return name is None or is_local(name) or name in self._names


def _place(url: str, like: str | None = None) -> tuple[str | None, int | None]:
    """Host and port; a port that is not written is that of the scheme, of ``like`` if given."""
    try:
        parts, scheme = urlsplit(url), urlsplit(like or url).scheme
        return parts.hostname, parts.port or _PORTS.get(scheme)
    except ValueError:  # a port that is none
        return url, None


class RelativeRedirects:
    """ASGI middleware: redirects lead to this server, whatever the request calls it."""

    def __init__(self, app: ASGIApp) -> None:
        """Args: what is protected."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes the host from redirects that copied it from the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                location = headers.get("location")
                if location is not None:
                    parts = urlsplit(location)
                    if parts.netloc.lower() == host.lower():
                        path = "/" + parts.path.lstrip("/")  # two slashes would name a host again
                        headers["location"] = parts._replace(
                            scheme="", netloc="", path=path
                        ).geturl()
                    message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, answer)
