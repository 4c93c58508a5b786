"""Requests that the gateway itself refuses stand in their session, and fill no disk."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jaxserve.gateway.recording import session as sessions
from jaxserve.gateway.recording.records import RecordFile
from jaxserve.rollouts.builders import per_request, prefix_merging
from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import CHAT, Agent, started, user
from tests.gateway.token_engine import TokenEngine
from tests.patience import wait_until

ASKED: dict[str, Any] = {"model": "stub", "messages": [user("a")]}
PLAIN = json.dumps(ASKED).encode()
UNSUPPORTED = json.dumps(ASKED | {"return_token_ids": True}).encode()
MOST = 4096
COMPLETIONS = "/v1/completions"


def post(agent: Agent, content: bytes, path: str = CHAT, **headers: str) -> Any:
    """A request with any body."""
    return agent.gateway.http.post(path, content=content, headers={**agent.headers, **headers})


@pytest.mark.parametrize(
    "case",
    [
        (CHAT, UNSUPPORTED, {}, 400, "not_supported", UNSUPPORTED),
        (CHAT, b"{'model': 1", {}, 400, "bad_request", b"{'model': 1"),
        (CHAT, b"\xff\xfe{", {}, 400, "bad_request", "\ufffd\ufffd{".encode()),
        (CHAT, b"[]", {}, 400, "bad_request", b"[]"),
        (CHAT, b" " * (MOST + 1), {}, 413, "body_too_large", b""),
        (CHAT, PLAIN, {"x-pool": "none"}, 400, "unknown_pool", PLAIN),
        (CHAT, PLAIN, {"x-priority": "high"}, 400, "bad_request", PLAIN),
        (COMPLETIONS, b'{"prompt": "a"}', {}, 400, "not_recordable", b'{"prompt": "a"}'),
    ],
    ids=["feature", "json", "text", "object", "size", "pool", "priority", "route"],
)
def test_what_is_refused_is_recorded(
    case: tuple[str, bytes, dict[str, str], int, str, bytes],
    vllm: TokenEngine,
    start: Start,
    tmp_path: Path,
) -> None:
    """As a failure with its status, its reason and what came; no key stands there, nothing follows
    it, and builders count it."""
    path, content, headers, status, reason, kept = case
    agent = Agent(started(start, vllm, tmp_path, max_body_bytes=MOST))
    answer = post(agent, content, f"{path}?key={agent.key}", **headers)
    assert answer.status_code == status and not vllm.seen
    agent.say(user("a"))
    record, spoken = agent.records()
    assert (record.outcome, record.status, record.reason) == ("failed", status, reason)
    assert record.request_id == answer.headers["x-gateway-request-id"]
    assert (record.received, record.sent, record.choices) == (kept, None, ())
    assert record.ended_unix_s >= record.arrived_unix_s > 0 and not record.usable
    assert spoken.link.how == "root" and spoken.usable
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert agent.key.encode() not in written
    for build in (per_request, prefix_merging):
        trajectory = build([record, spoken])
        assert (trajectory.failures, trajectory.dropped) == ({reason: 1}, {})
        assert trajectory.trainable == spoken.sampled
    counts = agent.gateway.control.get(f"/sessions/{agent.id}").json()["counts"]
    assert (counts["completions"], counts["failures"]) == (1, 1)


def test_a_full_gateway_is_recorded(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Of its refusals nothing has been read; one that counts tokens is none of a completion."""
    agent = Agent(started(start, vllm, tmp_path, max_requests=1))
    first = threading.Thread(target=agent.say, args=[user("a")], kwargs={"stub": {"gated": True}})
    first.start()
    vllm.wait_for(1)
    assert post(agent, PLAIN).status_code == 429
    assert post(agent, PLAIN, "/v1/messages/count_tokens").status_code == 429
    (record,) = agent.records()
    assert (record.outcome, record.status) == ("rejected", 429)
    assert (record.reason, record.received) == ("too_many_requests", b"")
    vllm.seen[0].allow()
    first.join(300)
    wait_until(lambda: len(agent.records()) == 2, "the other")


def test_a_gateway_that_stops_is_recorded(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """As a full one; what asks for no output is none of the session."""
    agent = Agent(started(start, vllm, tmp_path, drain_s=60.0))
    assert agent.gateway.http.get("/v1/models", headers=agent.headers).is_success
    agent.gateway.app.in_flight.stop(60.0)
    assert post(agent, PLAIN).status_code == 503
    assert post(agent, PLAIN, "/v1/messages/count_tokens").status_code == 503
    assert agent.gateway.http.get("/v1/models", headers=agent.headers).status_code == 503
    (record,) = agent.records()
    assert (record.outcome, record.status) == ("failed", 503)
    assert (record.reason, record.received) == ("gateway_stopping", b"")
    (booked,) = agent.gateway.records(1)
    assert (booked["id"], booked["reason"]) == (record.request_id, "gateway_stopping")


def test_what_is_no_request_of_a_session(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Another route or method, a head that is too large and a key that is none: the page names them
    all as not recorded."""
    agent = Agent(started(start, vllm, tmp_path, max_head_bytes=4096))
    for method, path, headers, status in (
        ("POST", "/v1/embeddings", {}, 404),
        ("GET", CHAT, {}, 405),
        ("POST", CHAT, {"x": "y" * 4096}, 431),
        ("POST", CHAT, {"Authorization": "Bearer sk-other"}, 401),
    ):
        asked = {**agent.headers, **headers}
        assert agent.gateway.http.request(method, path, headers=asked).status_code == status
    assert not agent.records() and not vllm.seen


def test_refusals_that_cannot_be_recorded(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such refusals take the place of no other, and the gateway's own records have them."""
    monkeypatch.setattr(sessions, "_MAX_UNSENT", 1)
    agent.gateway.app.in_flight.stop(60.0)
    add = RecordFile.add

    def full(self: RecordFile, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordFile, "add", full)
    assert [post(agent, PLAIN).status_code for _ in range(3)] == [503] * 3
    monkeypatch.setattr(RecordFile, "add", add)
    assert post(agent, PLAIN).status_code == 503
    assert [record.reason for record in agent.records()] == ["gateway_stopping"]
    agent = Agent(agent.gateway)
    (tmp_path / agent.id / "records.jsonl").write_bytes(b"no record\n")
    assert post(agent, PLAIN).status_code == 503
    assert len(agent.gateway.records(5)) == 5


def test_an_engine_that_is_away_got_nothing(start: Start, tmp_path: Path) -> None:
    """What was meant for it is recorded as what no engine got, and as little of it."""
    with TokenEngine("vllm") as gone:
        agent = Agent(started(start, gone, tmp_path))
    long = json.dumps(ASKED | {"user": "x" * 100_000}).encode()
    with socket.socket() as kept:
        # No other server gets the port meanwhile.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", urlsplit(gone.url).port))
        assert post(agent, long).status_code == 503
    (record,) = agent.records()
    assert (record.reason, record.sent, record.engine) == ("engine_unreachable", None, "")
    assert len(record.received) == 16_384


def test_refusals_do_not_fill_the_disk(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each the beginning stays, of all a number, over restarts too; what is answered is recorded
    all the same."""
    monkeypatch.setattr(sessions, "_MAX_UNSENT", 3)
    for _ in range(5):
        assert post(agent, "é".encode() * 500_000).status_code == 400
    assert "no more are kept" in caplog.text
    agent.say(user("a"))
    records = agent.records()
    assert [record.reason for record in records] == ["bad_request"] * 3 + [""]
    assert {len(record.received) for record in records[:3]} == {16_384}
    file = tmp_path / agent.id / "records.jsonl"
    assert file.stat().st_size < 4 * 20_000
    again = sessions._OpenRecords(file)
    assert again.unsent == 3
