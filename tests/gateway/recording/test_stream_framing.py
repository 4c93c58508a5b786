"""A streamed answer means the same to relay and session, however its events are framed, and breaks
alike in both."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.canonical import Completion, Counts
from jaxserve.gateway.dialects.dialect import NO_USAGE
from jaxserve.gateway.dialects.openai_chat import CHAT
from jaxserve.gateway.dialects.request_fields import assistant_message, function_call
from jaxserve.gateway.dialects.routes import translate
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.exchange.events import EventStream
from jaxserve.gateway.http.events import EventReader
from jaxserve.gateway.recording.engine_answer import EngineAnswer
from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.dialects.conversations import NOW_S, completions, cut_deltas
from tests.gateway.recording.session_agent import Agent, user
from tests.gateway.stub_engine import RawServer, event

PATH = "/v1/chat/completions"
TOKEN = {"Authorization": "Bearer t"}
DONE = b"data: [DONE]\n\n"


@st.composite
def streams(draw: st.DrawFn) -> tuple[Completion, list[dict[str, Any]]]:
    """A completion, and its events as vLLM sends them: every piece of output is a token."""
    completion = draw(completions(most=2))
    request = {"model": "m", "messages": [user("a")], "stream": True}
    chat, answer = translate(
        PATH, b"", request, answer_id="id1", unix_s=NOW_S, policy=TemplatePolicy()
    )
    events = [{"prompt_token_ids": [1, 2], "choices": []}]
    for delta in draw(cut_deltas(completion)):
        if isinstance(delta, Counts):
            counts = {"prompt_tokens": delta.prompt, "completion_tokens": delta.output}
            events.append({"choices": [], "usage": counts})
            continue
        lines = answer.events().feed([delta]).splitlines()
        events += [orjson.loads(line[6:]) for line in lines if line]
    for place, each in enumerate(events):
        for choice in each["choices"]:
            choice["token_ids"] = [place]
    assert chat.streamed
    return completion, events


@st.composite
def framed(draw: st.DrawFn, events: list[dict[str, Any]]) -> bytes:
    """A stream of the events in any form that the standard for server-sent events allows, or with
    the last blank line missing."""
    ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
    extra = st.sampled_from([b": ping", b":", b"event: message", b"id: 1", b"retry: 3", b"x: y"])
    found = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    texts = [
        json.dumps(
            each, indent=draw(st.sampled_from([None, 0, 1])), ensure_ascii=draw(st.booleans())
        )
        for each in events
    ]
    for text in texts + ["[DONE]"] * draw(st.integers(0, 1)):
        space = draw(st.sampled_from([b"", b" "]))
        lines = [b"data:" + space + line.encode() for line in text.split("\n")]
        place = draw(st.integers(0, len(lines)))
        lines[place:place] = draw(st.lists(extra, max_size=2))
        if draw(st.booleans()):  # a comment for itself keeps a connection alive
            lines = [b": alive", b"", *lines]
        for line in [*lines, b""]:
            end = draw(ends)
            # LF after CR would be one end of a line.
            end = b"\r\n" if not line and found.endswith(b"\r") and end == b"\n" else end
            found += line + end
    return found.rstrip(b"\r\n") if draw(st.booleans()) else found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Data in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(data=st.data(), told=streams(), places=st.lists(st.integers(0, 9999), max_size=40))
def test_any_framing_is_the_same_answer(
    data: st.DataObject, told: tuple[Completion, list[dict[str, Any]]], places: list[int]
) -> None:
    """Text, calls, tokens, usage and finish reasons do not depend on line ends, further fields,
    comments, several ``data`` lines, a byte order mark, ``[DONE]``, or where the network cuts."""
    completion, events = told
    stream = data.draw(framed(events))
    pieces = cut(stream, places + list(range(len(stream) if data.draw(st.booleans()) else 0)))
    reader, answer, plain = EventReader(), EngineAnswer("vllm", "id1"), EngineAnswer("vllm", "id1")
    found = [each for piece in pieces for each in reader.feed(piece)] + reader.end()
    assert [each.content for each in found if each.content] == events
    assert not any(each.failure for each in found)
    for each in events:
        plain.event(each)
    for each in found:
        if each.content is not None:
            answer.event(each.content)
    assert answer.finished and answer.body == plain.body
    for one, other, meant in zip(answer.choices, plain.choices, completion.choices, strict=True):
        calls = [function_call(call.id, call.name, call.arguments) for call in meant.calls]
        message = assistant_message(meant.text, meant.reasoning, calls, meant.refusal)
        assert (one.message, one.finish_reason) == (message, meant.finish)
        assert one.response_ids is not None and len(one.response_ids) > 0
        np.testing.assert_array_equal(one.response_ids, other.response_ids)
    relay = EventStream(CHAT, False, 10**6)
    passed = [*map(relay.feed, pieces), relay.end()]
    assert b"".join(raw for raw, _ in passed) == stream and relay.failure == ""
    usage = NO_USAGE
    for each in events:
        usage = usage.updated(CHAT.usage(each))
    assert relay.usage == usage


def _chunk(**choice: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]})


TEXT, STOP = _chunk(delta={"content": "x"}), _chunk(finish_reason="stop")
BREAKS = {
    "no finish reason": (TEXT + DONE, "engine_broke"),
    "a cut within an event": (TEXT + STOP[:-9], "engine_broke"),
    "a lost connection": (TEXT, "engine_broke"),
    "an error object": (TEXT + event({"error": {"message": "out of KV"}}) + DONE, "engine_error"),
    "SGLang's error": (TEXT + event({"object": "error", "message": "m"}) + STOP, "engine_error"),
    "an error in words": (TEXT + b"event: error\ndata: reset\n\n" + STOP, "engine_error"),
    "an unknown error": (TEXT + b'event: error\ndata: {"detail": 1}\n\n' + STOP, "engine_error"),
    "a given-up answer": (TEXT + _chunk(finish_reason="abort") + DONE, "engine_error"),
    "invalid UTF-8": (TEXT.replace(b"x", b"\xff") + STOP + DONE, "engine_garbage"),
    "invalid JSON": (b'data: {"choices": [\n\n' + STOP + DONE, "engine_garbage"),
    "two finish reasons": (STOP + _chunk(finish_reason="length") + DONE, "engine_garbage"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_any_break_is_an_error_of_its_kind(broken: str, start: Start, tmp_path: Path) -> None:
    """With and without a session: in the client's stream or status, the records, the metrics and
    the attainment."""
    stream, reason = BREAKS[broken]
    lost = 1 if broken == "a lost connection" else 0
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    with RawServer(head % (len(stream) + lost) + stream) as raw:
        gateway = start([f"vllm={raw.url}"], sessions=tmp_path, tokens=AccessTokens(client="t"))
        agent = Agent(gateway)
        gateway.post({"stream": True}, headers=TOKEN)
        answer = agent.say(user("a"), stream=True)
        records = gateway.records(2)
    assert "error" in answer.text
    assert [(one["outcome"], one["reason"]) for one in records] == [("failed", reason)] * 2
    (record,) = agent.records()
    assert (record.outcome, record.reason, record.usable) == ("failed", reason, False)
    metrics = gateway.control.get("/metrics").text
    assert f'failed_total{{class="default",reason="{reason}"}} 2.0' in metrics
    window = gateway.control.get("/control/window", params={"slices": 1}).json()
    assert (window["good"], window["failed"], window["slo_attainment"]) == (0, 2, 0.0)


def test_a_connection_lost_after_the_end_loses_nothing(start: Start, tmp_path: Path) -> None:
    """The answer is whole once ``[DONE]`` has come, with and without a session."""
    stream = TEXT + STOP + DONE
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    with RawServer(head % (len(stream) + 1) + stream) as raw:
        gateway = start([f"vllm={raw.url}"], sessions=tmp_path, tokens=AccessTokens(client="t"))
        agent = Agent(gateway)
        assert gateway.post({"stream": True}, headers=TOKEN).content == stream
        assert agent.say(user("a"), stream=True).text.endswith("data: [DONE]\n\n")
        assert {one["outcome"] for one in gateway.records(2)} == {"completed"}
    assert [one.outcome for one in agent.records()] == ["completed"]
