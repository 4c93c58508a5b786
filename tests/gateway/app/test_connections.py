"""Limits of connections: heads, slow and dead clients, and how many there may be."""

from __future__ import annotations

import socket

import pytest

from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S, wait_until


def connect(gateway: RunningGateway, sends: bytes = b"") -> socket.socket:
    """A connection on which something is sent."""
    client = socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S)
    client.sendall(sends)
    return client


def read_to_end(client: socket.socket) -> bytes:
    """All that is said until the gateway closes the connection."""
    said = b""
    try:
        while part := client.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def test_a_head_that_is_too_large(engine: StubEngine, start: Start) -> None:
    """Whole or endless, 431 and nothing else."""
    gateway = start([engine], max_head_bytes=2000)
    answer = gateway.post(headers={"x-large": "x" * 3000})
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "head_too_large"
    with connect(gateway, b"GET /health HTTP/1.1\r\nx: ") as client:
        try:
            for _ in range(1000):
                client.sendall(b"y" * 1000)
        except OSError:
            pass  # closed on us, as it should be
        said = read_to_end(client)
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
    wait_until(lambda: gateway.post().status_code == 200)
    assert len(engine.seen) == 1


@pytest.mark.parametrize("sends", [b"", b"G", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_end(sends: bytes, engine: StubEngine, start: Start) -> None:
    """The connection is closed; so is one that says nothing at all."""
    gateway = start([engine], head_s=0.2)
    with connect(gateway, sends) as client:
        assert read_to_end(client) == b""


def test_a_connection_serves_many(engine: StubEngine, start: Start) -> None:
    """The limit of a head is for each request, not for the connection."""
    gateway = start([engine], max_head_bytes=1200, head_s=5.0)
    for _ in range(30):
        assert gateway.post(headers={"x-some": "x" * 300}).status_code == 200
    assert len(gateway.app.ledger.records.ring) == 30
    assert len(gateway.connections()) == 1


def test_trailers_are_dropped(engine: StubEngine, gateway: RunningGateway) -> None:
    """Headers after a body reach nobody."""
    body = b"2\r\n{}\r\n0\r\nx-late: " + b"y" * 5000 + b"\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    with connect(gateway, head + b"transfer-encoding: chunked\r\n\r\n" + body) as client:
        assert read_to_end(client).startswith(b"HTTP/1.1 200 ")
    assert "x-late" not in engine.seen[0].headers


def test_an_absolute_target_leads_nowhere_else(engine: StubEngine, gateway: RunningGateway) -> None:
    """A proxy's way of asking is answered as any other: by the operator's engine."""
    for target, host in ((b"http://127.0.0.1:1/v1/models", b"evil"), (b"/v1/models", b"evil:1")):
        request = b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host)
        with connect(gateway, request) as client:
            assert b'"id":"stub"' in read_to_end(client)
    with connect(gateway, b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: x\r\n\r\n") as client:
        client.shutdown(socket.SHUT_WR)
        assert b" 200 " not in read_to_end(client)


def test_nonsense(gateway: RunningGateway) -> None:
    """Is answered 400, or not at all, and the next client is served."""
    for sends in (b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 50 + b"x" * 99):
        with connect(gateway, sends) as client:
            client.shutdown(socket.SHUT_WR)
            said = read_to_end(client)
            assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
    assert gateway.http.get("/health").status_code == 200


def test_too_many_connections(engine: StubEngine, start: Start) -> None:
    """One more is told so and closed; when others leave there is room."""
    gateway = start([engine], max_connections=3)
    clients = [connect(gateway) for _ in range(3)]
    wait_until(lambda: len(gateway.connections()) == 3)
    with connect(gateway) as client:
        assert read_to_end(client).startswith(b"HTTP/1.1 503 ")
    assert gateway.state()["in_gateway"] == 0, "control has a limit of its own"
    for client in clients:
        client.close()
    wait_until(lambda: not gateway.connections())
    assert gateway.post().status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads(stream: bool, engine: StubEngine, start: Start) -> None:
    """It is given up, its connection is ended and the engine is free."""
    gateway = start([engine], write_s=0.3)
    # More than the sockets of both sides take.
    stub = {"tokens": 400, "pad": 50_000} if stream else {"tokens": 1_500_000}
    client = Leaver(gateway.port, {"stream": stream, "stub": stub})
    (record,) = gateway.records(1)
    assert (record["outcome"], record["reason"]) == ("cancelled", "client_stalled")
    wait_until(lambda: not gateway.connections(), "the connection's end")
    assert gateway.state()["pools"]["default"]["running"] == 0
    wait_until(lambda: engine.seen[0].outcome != "running", "the engine's notice")
    client.leave()
    assert gateway.post().status_code == 200


@pytest.mark.parametrize("ending", [b"", b"connection: close\r\n"])
def test_the_rest_of_an_answer_that_nobody_reads(
    ending: bytes, engine: StubEngine, start: Start
) -> None:
    """Where all of it is written, but not all has left, the connection ends nevertheless."""
    gateway = start([engine], head_s=1.0)
    body = b'{"stub": {"tokens": 9000}}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n"
    client = socket.socket()
    # So little fits into the sockets that much stays with the gateway.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    gateway.shrink_send_buffers()
    client.connect(("127.0.0.1", gateway.port))
    client.sendall(head % (len(body), ending) + body)
    gateway.records(1)
    wait_until(lambda: not gateway.connections(), "the connection's end")
    client.close()


def test_a_client_that_reads_slowly_is_served(engine: StubEngine, gateway: RunningGateway) -> None:
    """Back-pressure reaches the engine: nothing is lost, and little is kept in between."""
    # More than the sockets of both sides take.
    body = {"model": "stub", "stream": True, "stub": {"tokens": 400, "pad": 50_000}}
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        raw = answer.iter_raw(1000)
        first = next(raw)
        assert engine.seen[0].outcome == "running"
        rest = first + b"".join(raw)
    assert rest.count(b'"text":"t') == 400 and rest.endswith(b"data: [DONE]\n\n")
