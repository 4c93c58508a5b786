"""The dashboard: static pages, and the service's read-only routes passed on to them."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Send

from jaxserve import checks
from jaxserve.gateway.http.auth import has_token
from jaxserve.gateway.http.json_http import plain_json
from jaxserve.gateway.http.token_files import TokenFile
from jaxserve.rollouts.dashboard.settings import TOKEN_VARIABLE, DashboardSettings
from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.runtime.hosts import is_loopback
from jaxserve.runtime.listening import CommandServer, address, listen

DASHBOARD = TokenFile("dashboard", TOKEN_VARIABLE)
"""Token file of the dashboard, which shows all sessions."""
_FILES = Path(__file__).with_name("static")
_PASSED_ON = re.compile(
    r"/(nodes|tasks|history|events|events/stream|rollout/status"
    r"|(tasks|sessions)/[\w.-]+|tasks/[\w.-]+/sessions"
    r"|sessions/[\w.-]+/(completions|trajectory))"
)
"""Read-only routes of the service."""
_POLICY = "default-src 'self'; img-src data:"
_HEADERS = ("content-type", "cache-control")
_REFUSED = (
    "the dashboard asks for its token: open the address that `jaxserve rollout dashboard` "
    "printed when it began"
)


class PageAccess:
    """Access to the pages: by cookie, by a token in the address, or by a token in a header.

    A token in the address becomes a cookie, and the address is requested again without it. Browsers
    send cookies to all ports of a machine, so the cookie is derived from the token, and opens this
    dashboard only.
    """

    def __init__(self, token: str, port: int) -> None:
        """Args: the token, and the port of the pages."""
        self._token = token
        self._cookie = f"jaxserve-dashboard-{port}"
        self._made = hmac.new(token.encode(), b"cookie of a dashboard", hashlib.sha256).hexdigest()

    def address(self, url: str) -> str:
        """The address that opens the pages at ``url``."""
        return f"{url}/?{urlencode({'token': self._token})}"

    def answer(self, request: Request) -> Response | None:
        """The answer in place of a page: a refusal or a redirect; None allows the request."""
        if _same(request.query_params.get("token", ""), self._token):
            return self._set_cookie(request)
        cookie = request.cookies.get(self._cookie, "")
        if has_token(request.scope["headers"], self._token) or _same(cookie, self._made):
            return None
        if request.url.path.startswith("/api"):
            return plain_json({"error": {"message": _REFUSED}}, 401)
        return PlainTextResponse(f"{_REFUSED}\n", 401)

    def _set_cookie(self, request: Request) -> Response:
        """Sets the cookie and redirects to the same page."""
        others = [one for one in request.query_params.multi_items() if one[0] != "token"]
        # One slash only, and no backslash: with two the next name would be a host's.
        page = quote("/" + request.scope["path"].lstrip("/"))
        answer = RedirectResponse(f"{page}?{urlencode(others)}" if others else page, 303)
        answer.set_cookie(self._cookie, self._made, httponly=True, samesite="strict")
        answer.headers["cache-control"] = "no-store"
        answer.headers["referrer-policy"] = "no-referrer"
        return answer


def _same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(), wanted.encode())


class Dashboard:
    """The ASGI application."""

    def __init__(self, settings: DashboardSettings, token: str | None, access: PageAccess) -> None:
        """Args: settings; the service's token, which no browser gets; access to the pages."""
        self._settings, self._access = settings, access
        self._streams: set[httpx.Response] = set()
        self._auth = TokenAuth(SERVICE, settings.service, token)
        # base.css, the style of all pages, is the environment server's as well.
        shared = ("jaxserve.rollouts.dashboard", "shared")
        files = StaticFiles(directory=_FILES, packages=[shared], html=True)
        routes = [
            Route("/health", self._health),
            Route("/api{path:path}", self._ask),
            Mount("/", files),
        ]
        self._app = Starlette(routes=routes, lifespan=self._life)

    async def __call__(self, scope, receive, send) -> None:
        """Serves requests with access, and ``/health`` without; refuses other host names."""
        answer = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (self._app if answer is None else answer)(scope, receive, _guarded(send))

    def _refusal(self, request: Request) -> Response | None:
        if not is_loopback(request.url.hostname or ""):
            return plain_json({"error": {"message": "the pages are for this machine"}}, 403)
        return None if request.scope["path"] == "/health" else self._access.answer(request)

    async def stop(self) -> None:
        """Ends event streams, which have no end of their own."""
        for answer in tuple(self._streams):
            await answer.aclose()

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(
            base_url=self._settings.service.rstrip("/"),
            auth=self._auth,
            timeout=httpx.Timeout(60.0),
            trust_env=False,
        ) as self._http:
            yield

    async def _health(self, request: Request) -> Response:
        return plain_json({"status": "healthy"})

    async def _ask(self, request: Request) -> Response:
        path = request.path_params["path"]
        if not _PASSED_ON.fullmatch(path):
            return plain_json({"error": {"message": "there is no such page"}}, 404)
        passed_on = self._http.build_request("GET", path, params=request.query_params)
        if (last := request.headers.get("last-event-id")) is not None:
            passed_on.headers["last-event-id"] = last
        try:
            answer = await self._http.send(passed_on, stream=True)
        except httpx.HTTPError:
            message = f"the service at {self._settings.service} does not answer"
            return plain_json({"error": {"message": message}}, 502)
        headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
        return StreamingResponse(self._body(answer), answer.status_code, headers)

    async def _body(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        self._streams.add(answer)
        try:
            async for piece in answer.aiter_bytes():
                yield piece
        except (httpx.HTTPError, httpx.StreamError):
            return  # the browser asks again
        finally:
            self._streams.discard(answer)
            await answer.aclose()


def _guarded(send: Send) -> Send:
    """Adds a policy by which pages run their own scripts only, whatever agents wrote."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["content-security-policy"] = _POLICY
            headers["x-content-type-options"] = "nosniff"
        await send(message)

    return guarded


class DashboardServer(CommandServer):
    """Serves until a signal, and then ends event streams first."""

    def __init__(self, dashboard: Dashboard, opened_at: str) -> None:
        """Args: the application, and the address that opens it."""
        self._dashboard, self.opened_at = dashboard, opened_at
        super().__init__(dashboard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends event streams, then lets running requests end."""
        await self._dashboard.stop()
        await super().shutdown(sockets)


def open_dashboard(
    settings: DashboardSettings, service_token: str | None, own_token: str | None = None
) -> tuple[DashboardServer, socket.socket]:
    """A dashboard that is ready to run, with its socket.

    Args:
      service_token: token of the service; None reads the service's own file.
      own_token: token of the dashboard; None makes one.

    Raises:
      InputError: an invalid setting, a port that is taken, or a token that cannot be kept.
    """
    settings.check()
    listening = listen(settings.host, settings.port, "--port")
    try:
        port = listening.getsockname()[1]
        access = PageAccess(DASHBOARD.keep(port) if own_token is None else own_token, port)
    except BaseException:
        listening.close()
        raise
    opened_at = access.address(address(listening))
    return DashboardServer(Dashboard(settings, service_token, access), opened_at), listening


def run(settings: DashboardSettings) -> None:
    """Serves until a signal.

    Raises:
      InputError: an invalid setting, a port that is taken, or a token that cannot be kept.
    """
    own = checks.secret(os.environ, TOKEN_VARIABLE)
    server, listening = open_dashboard(settings, RolloutTokens.from_environment().service, own)
    # The only output with the token, for the operator to open.
    print(f"jaxserve: dashboard at {server.opened_at}", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
