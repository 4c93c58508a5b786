"""The fuzz of the fault benchmark: a server survives it, and one that does not is told apart."""

from __future__ import annotations

import asyncio
import http.server
import json
import random
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.server_fuzz import Fuzz, fuzz_http, fuzz_schema, fuzz_sockets, fuzz_websocket
from server.local import LocalServer


@pytest.fixture
def failing() -> Iterator[str]:
    """The address of one that answers everything by 500."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(2**20)
                connection.sendall(
                    b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_a_server_survives(server: LocalServer) -> None:
    """A little of everything, and some of it is right."""
    dice = random.Random(1)
    requests = fuzz_http(server.url, 60, dice)
    messages = asyncio.run(fuzz_websocket(server.url, 60, dice))
    connections = fuzz_sockets(server.url, 60, dice)
    for fuzz in (requests, messages, connections):
        assert (fuzz.tried, fuzz.survived) == (60, 60), fuzz
    assert " 200" in requests.seen and " 422" in requests.seen
    assert "VALIDATION_ERROR" in messages.seen
    assert " 400" in connections.seen and "reset by the client" in connections.seen


def test_failures_are_counted(failing: str) -> None:
    """Each answer of status 5xx."""
    fuzz = fuzz_http(failing, 5, random.Random(1))
    assert (fuzz.tried, fuzz.failed + fuzz.unanswered, fuzz.survived) == (5, 5, 0)
    assert fuzz.failed > 0
    assert Fuzz(10, 2, 3, "").survived == 5
    assert Fuzz(10, 2, 3, "", told=1).survived == 4


def test_what_is_the_servers_own_is_told_apart(server: LocalServer) -> None:
    """An answer that holds it has not survived."""
    assert fuzz_http(server.url, 20, random.Random(1), ["absent"]).told == 0
    found = fuzz_http(server.url, 20, random.Random(1), ["absent", "error"])
    assert 0 < found.told == found.tried - found.survived
    messages = asyncio.run(fuzz_websocket(server.url, 20, random.Random(1), ["type"]))
    assert messages.told == messages.tried == 20


@pytest.mark.parametrize(
    "cases",
    [2, pytest.param(15, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.deep)],
)
def test_requests_made_from_the_schema(server: LocalServer, cases: int) -> None:
    """schemathesis makes requests for every route, and none breaks the server."""
    found = fuzz_schema(server.url, cases, random.Random(1), ["absent"])
    assert found.survived == found.tried > 30, found
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("status", [501, 503])
def test_failures_of_the_schema_are_named(status: int) -> None:
    """An answer of status 5xx, 501 as any other, is tried and failed; its route and reason are
    said."""
    operation = {"responses": {"200": {"description": "Fine"}}}
    schema = {
        "openapi": "3.1.0",
        "info": {"title": "", "version": "1"},
        "paths": {"/good": {"get": operation}, "/bad": {"get": operation}},
    }

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, code = (json.dumps(schema), 200) if self.path != "/bad" else ("not|yet", status)
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        found = fuzz_schema(f"http://127.0.0.1:{stub.server_port}", 1, random.Random(1))
        stub.shutdown()
    assert (found.tried, found.failed, found.survived) == (2, 1, 1)
    assert found.seen == f"1 200, 1 {status}; 1 GET /bad: not/yet"
