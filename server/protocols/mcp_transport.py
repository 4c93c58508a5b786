"""The streamable HTTP transport of MCP's own clients; OpenEnv's clients call ``/mcp`` otherwise."""

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
    """Tools for MCP's own clients. The transport keeps no state between calls: each names its
    session, which is in the log."""

    def __init__(self, tools: FastMCP) -> None:
        """Args: the tools. The transport answers after ``start``."""
        self.tools = tools
        # CheckOrigin and CheckHost hold for all routes, this one included.
        self._app = tools.http_app(
            "/mcp", json_response=True, stateless_http=True, host_origin_protection=False
        )
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Starts the transport."""
        await self._running.enter_async_context(self._app.router.lifespan_context(self._app))

    async def stop(self) -> None:
        """Stops the transport, in the task that started it."""
        await self._running.aclose()

    @staticmethod
    def serves(request: Request) -> bool:
        """Whether a request comes from a client of this transport, by the header it must send."""
        return _STREAM in request.headers.get("accept", "")

    def answer(self, body: bytes) -> Response:
        """The transport's answer to a request whose body has been read."""
        return _Forwarded(self._app, body)

    def handshake(self, call: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a call that precedes calls of tools, and that OpenEnv does not know.

        Args:
          call: a valid JSON-RPC call.

        Returns:
          The answer; empty for a notification, None for any other call.
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
                "instructions": self.tools.instructions,
            },
        )


def _result(call: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call.get("id"), "result": result}


class _Forwarded(Response):
    """The response of another application to a request whose body has been read."""

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

        # The other application routes anew: this route's root_path would mislead it.
        await self._answering({**scope, "root_path": "", "path": "/mcp"}, again, send)
