"""Sessions through a running gateway, before engines that answer as vLLM and SGLang do."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from jaxserve.gateway.settings import Tokens
from tests.gateway.conftest import Start
from tests.gateway.running import Leaver
from tests.gateway.sessions.talking import CHAT, Agent, started, user
from tests.gateway.stub_engine import StubEngine
from tests.gateway.token_engine import TokenEngine, logprobs, prompt_of, sampled, scaled
from tests.patience import wait_until


@pytest.fixture(params=["vllm", "sglang"])
def tokens(request: pytest.FixtureRequest) -> Iterator[TokenEngine]:
    """An engine of each kind."""
    with TokenEngine(request.param) as running:
        yield running


@pytest.fixture
def vllm() -> Iterator[TokenEngine]:
    """An engine that streams ids."""
    with TokenEngine("vllm") as running:
        yield running


def data_of(answer: httpx.Response) -> list[Any]:
    """Parsed events of a stream."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
def test_ids_and_logprobs_are_recorded(
    tokens: TokenEngine, start: Start, tmp_path: Path, stream: bool
) -> None:
    """Exactly what the engine sampled, streamed or not; the client sees none of it."""
    agent = Agent(started(start, tokens, tmp_path))
    said = user("hello")
    answer = agent.say(said, stream=stream, temperature=0.7, stub={"reply": "well"})
    assert answer.status_code == 200
    for hidden in ("token_ids", '"logprob"', "meta_info"):
        assert hidden not in answer.text
    if stream:
        *events, last = data_of(answer)
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "well"
        assert [one["choices"][0]["finish_reason"] for one in events if one["choices"]][
            -1
        ] == "stop"
        assert last == "[DONE]" and all(event["choices"] for event in events)
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "well"
    (record,) = agent.records()
    (choice,) = record.choices
    reply = {"role": "assistant", "content": "well"}
    assert record.prompt_ids is not None and choice.response_ids is not None
    assert record.prompt_ids.tolist() == prompt_of([said])
    assert choice.response_ids.tolist() == sampled(reply)
    values = logprobs(sampled(reply))
    if tokens.kind == "sglang":
        values = [scaled(one, 0.7) for one in values]
    np.testing.assert_allclose(choice.logprobs, values, rtol=1e-6)
    assert choice.finish_reason == "stop" and record.usable
    assert record.sampling == {"temperature": 0.7}
    assert record.logprobs_meaning == ("raw" if tokens.kind == "vllm" else "scaled")
    assert answer.headers["x-gateway-request-id"] == record.request_id


def test_both_engines_give_the_same_records(start: Start, tmp_path: Path) -> None:
    """One conversation, streamed and not, with tools and several choices."""
    found = []
    for kind in ("vllm", "sglang"):
        with TokenEngine(kind) as engine:
            agent = Agent(started(start, engine, tmp_path / kind))
            first = [user("list")]
            said = agent.say(*first, stub={"reply": "", "calls": ["ls", "pwd"]}).json()
            message = said["choices"][0]["message"]
            result = {
                "role": "tool",
                "tool_call_id": message["tool_calls"][0]["id"],
                "content": "a b",
            }
            then = [*first, message, result]
            agent.say(*then, stream=True, n=2, stub={"reply": ["one", "two"]})
            found.append(agent.records())
    for ours, theirs in zip(*found, strict=True):
        assert ours.link == theirs.link
        np.testing.assert_array_equal(ours.prompt_ids, theirs.prompt_ids)
        for mine, other in zip(ours.choices, theirs.choices, strict=True):
            np.testing.assert_array_equal(mine.response_ids, other.response_ids)
            np.testing.assert_array_equal(mine.logprobs, other.logprobs)
            assert mine.message.get("tool_calls") == other.message.get("tool_calls")
            assert mine.finish_reason == other.finish_reason
    assert [record.link.how for record in found[0]] == ["root", "exact"]
    assert [len(record.choices) for record in found[0]] == [1, 2]


def test_all_choices_are_recorded(tokens: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Not the first alone; each may be continued."""
    agent = Agent(started(start, tokens, tmp_path))
    agent.say(user("a"), n=3, stub={"reply": ["x", "yy", "zzz"]})
    agent.say(user("a"), {"role": "assistant", "content": "yy"}, user("b"))
    first, second = agent.records()
    assert [len(one.response_ids) for one in first.choices if one.response_ids is not None] == [
        2,
        3,
        4,
    ]
    assert (second.link.parent, second.link.how) == ((1, 1), "exact")


@pytest.mark.parametrize("several", [1, 2])
def test_gaps_of_several_answers_say_nothing(
    vllm: TokenEngine, start: Start, tmp_path: Path, several: int
) -> None:
    """The gateway's own record knows of them, whatever the dialect calls their number."""
    agent = Agent(started(start, vllm, tmp_path))
    asked = {
        "contents": [{"role": "user", "parts": [{"text": "a"}]}],
        "generationConfig": {"candidateCount": several},
    }
    path = "/v1beta/models/stub:generateContent"
    assert agent.gateway.http.post(path, json=asked, headers=agent.headers).status_code == 200
    assert len(agent.records()[0].choices) == several
    (record,) = agent.gateway.records(1)
    assert record["parallel"] == (several > 1)


def test_what_was_sent_is_what_is_recorded(
    tokens: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """As received and as sent, byte for byte; neither is changed by the other, and messages keep
    their order, later ones of the system too."""
    agent = Agent(started(start, tokens, tmp_path))
    system = {"role": "system", "content": "be brief"}
    body = {"model": "stub", "messages": [user("a"), system, user("b")], "stream": True}
    content = json.dumps(body, indent=1).encode()
    agent.gateway.http.post(CHAT, content=content, headers=agent.headers)
    (record,) = agent.records()
    (seen,) = tokens.seen
    assert record.received == content
    assert record.sent == seen.body
    assert seen.json["messages"] == body["messages"]
    assert "return_token_ids" not in json.loads(record.received)
    response = json.loads(record.response or b"")
    assert response["choices"][0]["message"]["content"] == "ok"
    assert response["usage"]["completion_tokens"] == 3


def test_a_later_system_message_breaks_no_line(
    vllm: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """It stays where the agent put it, so the prompt extends what was said."""
    agent = Agent(started(start, vllm, tmp_path))
    said = [user("a")]
    said.append(agent.say(*said).json()["choices"][0]["message"])
    agent.say(*said, {"role": "system", "content": "now be kind"}, user("b"))
    assert agent.records()[1].link.how == "exact"


def test_ids_stand_in_records_only(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Who asks for them is told so; log-probabilities and usage come as without a session."""
    agent = Agent(started(start, vllm, tmp_path))
    refused = agent.say(user("a"), return_token_ids=True)
    assert refused.status_code == 400 and "session's records" in refused.text and not vllm.seen
    whole = agent.say(user("a"), logprobs=True).json()
    assert len(whole["choices"][0]["logprobs"]["content"]) == 3
    options = {"stream_options": {"include_usage": True}}
    events = data_of(agent.say(user("a"), stream=True, logprobs=True, **options))
    entries = [
        entry
        for one in events[:-1]
        for choice in one["choices"]
        for entry in (choice["logprobs"] or {}).get("content", ())
    ]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    assert events[-2]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_stays_where_it_is_not_wanted(
    tokens: TokenEngine, start: Start, tmp_path: Path, stream: bool
) -> None:
    """The engine must give it for the ids; the client has not asked for it."""
    agent = Agent(started(start, tokens, tmp_path))
    stub = {"reasoning": "hm", "reply": "yes"}
    assert "reasoning_content" in agent.say(user("a"), stream=stream, stub=stub).text
    hidden = agent.say(user("a"), stream=stream, stub=stub, include_reasoning=False)
    assert hidden.status_code == 200 and "reasoning" not in hidden.text
    for record in agent.records():
        assert record.choices[0].message["reasoning_content"] == "hm"


def test_events_pass_as_they_come(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """The first text is there while the engine has not gone on; TTFT is its own."""
    agent = Agent(started(start, vllm, tmp_path))
    body = {"model": "stub", "messages": [user("a")], "stream": True, "stub": {"gated": True}}
    first = threading.Thread(target=lambda: (vllm.wait_for(1), vllm.seen[0].allow(1)))
    first.start()
    with agent.gateway.http.stream("POST", CHAT, json=body, headers=agent.headers) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert "assistant" in next(lines)
        assert json.loads(next(lines)[6:])["choices"][0]["delta"] == {"content": "o"}
        assert agent.records() == []
        vllm.seen[0].allow()
        assert list(lines)[-1] == "data: [DONE]"
    (record,) = agent.gateway.records(1)
    assert record["token_events"] == 3 and record["first_token_s"] < record["last_token_s"]


@pytest.mark.parametrize(
    ("stub", "status", "reason"),
    [
        ({"status": 429}, 429, "engine_429"),
        ({"status": 500}, 500, "engine_5xx"),
        ({"garbage": True}, 502, "engine_garbage"),
    ],
)
def test_failures_are_recorded(
    tokens: TokenEngine, start: Start, tmp_path: Path, stub: Any, status: int, reason: str
) -> None:
    """With what was asked, and nothing follows them in line."""
    agent = Agent(started(start, tokens, tmp_path))
    answer = agent.say(user("a"), stub=stub)
    assert answer.status_code == status and "error" in answer.json()
    (record,) = agent.records()
    assert (record.reason, record.status, record.usable) == (reason, status, False)
    assert record.outcome != "completed" and record.sent == tokens.seen[0].body
    agent.say(user("a"))
    assert [one.seq for one in agent.records()] == [1, 2]
    counts = agent.gateway.control.get(f"/sessions/{agent.id}").json()["counts"]
    assert (counts["completions"], counts["failures"]) == (1, 1)


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        ({"cut": 1}, "engine_broke"),
        ({"cut": 1, "end": True}, "engine_broke"),
        ({"error": True}, "engine_error"),
    ],
)
def test_half_a_stream_is_recorded(
    vllm: TokenEngine, start: Start, tmp_path: Path, stub: Any, reason: str
) -> None:
    """With the tokens that came, as a failure."""
    agent = Agent(started(start, vllm, tmp_path))
    answer = agent.say(user("a"), stream=True, stub=stub)
    assert "error" in answer.text
    (record,) = agent.records()
    assert (record.outcome, record.reason, record.usable) == ("failed", reason, False)
    assert record.prompt_ids is not None and record.sampled == (1 if "cut" in stub else 3)


def test_half_an_answer_takes_no_place_in_line(
    vllm: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """It says what it would have continued; the retry continues it."""
    agent = Agent(started(start, vllm, tmp_path))
    messages = [user("a"), agent.say(user("a")).json()["choices"][0]["message"], user("b")]
    agent.say(*messages, stream=True, stub={"cut": 1})
    agent.say(*messages)
    _, half, retry = agent.records()
    assert half.link.parent == retry.link.parent == (1, 0)
    assert not half.link.in_line and retry.link.in_line


def test_a_client_that_leaves_is_recorded(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """With the tokens so far; no place at the engine is lost."""
    agent = Agent(started(start, vllm, tmp_path))
    body = {"model": "stub", "messages": [user("a")], "stream": True, "stub": {"gated": True}}
    first = threading.Thread(target=lambda: (vllm.wait_for(1), vllm.seen[0].allow(1)))
    first.start()
    with agent.gateway.http.stream("POST", CHAT, json=body, headers=agent.headers) as answer:
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


def test_megabytes_are_recorded_whole(tokens: TokenEngine, start: Start, tmp_path: Path) -> None:
    """No size makes a record useless for training."""
    agent = Agent(started(start, tokens, tmp_path))
    reply = "abcdefgh" * 3_000
    assert agent.say(user("x" * 400_000), stub={"reply": reply}).status_code == 200
    (record,) = agent.records()
    assert len(record.received) > 400_000 and record.sampled == len(reply) + 1
    assert record.prompt_ids is not None and len(record.prompt_ids) == 400_003
    assert json.loads(record.response or b"")["choices"][0]["message"]["content"] == reply
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.jsonl")) > 2**20


def test_an_unknown_key_is_refused(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """It opens nothing; nor does no key at all, nor one of a session that is closed or gone."""
    gateway = started(start, vllm, tmp_path)
    agent, other = Agent(gateway), Agent(gateway)
    for headers in ({}, {"Authorization": "Bearer made-up"}, {"x-api-key": agent.key + "x"}):
        answer = gateway.post({"messages": [user("a")]}, headers=headers)
        assert answer.status_code == 401 and "error" in answer.json()
    assert gateway.http.get("/v1/models", headers={}).status_code == 401
    gateway.control.post(f"/sessions/{agent.id}/close")
    gateway.control.delete(f"/sessions/{other.id}")
    assert agent.say(user("a")).status_code == other.say(user("a")).status_code == 401
    assert not vllm.seen
    assert len(gateway.control.get("/sessions").json()["sessions"]) == 1


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key"])
def test_every_client_s_header_carries_the_key(
    header: str, vllm: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """And each reaches its own session alone; the key goes no further."""
    gateway = started(start, vllm, tmp_path)
    one, other = Agent(gateway), Agent(gateway)
    key = f"Bearer {one.key}" if header == "Authorization" else one.key
    body = {"messages": [user("a")], "stub": {"reply": "hi"}}
    assert gateway.post(body, headers={header: key}).status_code == 200
    assert gateway.http.get("/v1/models", headers={header: key}).status_code == 200
    assert len(one.records()) == 1 and other.records() == []
    assert one.key not in str(vllm.seen[0].headers)
    for route in ("/sessions", f"/sessions/{other.id}", f"/sessions/{one.id}/completions"):
        assert gateway.http.get(route, headers={header: key}).status_code == 404


def test_the_client_token_serves_plainly(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Beside sessions: byte for byte, and recorded in none."""
    gateway = started(start, vllm, tmp_path, tokens=Tokens(client="the-token"))
    agent = Agent(gateway)
    headers = {"Authorization": "Bearer the-token"}
    body = {"model": "stub", "messages": [user("a")]}
    answer = gateway.http.post(CHAT, json=body, headers=headers)
    direct = httpx.post(vllm.url + CHAT, json=body)
    assert answer.content == direct.content and vllm.seen[0].body == vllm.seen[1].body
    assert agent.say(user("a")).status_code == 200
    assert len(agent.records()) == 1


def test_no_key_is_kept(
    vllm: TokenEngine, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In no file, no answer but that which made it, and no log."""
    gateway = started(start, vllm, tmp_path, records=tmp_path / "requests.jsonl")
    agent = Agent(gateway, metadata={"task": 7})
    agent.say(user("a"))
    agent.say(user("a"), stub={"status": 500})
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b'"task":7' in written and agent.key.encode() not in written
    for route in ("/sessions", f"/sessions/{agent.id}", f"/sessions/{agent.id}/completions"):
        assert agent.key not in gateway.control.get(route).text
    assert agent.key not in caplog.text and agent.key not in repr(gateway.app.sessions)


def test_completions_cannot_be_recorded(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """They are no chat."""
    agent = Agent(started(start, vllm, tmp_path))
    answer = agent.gateway.post({"prompt": "a"}, path="/v1/completions", headers=agent.headers)
    assert answer.status_code == 400 and not vllm.seen
    assert "cannot be recorded in a session" in answer.json()["error"]["message"]


def test_a_full_disk_fails_the_answer(
    tokens: TokenEngine, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer counts that is not recorded; later ones do, and the file stays whole."""
    agent = Agent(started(start, tokens, tmp_path))
    agent.say(user("a"))
    write = os.write

    def full(file: int, data: Any) -> int:
        if len(data) > 1000:
            write(file, bytes(data)[:100])
            raise OSError(28, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("jaxserve.gateway.sessions.files.os.write", full)
        answer = agent.say(user("b" * 2000))
        assert answer.status_code == 507 and "not answered" in answer.json()["error"]["message"]
    agent.say(user("c"))
    assert [record.seq for record in agent.records()] == [1, 2]


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

    monkeypatch.setattr("jaxserve.gateway.sessions.group_commit.os.fsync", refuse)
    assert durable.say(user("a")).status_code == 507
    stream = durable.say(user("a"), stream=True)
    assert "[DONE]" not in stream.text
    assert len(synced) == 2
    assert other.say(user("a")).status_code == 200 and len(synced) == 2


def test_a_gateway_without_sessions_is_as_before(engine: StubEngine, start: Start) -> None:
    """It has no routes for them and asks for no key."""
    gateway = start([engine])
    assert gateway.post().status_code == 200
    assert gateway.control.get("/sessions").status_code == 404


def test_weight_versions_stand_in_records(
    tokens: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """That at the start and that at the end."""
    agent = Agent(started(start, tokens, tmp_path))
    agent.say(user("a"))
    control = agent.gateway.control
    assert control.put("/control/weights", json={"version": "step-1"}).status_code == 200
    agent.say(user("b"))
    assert [one.weight_version for one in agent.records()] == [None, "step-1"]
    assert control.put("/control/weights", json={"version": 3}).status_code == 400


def test_a_leaver_at_a_closed_gate(tokens: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Paused inference holds requests back; who leaves meanwhile takes nothing along."""
    gateway = started(start, tokens, tmp_path, tokens=Tokens(client="t"))
    agent = Agent(gateway)
    assert gateway.control.put("/control/inference/pause").json()["paused"]
    leaver = Leaver(gateway.port, {"model": "stub"})
    leaver.leave()  # without a key, so it is refused anyway
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(agent.say(user("a"))))
    asking.start()
    status = gateway.control.get("/control/inference/status")
    wait_until(
        lambda: gateway.control.get("/control/inference/status").json()["waiting"] == 1, "it"
    )
    assert not tokens.seen and status.json()["inside"] == 0
    gateway.control.put("/control/inference/resume")
    asking.join(300)
    assert answers[0].status_code == 200
    assert gateway.control.get("/control/inference/status").json()["inside"] == 0
