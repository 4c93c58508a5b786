"""Behind a proxy, and before a server that is full: what is refused for now is waited out."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from jaxserve.client import ConnectionLost, ServeClient, ServerError, async_client
from jaxserve.client.transports import HttpTransport, WebSocketTransport
from server.json_responses import answer_problems
from server.request_errors import OutOfTime, Overloaded, RefusedRequest

_OURS = {"error": "the engine failed", "detail": "the engine failed"}


class Stub:
    """A server with one session, over HTTP and WebSocket, whose answers can be spoilt."""

    def __init__(self) -> None:
        self.spoilt: list[tuple[int, dict[str, str], bytes]] = []
        """answers to the next HTTP requests, in place of what was asked for."""
        self.socket: int | dict[str, Any] | None = 403
        """refusal of a WebSocket, by a status or by a message; None accepts it."""
        self.steps = 0
        self.asked: list[str] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                stub.asked.append(self.path)
                if stub.spoilt:
                    status, headers, body = stub.spoilt.pop(0)
                    self.respond(status, body, headers)
                    return
                stub.steps = 0 if self.path == "/reset" else stub.steps + 1
                body = {"results": [stub.answer()]} if self.path == "/agent" else stub.answer()
                self.respond(200, json.dumps(body).encode(), {})

            def do_GET(self) -> None:
                if "Upgrade" in self.headers:
                    self.websocket()
                else:
                    self.respond(200, json.dumps(stub.answer()).encode(), {})

            def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def websocket(self) -> None:
                stub.asked.append("/ws")
                self.close_connection = True
                if isinstance(stub.socket, int):
                    self.respond(stub.socket, b"", {})
                    return
                key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
                accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
                self.send_response(101)
                for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
                    self.send_header(name, value)
                self.send_header("Sec-WebSocket-Accept", accept)
                self.end_headers()
                while message := self.read_text():
                    if stub.socket is not None:
                        self.write_text({"type": "error", "data": stub.socket})
                        return
                    stub.steps += message["type"] == "step"
                    self.write_text({"type": "observation", "data": stub.answer()})

            def read_text(self) -> dict[str, Any] | None:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8:
                    return None
                size = head[1] & 127
                if size == 126:
                    size = int.from_bytes(self.rfile.read(2), "big")
                mask = self.rfile.read(4)
                data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size)))
                return json.loads(data)

            def write_text(self, message: dict[str, Any]) -> None:
                data = json.dumps(message).encode()
                self.wfile.write(b"\x81\x7e" + len(data).to_bytes(2, "big") + data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def answer(self) -> dict[str, Any]:
        about = {"session_id": "s", "step": self.steps, "pad": "x" * 130}
        return {"observation": {"metadata": about}, "reward": 0.5, "done": False}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


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
