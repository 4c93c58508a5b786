"""What fails, is cut off or left stands in its session as what it is."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver
from tests.gateway.recording.session_agent import Agent, started, user
from tests.gateway.token_engine import TokenEngine
from tests.patience import wait_until


@pytest.mark.parametrize(
    ("stub", "status", "reason"),
    [
        ({"status": 429}, 429, "engine_429"),
        ({"status": 500}, 500, "engine_5xx"),
        ({"garbage": True}, 502, "engine_garbage"),
    ],
)
def test_failures_are_recorded(
    any_agent: Agent, tokens: TokenEngine, stub: Any, status: int, reason: str
) -> None:
    """With what was asked, and nothing follows them in line."""
    answer = any_agent.say(user("a"), stub=stub)
    assert answer.status_code == status and "error" in answer.json()
    (record,) = any_agent.records()
    assert (record.reason, record.status, record.usable) == (reason, status, False)
    assert record.outcome != "completed" and record.sent == tokens.seen[0].body
    any_agent.say(user("a"))
    assert [one.seq for one in any_agent.records()] == [1, 2]
    counts = any_agent.gateway.control.get(f"/sessions/{any_agent.id}").json()["counts"]
    assert (counts["completions"], counts["failures"]) == (1, 1)


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        ({"cut": 1}, "engine_broke"),
        ({"cut": 1, "end": True}, "engine_broke"),
        ({"error": True}, "engine_error"),
    ],
)
def test_half_a_stream_is_recorded(agent: Agent, stub: Any, reason: str) -> None:
    """With the tokens that came, as a failure."""
    answer = agent.say(user("a"), stream=True, stub=stub)
    assert "error" in answer.text
    (record,) = agent.records()
    assert (record.outcome, record.reason, record.usable) == ("failed", reason, False)
    assert record.prompt_ids is not None and record.sampled == (1 if "cut" in stub else 3)


def test_half_an_answer_takes_no_place_in_line(agent: Agent) -> None:
    """It says what it would have continued; the retry continues it."""
    messages = [user("a"), agent.say(user("a")).json()["choices"][0]["message"], user("b")]
    agent.say(*messages, stream=True, stub={"cut": 1})
    agent.say(*messages)
    _, half, retry = agent.records()
    assert half.link.parent == retry.link.parent == (1, 0)
    assert not half.link.in_line and retry.link.in_line


def test_a_client_that_leaves_is_recorded(agent: Agent, vllm: TokenEngine) -> None:
    """With the tokens so far; no place at the engine is lost."""
    with agent.streaming(vllm, user("a")) as answer:
        next(line for line in answer.iter_lines() if '"o"' in line)
    wait_until(lambda: agent.records(), "the record")
    (record,) = agent.records()
    assert (record.outcome, record.reason) == ("cancelled", "client_left")
    assert record.sampled == 1
    wait_until(lambda: not agent.gateway.app.pools["default"].replicas[0].in_flight)


def test_a_time_out_is_recorded(tokens: TokenEngine, start: Start, tmp_path: Path) -> None:
    """With its reason."""
    agent = Agent(started(start, tokens, tmp_path, first_byte_s=0.3))
    assert agent.say(user("a"), stub={"gated": True}).status_code == 504
    (record,) = agent.records()
    assert (record.outcome, record.reason) == ("failed", "first_byte_timeout")


def test_a_full_disk_fails_the_answer(any_agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer counts that is not recorded; later ones do, and the file stays whole."""
    any_agent.say(user("a"))
    write = os.write

    def full(file: int, data: Any) -> int:
        if len(data) > 1000:
            write(file, bytes(data)[:100])
            raise OSError(28, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("jaxserve.gateway.recording.records.os.write", full)
        answer = any_agent.say(user("b" * 2000))
        assert answer.status_code == 507 and "not answered" in answer.json()["error"]["message"]
    any_agent.say(user("c"))
    assert [record.seq for record in any_agent.records()] == [1, 2]


def test_durable_sessions_wait_for_the_disk(
    tokens: TokenEngine, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last byte leaves after ``fsync``, and not at all where that fails."""
    gateway = started(start, tokens, tmp_path)
    durable, other = Agent(gateway, durable=True), Agent(gateway)
    synced: list[int] = []

    def refuse(file: int) -> None:
        synced.append(file)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("jaxserve.gateway.recording.group_commit.os.fsync", refuse)
    assert durable.say(user("a")).status_code == 507
    stream = durable.say(user("a"), stream=True)
    assert "[DONE]" not in stream.text
    assert len(synced) == 2
    assert other.say(user("a")).status_code == 200 and len(synced) == 2


def test_a_leaver_at_a_closed_gate(tokens: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Paused inference holds requests back; who leaves meanwhile takes nothing along."""
    gateway = started(start, tokens, tmp_path, tokens=AccessTokens(client="t"))
    agent = Agent(gateway)
    assert gateway.control.put("/control/inference/pause").json()["paused"]
    leaver = Leaver(gateway.port, {"model": "stub"})
    leaver.leave()  # without a key, so it is refused anyway
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(agent.say, user("a"))
        status = "/control/inference/status"
        wait_until(lambda: gateway.control.get(status).json()["waiting"] == 1)
        assert not tokens.seen and gateway.control.get(status).json()["inside"] == 0
        gateway.control.put("/control/inference/resume")
    assert answer.result().status_code == 200
    assert gateway.control.get(status).json()["inside"] == 0
