"""Events are seen whole, however they are cut on their way, and leave unchanged."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.dialect import Usage
from jaxserve.gateway.dialects.openai_chat import CHAT
from jaxserve.gateway.dialects.routes import INFERENCE
from jaxserve.gateway.exchange.events import EventStream
from tests.examples_drawn import any_json
from tests.gateway.stub_engine import PROMPT_TOKENS, event, stream_of, usage_of


async def _events(path: str, tokens: int, usage: bool) -> list[bytes]:
    asked = {"stub": {"tokens": tokens}, "stream_options": {"include_usage": usage}}
    return [part async for part in stream_of(path, asked, None)]


def feed_all(stream: EventStream, chunks: list[bytes]) -> tuple[bytes, int]:
    """All that leaves, and how many events had output."""
    found = [*map(stream.feed, chunks), stream.end()]
    return b"".join(data for data, _ in found), sum(n for _, n in found)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Data in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    path=st.sampled_from(sorted(INFERENCE)),
    tokens=st.integers(0, 6),
    drops=st.booleans(),
    ending=st.sampled_from((b"\n", b"\r\n")),
    places=st.lists(st.integers(0, 5000), max_size=30),
)
@example("/v1/chat/completions", 3, True, b"\r\n", list(range(2000)))
def test_any_cut_is_the_same(
    path: str, tokens: int, drops: bool, ending: bytes, places: list[int]
) -> None:
    """Bytes, tokens and usage do not depend on where the network cuts; only the usage event is
    dropped, if it is."""
    parts = [part.replace(b"\n", ending) for part in asyncio.run(_events(path, tokens, True))]
    whole = b"".join(parts)
    stream = EventStream(INFERENCE[path], drops, 10_000)
    left, seen = feed_all(stream, cut(whole, places))
    only_usage = [part for part in parts if b'"choices":[]' in part]
    expected = [part for part in parts if not (drops and part in only_usage)]
    assert left == b"".join(expected)
    assert seen == tokens
    assert stream.usage == Usage(PROMPT_TOKENS, tokens)
    assert stream.events == len(expected)
    assert stream.failure == ""


@given(data=st.binary(max_size=300), places=st.lists(st.integers(0, 300), max_size=10))
def test_anything_passes(data: bytes, places: list[int]) -> None:
    """Bytes that are no events leave as they came."""
    stream = EventStream(CHAT, True, 10_000)
    assert feed_all(stream, cut(data, places))[0] == data


KEYS = "choices delta usage type error message content prompt_tokens response text token_ids"


@given(value=any_json(KEYS))
@pytest.mark.parametrize("path", sorted(INFERENCE))
def test_any_json_passes(path: str, value: object) -> None:
    """An event of a shape that nobody foresaw breaks nothing."""
    data = event({"choices": value, "usage": value, "x": value} if value else {})
    data += event(value) if isinstance(value, dict) else b""
    stream = EventStream(INFERENCE[path], False, 10_000)
    assert feed_all(stream, [data])[0] == data
    assert all(count is None or count >= 0 for count in stream.usage)


def test_an_event_leaves_with_its_end() -> None:
    """Not later, and the beginning of the next one stays."""
    stream = EventStream(CHAT, False, 10_000)
    one, two = event({"choices": []}), event({"choices": [], "n": 2})
    assert stream.feed(one[:-1]) == (b"", 0)
    assert stream.feed(one[-1:] + two[:5]) == (one, 0)
    assert stream.feed(two[5:]) == (two, 0)


def test_an_endless_event_is_passed_on() -> None:
    """What is larger than any event is not kept; the rest of the stream passes unseen."""
    stream = EventStream(CHAT, False, 100)
    assert stream.feed(b"data: " + b"x" * 50) == (b"", 0)
    data, _ = stream.feed(b"y" * 60)
    assert data == b"data: " + b"x" * 50 + b"y" * 60
    more = event({"choices": [{"delta": {"content": "z"}}]})
    assert stream.feed(more) == (more, 0) and stream.end() == (b"", 0)


def test_a_failure_is_noticed() -> None:
    """In the form of each dialect."""
    failures = {
        "/v1/chat/completions": event({"error": {"message": "m"}}),
        "/v1/completions": event({"error": {"message": "m"}}),
        "/v1/messages": event({"type": "error", "error": {}}, "error"),
        "/v1/responses": event({"type": "response.failed", "response": {}}, "response.failed"),
    }
    for path, data in failures.items():
        stream = EventStream(INFERENCE[path], False, 10_000)
        assert stream.feed(data) == (data, 0) and stream.failure == "engine_error"


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"content": "a"}, 1),
        ({"content": ""}, 1),
        ({"role": "assistant", "content": "a"}, 1),
        ({"reasoning": "a"}, 1),
        ({"reasoning_content": "a"}, 1),
        ({"tool_calls": [{"index": 0}]}, 1),
        ({}, 0),
    ],
)
def test_what_is_output_in_chat(delta: dict, tokens: int) -> None:
    """The role comes without a token; reasoning and tool calls are output as text is, and so is a
    token whose text is held back until its character is whole."""
    stream = EventStream(CHAT, False, 10_000)
    assert stream.feed(event({"choices": [{"delta": delta}]}))[1] == tokens


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "a"}, 1),
        ({"text": "", "finish_reason": None}, 1),
        ({"text": "", "finish_reason": "stop"}, 0),
        ({"text": "", "finish_reason": "length", "token_ids": [7]}, 1),
        ({}, 0),
    ],
)
def test_what_is_output_in_completions(choice: dict, tokens: int) -> None:
    """A token of a character that is not whole has no text, and the end of a stream no token."""
    stream = EventStream(INFERENCE["/v1/completions"], False, 10_000)
    assert stream.feed(event({"choices": [choice]}))[1] == tokens


def test_continuous_usage_stays() -> None:
    """Usage beside output is the client's own wish, and the last count holds."""
    stream = EventStream(CHAT, True, 10_000)
    both = event({"choices": [{"delta": {"content": "a"}}], "usage": usage_of(1)})
    later = event({"choices": [{"delta": {"content": "b"}}], "usage": usage_of(2)})
    assert stream.feed(both + later) == (both + later, 2)
    assert stream.usage == Usage(PROMPT_TOKENS, 2)


def _chunk(**choice: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]}


_TEXT, _STOP = _chunk(delta={"content": "x"}), _chunk(finish_reason="stop")
_DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ([event(_TEXT), event(_STOP), _DONE], ""),
        ([event(_TEXT), event(_STOP)], ""),
        ([event(_TEXT)], "engine_broke"),
        ([event(_TEXT), _DONE], "engine_broke"),
        ([event(_TEXT), event(_chunk(finish_reason="")), _DONE], "engine_broke"),
        ([event(_TEXT), event(_STOP)[:-9]], "engine_broke"),
        ([event(_TEXT), event(_STOP), _DONE, event(_STOP)[:-9]], ""),
        ([event(_STOP), event(_chunk(index=1)), _DONE], "engine_broke"),
        ([event(_STOP), event(_chunk(index=1, finish_reason="length")), _DONE], ""),
        ([event(_STOP), event(_chunk(index=1, finish_reason="timeout")), _DONE], "engine_error"),
        ([event(_TEXT), event(_STOP), event(_STOP), _DONE], ""),
        ([event(_STOP), event(_chunk(finish_reason="length")), _DONE], "engine_garbage"),
        ([event(_TEXT).replace(b"x", b"\xff"), event(_STOP), _DONE], "engine_garbage"),
        ([b"data: {half\n\n", event(_STOP), _DONE], "engine_garbage"),
        ([b"data: 3\n\n", event(_STOP), _DONE], "engine_garbage"),
        ([b"event: ping\ndata: 3\n\n", event(_STOP), _DONE], ""),
        ([], "engine_broke"),
        ([event(_TEXT), event(_chunk(finish_reason="abort")), _DONE], "engine_error"),
        ([event(_TEXT), event(_chunk(finish_reason="error")), _DONE], "engine_error"),
        ([event(_TEXT), b"event: error\ndata: upstream reset\n\n"], "engine_error"),
        ([event(_TEXT), b"event:error\r\ndata: upstream reset\r\n\r\n"], "engine_error"),
        ([event(_TEXT), event({"object": "error", "message": "out of KV"}), _DONE], "engine_error"),
        ([event(_TEXT), event({"error": {"message": "out of KV"}}), _DONE], "engine_error"),
    ],
)
def test_a_stream_that_did_not_come_to_its_end(events: list[bytes], failure: str) -> None:
    """An answer is whole only if every choice said once why it ended, and not that it was given up;
    each other end has the kind of its break."""
    stream = EventStream(CHAT, False, 10_000)
    assert feed_all(stream, events)[0] == b"".join(events)
    assert stream.failure == failure
