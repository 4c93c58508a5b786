"""MCP's own clients play an episode at the same address as OpenEnv's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import fastmcp
import httpx
import mcp
import pytest
from fastmcp.exceptions import ToolError
from mcp.client.streamable_http import streamable_http_client
from websockets.sync.client import connect

import jaxserve
from server.local import LocalServer

_TOOLS = {"grade", "list_tasks", "observe", "reset", "step"}


def call(method: str, number: int | None = 1, **params: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "method": method, "params": params}
    return body if number is None else body | {"id": number}


def test_fastmcps_client_plays(server: LocalServer) -> None:
    """Tools by name, structured results, and errors in the server's words."""

    async def play() -> None:
        async with fastmcp.Client(f"{server.url}/mcp") as client:
            assert {tool.name for tool in await client.list_tools()} == _TOOLS
            begun = (await client.call_tool("reset", {"task_id": 1, "seed": 3})).data
            own = {"session_id": begun["session_id"]}
            stepped = (await client.call_tool("step", own | {"action": {"batch_cap": 64}})).data
            assert begun["observation"]["p99_ttft_ms"] is None  # nothing has been served
            assert stepped["info"]["step"] == 1
            with pytest.raises(ToolError) as error:
                await client.call_tool("step", own | {"action": {"batch_cap": 0}})
            assert str(error.value) == "batch_cap is 0; it must be a whole number from 1 to 512"
            graded = (await client.call_tool("grade", own)).data
            assert graded["steps"] == stepped["info"]["step"] == 1 and graded["verified"]

    asyncio.run(play())


def test_the_sdks_client_plays(server: LocalServer) -> None:
    """Over streamable HTTP, from initialize on."""

    async def play() -> None:
        async with (
            streamable_http_client(f"{server.url}/mcp") as (receiving, sending, _),
            mcp.ClientSession(receiving, sending) as session,
        ):
            about = await session.initialize()
            assert (about.serverInfo.name, about.serverInfo.version) == (
                "jaxserve",
                jaxserve.__version__,
            )
            assert {tool.name for tool in (await session.list_tools()).tools} == _TOOLS
            begun = await session.call_tool("reset", {"task_id": 1, "seed": 3})
            assert begun.structuredContent is not None
            session_id = begun.structuredContent["session_id"]
            action = {"session_id": session_id, "action": {}}
            stepped = await session.call_tool("step", action)
            assert stepped.structuredContent is not None
            assert stepped.structuredContent["info"]["step"] == 1
            refused = await session.call_tool("observe", {"session_id": "nobody"})
            assert refused.isError

    asyncio.run(play())


def test_initialize_is_answered_at_every_door(server: LocalServer, http: httpx.Client) -> None:
    """Also for clients that want no stream; a notification is not answered."""
    asked = call("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={})
    plain = http.post("/mcp", json=asked).json()["result"]
    assert (plain["protocolVersion"], plain["serverInfo"]["name"]) == ("2025-03-26", "jaxserve")
    assert http.post("/mcp", json=call("notifications/initialized", None)).status_code == 202
    with connect(server.url.replace("http", "ws") + "/mcp") as socket:
        socket.send(json.dumps(call("initialize", 7, protocolVersion="none")))
        answer = json.loads(socket.recv(timeout=300.0))
        assert (answer["id"], "tools" in answer["result"]["capabilities"]) == (7, True)
        socket.send(json.dumps(call("notifications/initialized", None)))
        socket.send(json.dumps(call("ping", 8)))
        assert json.loads(socket.recv(timeout=300.0)) == {"jsonrpc": "2.0", "id": 8, "result": {}}
