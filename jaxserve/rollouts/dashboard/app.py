"""The dashboard as an application: files, and what the service answers to those who look."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Send

from jaxserve.gateway.http.json_http import plain_json
from jaxserve.rollouts.dashboard.door import Entry
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from jaxserve.rollouts.service.doors import SERVICE, Shown
from jaxserve.runtime.hosts import is_loopback

_FILES = Path(__file__).with_name("static")
_SHARED = Path(__file__).resolve().parents[3] / "server" / "static"
"""The style of all pages, which is installed beside this package; nothing of it is imported."""
_SHOWN = re.compile(
    r"/(nodes|tasks|events|events/stream|rollout/status"
    r"|(tasks|sessions)/[\w.-]+|tasks/[\w.-]+/sessions"
    r"|sessions/[\w.-]+/(completions|trajectory))"
)
"""Paths of the service that are passed on; none of them changes anything."""
_POLICY = "default-src 'self'; img-src data:"
_PASSED_ON = ("content-type", "cache-control")


class Dashboard:
    """An ASGI application."""

    def __init__(self, settings: DashboardSettings, token: str | None, entry: Entry) -> None:
        """Args: where the service is, and its token, which no browser gets; who gets in."""
        self._settings, self._entry = settings, entry
        self._streams: set[httpx.Response] = set()
        self._shown = Shown(SERVICE, settings.service, token)
        routes = [
            Route("/health", self._health),
            Route("/api{path:path}", self._ask),
            Mount("/shared", StaticFiles(directory=_SHARED)),
            Mount("/", StaticFiles(directory=_FILES, html=True)),
        ]
        self._app = Starlette(routes=routes, lifespan=self._life)

    async def __call__(self, scope, receive, send) -> None:
        """Serves who gets in, ``/health`` anyone on this machine; an address elsewhere that is made
        to lead here gets nothing."""
        answer = self._in_place(Request(scope)) if scope["type"] == "http" else None
        await (self._app if answer is None else answer)(scope, receive, _guarded(send))

    def _in_place(self, request: Request) -> Response | None:
        if not is_loopback(request.url.hostname or ""):
            return plain_json({"error": {"message": "the pages are for this machine"}}, 403)
        return None if request.scope["path"] == "/health" else self._entry.answer(request)

    async def stop(self) -> None:
        """Ends streams, which have no end of their own."""
        for answer in tuple(self._streams):
            await answer.aclose()

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        timeout = httpx.Timeout(60.0)
        async with httpx.AsyncClient(
            base_url=self._settings.service.rstrip("/"),
            auth=self._shown,
            timeout=timeout,
            trust_env=False,
        ) as self._http:
            yield

    async def _health(self, request: Request) -> Response:
        return plain_json({"status": "healthy"})

    async def _ask(self, request: Request) -> Response:
        path = request.path_params["path"]
        if not _SHOWN.fullmatch(path):
            return plain_json({"error": {"message": "there is no such page"}}, 404)
        asked = self._http.build_request("GET", path, params=request.query_params)
        if (last := request.headers.get("last-event-id")) is not None:
            asked.headers["last-event-id"] = last
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx.HTTPError:
            said = f"the service at {self._settings.service} does not answer"
            return plain_json({"error": {"message": said}}, 502)
        headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
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
    """Pages run their own scripts and no others, whatever agents said."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["content-security-policy"] = _POLICY
            headers["x-content-type-options"] = "nosniff"
        await send(message)

    return guarded
