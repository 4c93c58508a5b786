"""Frames that no client should send: the sender gets an error message, all others play on.

Sentences for single messages are in ``protocols/test_messages.py``; ``benchmarks/server_faults.py``
generates requests, messages and bytes, and watches the memory of a server.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from server.local import LocalServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(server: LocalServer) -> str:
    return server.url.replace("http", "ws") + "/ws"


def say(sender: ClientConnection, kind: str, **data: Any) -> Any:
    sender.send(json.dumps({"type": kind, "data": data}))
    return json.loads(sender.recv())


LARGEST_BYTES = 16 * 2**20
"""A message that uvicorn reads by its own command, as the tests start it."""
FRAMES: list[str | bytes] = [
    '"step"',
    "{",
    '{"type": 5}',
    '{"type": "step", "data": {"batch_cap": NaN}}',
    '{"type": "step", "data": {"kv_budget_fraction": Infinity}}',
    '{"type": "step", "data": {"batch_cap": 1e999}}',
    '{"type": "step", "data": {"batch_cap": "\\ud800"}}',
    '{"type": "step", "data": {"metadata": {"step": [[]]}}}',
    '{"type": "step", "data": {"' + "x" * 50_000 + '": 1}}',
    '{"type": "reset", "data": {"seed": 1e99}}',
    '{"type": "reset", "data": {"task_id": "../../etc/passwd"}}',
    '{"type": "reset", "data": {"episode_id": "' + "x" * 300 + '"}}',
    '{"type": "reset", "data": {"episode_id": "\\ud800"}}',
    '{"type": "reset", "data": {"config": {"alpha": NaN}}}',
    '{"type": "reset", "data": {"config": {"deployment": {"num_gpus": 1e9}}}}',
    '{"type": "reset", "data": {"self": 1, "kwargs": 2}}',
    '{"type": "reset", "data": {"resume": {"a": 1}}}',
    '{"type": "mcp", "data": {"method": []}}',
    '{"type":' * 5_000,
    "x" * 3_000_000,
    "x" * (LARGEST_BYTES + 1),
    b"\x00\xff\xfe" * 1000,
    b"",
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: repr(frame[:40]))
def test_a_bad_frame_harms_nobody_else(address: str, frame: str | bytes) -> None:
    """The server answers the frame, or closes its connection if the frame is too large; another
    session goes on."""
    with connect(address) as beside, connect(address) as sender:
        say(beside, "reset", task_id=1, seed=1)
        mine = say(sender, "reset", task_id=2, seed=1)["data"]["metadata"]["session_id"]
        if len(frame) > LARGEST_BYTES:
            with pytest.raises(ConnectionClosed) as ended:
                sender.send(frame)
                sender.recv(timeout=300.0)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
        else:
            sender.send(frame)
            answer = json.loads(sender.recv(timeout=300.0))
            assert answer["type"] in ("error", "mcp", "observation"), answer
        assert say(beside, "step")["data"]["metadata"]["step"] == 1
        # Nor is its own session lost: a new connection goes on with it.
        with connect(address) as again:
            assert say(again, "reset", resume=mine)["data"]["metadata"]["session_id"] == mine


def vanished(port: int) -> socket.socket:
    """A WebSocket whose client has been switched off: it answers nothing, pings included."""
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b"101 Switching Protocols" in raw.recv(4096)
    return raw


def test_half_open_sockets_give_their_place_back(start_server: Any) -> None:
    """A client that vanishes without a word does not keep others out for ever."""
    pings = ("--ws-ping-interval", "1", "--ws-ping-timeout", "1")
    places = {"MAX_CONCURRENT_ENVS": "2", "JAXSERVE_SOCKETS_PER_ADDRESS": "2"}
    server = start_server(arguments=pings, **places)
    address = server.url.replace("http", "ws") + "/ws"
    gone = [vanished(server.port) for _ in range(2)]

    def turned_away() -> bool:
        try:
            with connect(address) as one:
                return say(one, "reset")["type"] == "error"
        except (ConnectionClosed, InvalidStatus):
            return True

    assert turned_away()
    assert any(not turned_away() for _ in range(60) if time.sleep(0.5) is None)
    for raw in gone:
        raw.close()
