"""HTTP, WebSocket and MCP refuse in the same words, and no message ends a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from websockets.sync.client import ClientConnection, connect

from server.local import LocalServer
from server.protocols.mcp_transport import McpTransport
from server.protocols.messages import CheckMessages


@pytest.fixture(params=["/ws", "/mcp"])
def socket(request: pytest.FixtureRequest, server: LocalServer) -> Iterator[ClientConnection]:
    with connect(server.url.replace("http", "ws") + request.param) as connection:
        yield connection


def ask(socket: ClientConnection, message: Any) -> Any:
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(socket.recv(timeout=300.0))


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"batch_cap": 0}, "batch_cap is 0; it must be a whole number from 1 to 512"),
        ({"batch_size": 513}, "batch_cap is 513; it must be a whole number from 1 to 512"),
        ({"batch_cap": "many"}, "batch_cap is 'many'; it must be a whole number from 1 to 512"),
        ({"kv_budget": True}, "kv_budget_fraction is True; it must be a number from 0.1 to 1"),
        (
            {"kv_budget": float("nan")},
            "kv_budget_fraction is nan; it must be a number from 0.1 to 1",
        ),
        (
            {"priority_routing": None},
            "priority_routing is None; it must be a whole number from 0 to 1",
        ),
        ({"metadata": 5}, "metadata is 5; it must be a JSON object"),
        ({"batch_cap": 1, "batch_size": 1}, "batch_cap is given twice; name it once"),
    ],
)
def test_all_doors_say_the_same_of_a_wrong_action(
    server: LocalServer, http: httpx.Client, action: dict[str, Any], said: str
) -> None:
    """Field, value, and what is allowed; and no window is taken."""
    session_id = http.post("/reset", json={"task_id": 1, "seed": 1}).json()["session_id"]
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"action": action, "session_id": session_id})
    assert http.post("/step", content=body, headers=headers).json()["error"] == said
    tool = json.dumps(call("step", session_id=session_id, action=action))
    assert http.post("/mcp", content=tool, headers=headers).json()["error"]["message"] == said
    with connect(server.url.replace("http", "ws") + "/ws") as socket:
        ask(socket, {"type": "reset", "data": {"resume": session_id}})
        answer = ask(socket, {"type": "step", "data": action})
        assert answer == {"type": "error", "data": {"message": said, "code": "VALIDATION_ERROR"}}
        assert ask(socket, {"type": "state"})["data"]["step_count"] == 0


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("[1, 2]", "the request is [1, 2]; it must be a JSON object"),
        ("null", "the request is None; it must be a JSON object"),
        ("", "the request is no JSON: expecting value at character 0"),
        (b"{}", "the request is binary; it must be the text of a JSON object"),
        ("[" * 100_000, "the request is no JSON: it nests too deeply"),
        (f'{{"type": {"9" * 5000}}}', "the request is no JSON: a number in it has thousands"),
        ('{"type": "\\ud800"}', "the request is no JSON: its text is not Unicode"),
        ('{"data": {"a": 1, "a": 2}}', "'a' is given twice in one object of the request"),
    ],
    ids=["list", "null", "empty", "binary", "deep", "long number", "half a pair", "twice"],
)
def test_a_message_that_cannot_be_read_ends_nothing(
    socket: ClientConnection, frame: str | bytes, said: str
) -> None:
    """A sentence comes back, twice in a row, over either WebSocket."""
    for _ in range(2):
        answer = ask(socket, frame)
        error = answer["data"] if "type" in answer else answer["error"]
        assert error["message"].startswith(said)
        if "code" in error and isinstance(error["code"], int):
            assert error["code"] == (-32700 if "no JSON" in said else -32600)


def test_a_body_names_each_field_once(http: httpx.Client) -> None:
    """JSON leaves open which of two values counts."""
    session_id = http.post("/reset", json={"task_id": 1, "seed": 1}).json()["session_id"]
    body = f'{{"session_id": "{session_id}", "action": {{"batch_cap": 1, "batch_cap": 512}}}}'
    answer = http.post("/step", content=body, headers={"Content-Type": "application/json"})
    said = "'batch_cap' is given twice in one object of the request"
    assert (answer.status_code, answer.json()["error"]) == (400, said)
    assert http.get("/state", params={"session_id": session_id}).json()["step_count"] == 0


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        ({"type": "jump"}, "UNKNOWN_TYPE", "type is 'jump'; it must be one of reset, step,"),
        ({}, "UNKNOWN_TYPE", "type is None; it must be one of"),
        ({"type": "step"}, "VALIDATION_ERROR", "data is missing"),
        ({"type": "step", "data": 5}, "VALIDATION_ERROR", "data is 5; it must be a JSON object"),
        ({"type": "reset", "data": []}, "VALIDATION_ERROR", "data is []; it must be a JSON object"),
        (
            {"type": "step", "data": {}, "when": 1},
            "VALIDATION_ERROR",
            "field 'when' is unknown; allowed are type, data",
        ),
    ],
)
def test_a_wrong_message_is_explained(
    server: LocalServer, message: dict[str, Any], code: str, said: str
) -> None:
    """Under OpenEnv's codes."""
    with connect(server.url.replace("http", "ws") + "/ws") as socket:
        error = ask(socket, message)["data"]
        assert error["code"] == code
        assert error["message"].startswith(said)


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"jsonrpc": "1.0"}, -32600, "jsonrpc is '1.0'; it must be '2.0'"),
        ({"method": 5}, -32600, "method is 5; it must be text"),
        ({"params": [1]}, -32602, "params is [1]; it must be a JSON object"),
        ({"params": {"name": ["x"]}}, -32602, "params.name is ['x']; it must be text"),
        ({"params": {"session_id": []}}, -32602, "params.session_id is []; it must be text"),
        (
            {"params": {"name": "step", "arguments": None}},
            -32602,
            "params.arguments is None; it must be a JSON object",
        ),
    ],
)
def test_a_wrong_call_is_explained(
    server: LocalServer, http: httpx.Client, changed: dict[str, Any], code: int, said: str
) -> None:
    """By JSON-RPC's codes, over HTTP and both WebSockets."""
    wrong = call("list_tasks") | changed
    address = server.url.replace("http", "ws")
    with connect(f"{address}/mcp") as mcp, connect(f"{address}/ws") as ws:
        answers = [
            http.post("/mcp", json=wrong).json(),
            ask(mcp, wrong),
            ask(ws, {"type": "mcp", "data": wrong})["data"],
        ]
    assert (
        answers
        == [{"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": said, "data": None}}] * 3
    )


@pytest.mark.parametrize("number", [2**64, -(2**70), 10**400], ids=["2^64", "-2^70", "10^400"])
def test_large_numbers_end_nothing(server: LocalServer, number: int) -> None:
    """Ids of calls come back as they were, beyond what 64 bits hold; no 500, no connection lost."""
    right = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
    wrong = right | {"method": 5}
    for body in (right, wrong):
        answer = httpx.post(f"{server.url}/mcp", content=json.dumps(body), timeout=300.0)
        assert (answer.status_code, answer.json()["id"]) == (200, number)
    with connect(server.url.replace("http", "ws") + "/mcp") as socket:
        assert ["result" in ask(socket, body) for body in (right, wrong)] == [True, False]
        assert ask(socket, right)["id"] == number
    with connect(server.url.replace("http", "ws") + "/ws") as socket:
        for body in (right, wrong):
            assert ask(socket, {"type": "mcp", "data": body})["data"]["id"] == number
        said = ask(socket, {"type": "reset", "data": {"seed": number}})["data"]["message"]
        assert said.startswith("seed is ")
        assert ask(socket, {"type": "state"})["type"] == "state"


def test_a_client_that_leaves_before_its_answer_ends_the_connection() -> None:
    """Servers raise an OSError on an answer to it: no failure of the application."""
    seen: list[dict[str, Any]] = []

    async def openenv(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await receive())

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.receive", "text": "no JSON"}

    async def send(message: Any) -> None:
        raise ConnectionResetError

    app = CheckMessages(openenv, McpTransport(FastMCP("none")))
    asyncio.run(app({"type": "websocket", "path": "/ws"}, receive, send))
    assert [message["type"] for message in seen] == ["websocket.disconnect"]
