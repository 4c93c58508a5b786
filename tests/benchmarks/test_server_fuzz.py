"""The fuzz of the fault benchmark: a server survives it, and one that does not is told apart."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator

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


def test_requests_made_from_the_schema(server: LocalServer) -> None:
    """Some for every route, and none breaks the server."""
    found = fuzz_schema(server.url, 2, random.Random(1), ["absent"])
    assert found.survived == found.tried > 30
