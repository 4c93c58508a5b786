"""MCP as its own clients speak it: the streamable HTTP transport, beside OpenEnv's way."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastmcp import FastMCP
from mcp.shared.version import SUPPORTED_PROTOCOL_VERSIONS
from mcp.types import LATEST_PROTOCOL_VERSION
from starlette.types import Message, Receive, Scope, Send

import jaxserve

_STREAM = "text/event-stream"


class McpTransport:
    """The tools as MCP's own clients ask for them. Nothing is kept between their calls: what they
    play is named in each, and in the log."""

    def __init__(self, tools: FastMCP) -> None:
        """Nothing is answered before ``start``."""
        self._tools = tools
        # Whose pages may call, and by which names, is decided for all routes together.
        self._app = tools.http_app(
            "/mcp", json_response=True, stateless_http=True, host_origin_protection=False
        )
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Begins to answer."""
        await self._running.enter_async_context(self._app.router.lifespan_context(self._app))

    async def stop(self) -> None:
        """Ends what ``start`` began, in the same task."""
        await self._running.aclose()

    @staticmethod
    def speaks(request: Request) -> bool:
        """Whether a request comes from a client of that transport: the protocol has it say so."""
        return _STREAM in request.headers.get("accept", "")

    def answer(self, body: bytes) -> Response:
        """The transport's answer to a request whose body has been read."""
        return _Handed(self._app, body)

    def basic(self, call: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to what comes before tools are called, which OpenEnv does not know.

        Args:
          call: a JSON-RPC call that is right.

        Returns:
          None where the call is another; empty where it asks for no answer.
        """
        if call["method"].startswith("notifications/"):
            return {}
        if call["method"] == "ping":
            return _result(call, {})
        if call["method"] != "initialize":
            return None
        asked = (call.get("params") or {}).get("protocolVersion")
        known = asked in SUPPORTED_PROTOCOL_VERSIONS
        return _result(
            call,
            {
                "protocolVersion": asked if known else LATEST_PROTOCOL_VERSION,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "jaxserve", "version": jaxserve.__version__},
                "instructions": self._tools.instructions,
            },
        )


def _result(call: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call.get("id"), "result": result}


class _Handed(Response):
    """An answer that another application gives."""

    def __init__(self, app: Any, body: bytes) -> None:
        super().__init__()
        self._answering, self._asked = app, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = False

        async def again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": self._asked, "more_body": False}

        # Routed anew: without what the routing so far has left.
        await self._answering({**scope, "root_path": "", "path": "/mcp"}, again, send)
