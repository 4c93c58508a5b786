"""Behind a proxy, and before a server that is full: what is refused for now is waited out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from jaxserve.client import ConnectionLost, ServeClient, ServerError, async_client
from jaxserve.client.transports import HttpTransport, WebSocketTransport
from server.json_responses import answer_problems
from server.request_errors import OutOfTime, Overloaded, RefusedRequest
from tests.server_thread import FakeServer

_OURS = {"error": "the engine failed", "detail": "the engine failed"}


class Stub(FakeServer):
    """A server with one session, over HTTP and WebSocket, whose answers can be spoilt."""

    def __init__(self) -> None:
        self.spoilt: list[tuple[int, dict[str, str], bytes]] = []
        """answers to the next POST requests, in place of what was asked for."""
        self.socket: int | dict[str, Any] | None = 403
        """refusal of a WebSocket, by a status or by a message; None accepts it."""
        self.steps = 0
        self.asked: list[str] = []
        http = Route("/{path}", self._http, methods=["GET", "POST"])
        super().__init__([WebSocketRoute("/ws", self._websocket), http])

    def answer(self) -> dict[str, Any]:
        about = {"session_id": "s", "step": self.steps}
        return {"observation": {"metadata": about}, "reward": 0.5, "done": False}

    async def _http(self, request: Request) -> Response:
        path = request.url.path
        if request.method == "POST":
            self.asked.append(path)
            if self.spoilt:
                status, headers, body = self.spoilt.pop(0)
                return Response(body, status, headers)
            self.steps = 0 if path == "/reset" else self.steps + 1
        return JSONResponse({"results": [self.answer()]} if path == "/agent" else self.answer())

    async def _websocket(self, websocket: WebSocket) -> None:
        self.asked.append("/ws")
        if isinstance(self.socket, int):
            await websocket.send_denial_response(Response(status_code=self.socket))
            return
        await websocket.accept()
        async for message in websocket.iter_json():
            if self.socket is not None:
                await websocket.send_json({"type": "error", "data": self.socket})
                break
            self.steps += message["type"] == "step"
            await websocket.send_json({"type": "observation", "data": self.answer()})


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as made:
        yield made


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (502, {}, b"<html>Bad Gateway</html>"),
        (503, {}, b'{"error": "no backend"}'),
        (504, {}, b""),
        (503, {"Retry-After": "0"}, json.dumps(_OURS).encode()),
        (429, {"Retry-After": "1"}, json.dumps(_OURS).encode()),
    ],
)
def test_a_refusal_for_now_is_waited_out(
    stub: Stub, status: int, headers: dict[str, str], body: bytes
) -> None:
    """reset and step wait as long as the server asks, and a step is taken once."""
    with ServeClient(stub.url) as env:
        stub.spoilt = [(status, headers, body)] * 2
        started = time.monotonic()
        env.reset(task_id=1)
        assert time.monotonic() - started >= 2.0 * float(headers.get("Retry-After", 0))
        stub.spoilt = [(status, headers, body)]
        assert env.step({}).info["step"] == 1
    assert stub.steps == 1


@pytest.mark.parametrize(
    ("problem", "waits"),
    [
        (Overloaded("9 long computations are under way; try again later"), True),
        (OutOfTime("the computation was stopped after 300 s"), False),
    ],
)
def test_the_servers_own_503_is_waited_out_where_that_helps(
    stub: Stub, problem: RefusedRequest, waits: bool
) -> None:
    """The client waits where too many requests wait, and not where one takes too long."""
    app = FastAPI()
    answer_problems(app)

    @app.get("/")
    async def refuse() -> None:
        raise problem

    refused = TestClient(app).get("/")
    assert refused.headers.get("retry-after") == ("1" if waits else None)
    with ServeClient(stub.url) as env:
        stub.spoilt = [(refused.status_code, dict(refused.headers), refused.content)]
        if waits:
            env.reset()
        else:
            with pytest.raises(ServerError, match="stopped after 300 s"):
                env.reset()
    assert stub.asked.count("/reset") == 1 + waits


def test_patience_ends(stub: Stub) -> None:
    """The error is the server's last; a wait beyond the time limit is not begun."""
    stub.spoilt = [(429, {"Retry-After": "50"}, json.dumps(_OURS).encode())]
    with ServeClient(stub.url, patience_s=1.0) as env, pytest.raises(ConnectionLost) as error:
        env.reset()
    assert "the engine failed" in str(error.value)


def test_an_engine_that_failed_is_not_asked_again(stub: Stub) -> None:
    """The server's own 502 says that no window was counted; the client's user decides."""
    with ServeClient(stub.url) as env:
        env.reset()
        stub.spoilt = [(502, {}, json.dumps(_OURS).encode())]
        with pytest.raises(ServerError, match="the engine failed"):
            env.step({})
    assert stub.steps == 0


def test_driving_is_repeated_only_where_nothing_was_done(stub: Stub) -> None:
    """After 429; after 502 the windows may have been played."""
    with ServeClient(stub.url) as env:
        env.reset()
        stub.spoilt = [(429, {}, b"")]
        assert env.drive("default")[0].info["step"] == 1
        stub.spoilt = [(502, {}, b"")]
        with pytest.raises(ConnectionLost):
            env.drive("default")
    assert stub.asked.count("/agent") == 3


_FULL = {"message": "at capacity", "code": "CAPACITY_REACHED"}


@pytest.mark.parametrize("refusal", [_FULL, 503, 429, 403])
def test_websocket_is_tried_again_later(
    stub: Stub, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP plays on meanwhile, in the same session."""
    monkeypatch.setattr(async_client, "_WEBSOCKET_AGAIN_S", 0.3)
    stub.socket = refusal
    with ServeClient(stub.url) as env:
        env.reset()
        assert env.step({}).info["step"] == 1
        assert isinstance(env._client._transport, HttpTransport)
        time.sleep(0.35)
        assert env.step({}).info["step"] == 2  # still refused
        stub.socket = None
        assert env.step({}).info["step"] == 3  # not tried at every step
        assert isinstance(env._client._transport, HttpTransport)
        time.sleep(0.65)
        assert [env.step({}).info["step"] for _ in range(2)] == [4, 5]
        assert isinstance(env._client._transport, WebSocketTransport)
    assert stub.asked.count("/ws") == 3
