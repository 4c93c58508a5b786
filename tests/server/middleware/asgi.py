"""Middleware without a server: an application that answers, and a client that says what it says."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

Messages = list[dict[str, Any]]


def scope(kind: str = "http", **more: Any) -> dict[str, Any]:
    """A request or a WebSocket as uvicorn hands it over; ``headers`` as plain text."""
    headers = more.pop("headers", {})
    plain = {"type": kind, "path": "/ws", "query_string": b"", "client": ("10.0.0.1", 50_000)}
    if kind == "http":
        plain["method"] = "POST"
    return plain | more | {"headers": [(k.encode(), v.encode()) for k, v in headers.items()]}


class Player:
    """An application that accepts, answers nothing, and ends with the connection."""

    def __init__(self) -> None:
        self.seen: Messages = []
        self.scopes: Messages = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            self.seen.append(message)
            if message["type"] == "websocket.disconnect":
                return


async def call(app: Any, of: dict[str, Any], *says: tuple[float, dict[str, Any]]) -> Messages:
    """What is sent to a client that says something after so many seconds each, and then nothing."""
    sent: Messages = []
    left = list(says)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        wait_s, message = left.pop(0)
        await asyncio.sleep(wait_s)
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    await app(of, receive, send)
    return sent


def refusal(sent: Messages) -> tuple[int, str]:
    """Status and sentence of an answer in place of what was asked for."""
    start, body = sent
    assert start["type"].endswith("http.response.start")
    return start["status"], orjson.loads(body["body"])["error"]
