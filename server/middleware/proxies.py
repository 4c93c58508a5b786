"""Proxies in front of the server: the client's address, a path before all routes, redirects."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from jaxserve.errors import InputError
from server.json_responses import problem
from server.server_settings import checked_root_path

_LOOPBACK = ("127.0.0.1", 0)
_PREFIX = "x-forwarded-prefix"


def route_path(scope: Scope) -> str:
    """Path of a request or a WebSocket below the server's root path."""
    return scope["path"].removeprefix(scope.get("root_path", ""))


class TrustedProxies:
    """ASGI middleware: takes the client's address from ``X-Forwarded-For`` of trusted proxies, and
    the root path from their ``X-Forwarded-Prefix``.

    A proxy may remove the root path from requests or leave it there: both reach the same route.
    """

    def __init__(self, app: ASGIApp, proxies: Collection[str], root_path: str = "") -> None:
        """Args: the application, addresses and networks of the proxies, and the root path of
        requests without that header, ``/jax`` or empty."""
        self._app, self._root_path = app, root_path
        self._forwarding = ProxyHeadersMiddleware(app, list(proxies)) if proxies else None  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands the request on with its client's address and its root path; answers 400 to a proxy
        whose root path is none."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host, port = scope.get("client") or ("", 1)
        root_path = self._root_path or scope.get("root_path", "").rstrip("/")
        if self._forwarding is None:
            # Uvicorn's own default trusts X-Forwarded-For of this machine, and marks an address
            # taken from there by port 0.
            if port == 0:
                scope = {**scope, "client": _LOOPBACK}
        elif host in self._forwarding.trusted_hosts:
            stated = Headers(scope=scope).get(_PREFIX, "").rstrip("/")
            try:
                root_path = checked_root_path("X-Forwarded-Prefix", stated) or root_path
            except InputError as error:
                await problem(400, str(error))(scope, receive, send)
                return
        if root_path or scope.get("root_path"):
            scope = _below(scope, root_path)
        await (self._forwarding or self._app)(scope, receive, send)  # type: ignore[arg-type]


def _below(scope: Scope, root_path: str) -> Scope:
    """The scope with a root path, which ASGI repeats in ``path``."""
    path = route_path(scope)  # an ASGI server may have been given a root path of its own
    if path != root_path and not path.startswith(f"{root_path}/"):
        path = root_path + path
    return {**scope, "root_path": root_path, "path": path}


class RelativeRedirects:
    """ASGI middleware: redirects lead to this server, whatever host the request names and whatever
    path a proxy has removed."""

    def __init__(self, app: ASGIApp) -> None:
        """Args: the application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Makes redirects relative that copied host and path from the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                parts = urlsplit(headers.get("location", ""))
                host = Headers(scope=scope).get("host", "")
                if parts.netloc and parts.netloc.lower() == host.lower():
                    path = _relative(parts.path, scope["path"])
                    headers["location"] = parts._replace(scheme="", netloc="", path=path).geturl()
                    message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, answer)


def _relative(path: str, base: str) -> str:
    """A path as a reference relative to the path ``base``, without a colon in its first segment."""
    folder, _, name = path.rpartition("/")
    found = posixpath.relpath(folder or "/", base.rpartition("/")[0] or "/")
    return f"{found if found.startswith('.') else './' + found}/{name}"
