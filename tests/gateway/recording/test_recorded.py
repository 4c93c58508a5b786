"""Sessions through a running gateway, before engines that answer as vLLM and SGLang do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import CHAT, Agent, started, user
from tests.gateway.stub_engine import StubEngine
from tests.gateway.token_engine import TokenEngine, logprobs, prompt_of, sampled, scaled


def data_of(answer: httpx.Response) -> list[Any]:
    """Parsed events of a stream."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
def test_ids_and_logprobs_are_recorded(any_agent: Agent, tokens: TokenEngine, stream: bool) -> None:
    """Exactly what the engine sampled, streamed or not; the client sees none of it."""
    said = user("hello")
    answer = any_agent.say(said, stream=stream, temperature=0.7, stub={"reply": "well"})
    assert answer.status_code == 200
    for hidden in ("token_ids", '"logprob"', "meta_info"):
        assert hidden not in answer.text
    if stream:
        *events, last = data_of(answer)
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "well"
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert last == "[DONE]" and all(event["choices"] for event in events)
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "well"
    (record,) = any_agent.records()
    (choice,) = record.choices
    reply = {"role": "assistant", "content": "well"}
    assert record.prompt_ids is not None and choice.response_ids is not None
    assert record.prompt_ids.tolist() == prompt_of([said])
    assert choice.response_ids.tolist() == sampled(reply)
    values = logprobs(sampled(reply))
    if tokens.kind == "sglang":
        values = [scaled(one, 0.7) for one in values]
    np.testing.assert_allclose(choice.logprobs, values, rtol=1e-6)
    assert choice.texts == [*"well", "</s>"]
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
            (call, _), tool = message["tool_calls"], {"role": "tool", "content": "a b"}
            result = {**tool, "tool_call_id": call["id"]}
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


def test_all_choices_are_recorded(any_agent: Agent) -> None:
    """Not the first alone; each may be continued."""
    any_agent.say(user("a"), n=3, stub={"reply": ["x", "yy", "zzz"]})
    any_agent.say(user("a"), {"role": "assistant", "content": "yy"}, user("b"))
    first, second = any_agent.records()
    assert [list(one.texts or ()) for one in first.choices] == [
        [*text, "</s>"] for text in ("x", "yy", "zzz")
    ]
    assert (second.link.parent, second.link.how) == ((1, 1), "exact")


@pytest.mark.parametrize("several", [1, 2])
def test_gaps_of_several_answers_say_nothing(agent: Agent, several: int) -> None:
    """The gateway's own record knows of them, whatever the dialect calls their number."""
    asked = {
        "contents": [{"role": "user", "parts": [{"text": "a"}]}],
        "generationConfig": {"candidateCount": several},
    }
    path = "/v1beta/models/stub:generateContent"
    assert agent.gateway.http.post(path, json=asked, headers=agent.headers).status_code == 200
    assert len(agent.records()[0].choices) == several
    (record,) = agent.gateway.records(1)
    assert record["parallel"] == (several > 1)


def test_what_was_sent_is_what_is_recorded(any_agent: Agent, tokens: TokenEngine) -> None:
    """As received and as sent, byte for byte; neither is changed by the other, and messages keep
    their order, later ones of the system too."""
    system = {"role": "system", "content": "be brief"}
    body = {"model": "stub", "messages": [user("a"), system, user("b")], "stream": True}
    content = json.dumps(body, indent=1).encode()
    any_agent.gateway.http.post(CHAT, content=content, headers=any_agent.headers)
    (record,) = any_agent.records()
    (seen,) = tokens.seen
    assert record.received == content
    assert record.sent == seen.body
    assert seen.json["messages"] == body["messages"]
    assert "return_token_ids" not in json.loads(record.received)
    response = json.loads(record.response or b"")
    assert response["choices"][0]["message"]["content"] == "ok"
    assert response["usage"]["completion_tokens"] == 3


def test_a_later_system_message_breaks_no_line(agent: Agent) -> None:
    """It stays where the agent put it, so the prompt extends what was said."""
    said = [user("a")]
    said.append(agent.say(*said).json()["choices"][0]["message"])
    agent.say(*said, {"role": "system", "content": "now be kind"}, user("b"))
    assert agent.records()[1].link.how == "exact"


def test_ids_stand_in_records_only(agent: Agent, vllm: TokenEngine) -> None:
    """Who asks for them is told so; log-probabilities and usage come as without a session."""
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
def test_reasoning_stays_where_it_is_not_wanted(any_agent: Agent, stream: bool) -> None:
    """The engine must give it for the ids; the client has not asked for it."""
    stub = {"reasoning": "hm", "reply": "yes"}
    assert "reasoning_content" in any_agent.say(user("a"), stream=stream, stub=stub).text
    hidden = any_agent.say(user("a"), stream=stream, stub=stub, include_reasoning=False)
    assert hidden.status_code == 200 and "reasoning" not in hidden.text
    for record in any_agent.records():
        assert record.choices[0].message["reasoning_content"] == "hm"


def test_events_pass_as_they_come(agent: Agent, vllm: TokenEngine, start: Start) -> None:
    """The first text is there while the engine has not gone on; TTFT is its own."""
    with agent.streaming(vllm, user("a")) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert "assistant" in next(lines)
        assert json.loads(next(lines)[6:])["choices"][0]["delta"] == {"content": "o"}
        assert agent.records() == []
        vllm.seen[0].allow()
        assert list(lines)[-1] == "data: [DONE]"
    (record,) = agent.gateway.records(1)
    assert record["token_events"] == 3 and record["first_token_s"] < record["last_token_s"]


def test_megabytes_are_recorded_whole(any_agent: Agent, tmp_path: Path) -> None:
    """No size makes a record useless for training."""
    reply = "abcdefgh" * 3_000
    assert any_agent.say(user("x" * 400_000), stub={"reply": reply}).status_code == 200
    (record,) = any_agent.records()
    assert len(record.received) > 400_000 and record.sampled == len(reply) + 1
    assert record.prompt_ids is not None and len(record.prompt_ids) == 400_003
    assert json.loads(record.response or b"")["choices"][0]["message"]["content"] == reply
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.jsonl")) > 2**20


def test_a_gateway_without_sessions_is_as_before(engine: StubEngine, start: Start) -> None:
    """It has no routes for them and asks for no key."""
    gateway = start([engine])
    assert gateway.post().status_code == 200
    assert gateway.control.get("/sessions").status_code == 404


def test_weight_versions_stand_in_records(any_agent: Agent, start: Start) -> None:
    """That at the start and that at the end."""
    any_agent.say(user("a"))
    control = any_agent.gateway.control
    assert control.put("/control/weights", json={"version": "step-1"}).status_code == 200
    any_agent.say(user("b"))
    assert [one.weight_version for one in any_agent.records()] == [None, "step-1"]
    assert control.put("/control/weights", json={"version": 3}).status_code == 400
