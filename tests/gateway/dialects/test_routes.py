"""Paths find their dialect, and the whole way there and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects import anthropic_messages, google_generate, openai_chat
from jaxserve.gateway.dialects.anthropic_messages import MESSAGES
from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.dialects.deltas import deltas_of
from jaxserve.gateway.dialects.dialect import ModelCard, Usage, model_cards
from jaxserve.gateway.dialects.google_generate import GOOGLE
from jaxserve.gateway.dialects.openai_chat import CHAT
from jaxserve.gateway.dialects.openai_responses import RESPONSES
from jaxserve.gateway.dialects.routes import (
    AnswerTranslator,
    counts_tokens,
    dialect_of,
    models_response,
    translate,
    translates,
)
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import json_object
from tests.gateway.dialects.conversations import NOW_S, plain_json
from tests.gateway.dialects.test_fields import SAMPLES, TOP

ASK = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"model": "m", "messages": ASK},
    "/v1/messages": {"model": "m", "messages": ASK, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "m", "messages": ASK},
    "/v1/responses": {"model": "m", "input": "hello"},
    "/v1/responses/input_tokens": {"model": "m", "input": "hello"},
    "/v1beta/models/m:generateContent": {"contents": [{"parts": [{"text": "hello"}]}]},
    "/v1/models/m:streamGenerateContent": {"contents": [{"parts": [{"text": "hello"}]}]},
    "/v1beta/models/m:countTokens": {"contents": [{"parts": [{"text": "hello"}]}]},
}
COUNTED = {
    "/v1/messages/count_tokens": {"input_tokens": 7},
    "/v1/responses/input_tokens": {"object": "response.input_tokens", "input_tokens": 7},
    "/v1beta/models/m:countTokens": {"totalTokens": 7},
}
WHOLE: dict[str, Any] = orjson.loads(Path(__file__).with_name("whole_answers.json").read_bytes())
"""Requests and whole answers to them, by path."""
SAID = Completion((CompletionChoice(0, "hi", "hm", finish="stop"),), Counts(10, 5))


def sent(path: str, body: object, query: bytes = b"alt=sse") -> AnswerTranslator:
    """The way back of a request."""
    content = json_object(orjson.dumps(body))
    chat, answerer = translate(path, query, content, answer_id="id1", unix_s=NOW_S)
    assert answerer.chat is chat
    return answerer


@pytest.mark.parametrize("path", BODIES)
def test_every_path(path: str) -> None:
    """One chat, whatever the dialect; what counts answers a number."""
    assert translates(path)
    answerer = sent(path, BODIES[path])
    assert answerer.chat.request["messages"] == ASK and answerer.chat.model == "m"
    assert answerer.translation is dialect_of(path).translation
    assert counts_tokens(path) == (path in COUNTED)
    assert answerer.chat.streamed == ("stream" in path)
    if path in COUNTED:
        assert orjson.loads(answerer.counted(7)) == COUNTED[path]


@pytest.mark.parametrize("path", WHOLE)
def test_a_whole_answer(path: str) -> None:
    """Every field of it: a call behind text and reasoning, reasoning cut off, and a call alone."""
    call = ToolCall("c0", "f", '{"a":1}')
    logprobs = ({"token": "hi", "logprob": -0.25},)
    first = CompletionChoice(0, "hi", "hm", "", (call,), "tool_calls", None, logprobs)
    second = CompletionChoice(1, reasoning="cut", finish="length")
    third = CompletionChoice(2, calls=(call,), finish="tool_calls")
    answerer = sent(path, WHOLE[path]["request"])
    found = answerer.whole(Completion((first, second, third), Counts(10, 5, 4, 2)))
    assert orjson.loads(found) == WHOLE[path]["answer"]


@pytest.mark.parametrize("path", [path for path in BODIES if path not in COUNTED])
def test_answers_are_what_the_gateway_measures(path: str) -> None:
    """Its eye for tokens, usage and errors sees in every dialect what was written."""
    body = BODIES[path] | {"stream_options": {"include_usage": True}, "stream": True}
    answerer = sent(path, body)
    dialect = dialect_of(path)
    whole = orjson.loads(answerer.whole(SAID))
    assert dialect.usage(whole)[:2] == (10, 5) and not dialect.is_error(whole)
    events = answerer.events()
    data = events.feed(deltas_of(SAID)) + events.end()
    found = [orjson.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    assert any(dialect.has_token(event) for event in found)
    assert not any(dialect.is_error(event) for event in found)
    usage = Usage()
    for event in found:
        usage = usage.updated(dialect.usage(event))
    assert usage[:2] == (10, 5)
    error = dialect.error_event(RequestError(502, "engine_broke", "it broke"), events.events)
    (line,) = [line for line in error.splitlines() if line.startswith(b"data: ")]
    assert dialect.is_error(orjson.loads(line[6:]))


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/models", "/v1/models/m", "/v1beta/models/m:embedContent", "/", "/v1"],
)
def test_other_paths(path: str) -> None:
    """Are not translated."""
    assert not translates(path)


def test_whose_form_errors_have() -> None:
    """By path, also where there is nothing at it."""
    assert dialect_of("/v1/messages/count_tokens") is MESSAGES
    assert dialect_of("/v1/responses/input_tokens") is RESPONSES
    assert dialect_of("/v1beta/nothing") is dialect_of("/v1/models/m:countTokens") is GOOGLE
    assert dialect_of("/v1/models/m") is dialect_of("/") is CHAT


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (404, "NOT_FOUND"),
        (413, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
def test_googles_errors(status: int, told: str) -> None:
    """Have a status in words beside the number."""
    error = GOOGLE.error(RequestError(status, "why", "the sentence"))["error"]
    assert (error["code"], error["status"], error["message"]) == (status, told, "the sentence")
    assert error["details"][0]["reason"] == "WHY"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 5000])
def test_bodies_that_are_no_requests(path: str, body: bytes) -> None:
    """400, in one sentence."""
    with pytest.raises(RequestError) as refused:
        translate(path, b"alt=sse", json_object(body), answer_id="i", unix_s=0)
    assert refused.value.status == 400


def test_a_stream_needs_events() -> None:
    """Google's other form of streams is a list that ends when the answer does."""
    path = "/v1beta/models/m:streamGenerateContent"
    for query in (b"", b"alt=json", b"key=k"):
        with pytest.raises(RequestError, match="alt=sse"):
            sent(path, BODIES["/v1beta/models/m:generateContent"], query)


def rich(path: str) -> dict[str, Any]:
    """A request with every field that its dialect reads."""
    dialect = dialect_of(path).name
    fields = SAMPLES[dialect]["read"]
    if dialect != "google":
        return BODIES[path] | fields | {"stream": True}
    config = {name: fields[name] for name in fields if name not in TOP}
    body = {name: fields[name] for name in TOP if name in fields} | {"generationConfig": config}
    return {"generateContentRequest": body} if counts_tokens(path) else body


_RICH = {path: rich(path) for path in BODIES}


def places(value: object, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something can be put in place of something else."""
    if here:
        yield here
    inner = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else inner:
        yield from places(each, (*here, key))


def with_other(value: Any, place: tuple[Any, ...], other: object) -> object:
    """A copy with something else at a place."""
    if not place:
        return other
    found = value.copy()
    found[place[0]] = with_other(found[place[0]], place[1:], other)
    return found


_WORDS = ("user", "assistant", "model", "tool", "function", "text", "base64", "url", "none", "f")
_OTHERS = plain_json | st.sampled_from(_WORDS) | st.lists(st.just({}), max_size=2)


@pytest.mark.parametrize("path", _RICH)
def test_rich_requests_are_read(path: str) -> None:
    """Those that the next test spoils."""
    assert sent(path, _RICH[path]).chat.request["messages"]


@pytest.mark.parametrize("path", _RICH)
@given(data=st.data())
def test_any_json_is_read_or_refused(path: str, data: st.DataObject) -> None:
    """Whatever a client sends, it is understood, or told in one sentence why not."""
    body: object = _RICH[path]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(list(places(body))))
        body = with_other(body, place, data.draw(_OTHERS))
    try:
        sent(path, body)
    except RequestError as refused:
        assert refused.status == 400 and "\n" not in str(refused)


@pytest.mark.parametrize("path", _RICH)
@pytest.mark.parametrize("depth", [200, 400, 1000])
def test_any_depth_is_read_or_refused(path: str, depth: int) -> None:
    """No request is nested so deeply that it fails inside the gateway."""
    deep = orjson.Fragment(b'[{"items":' * (depth // 2) + b"1" + b"}]" * (depth // 2))
    tool = {"name": "f", "parameters": {"default": deep}, "input_schema": {"default": deep}}
    tools = [tool | {"type": "function", "function": tool, "functionDeclarations": [tool]}]
    try:
        sent(path, BODIES[path] | {"tools": tools, "temperature": deep, "x_y": deep})
    except RequestError as refused:
        assert refused.status == 400 and "\n" not in str(refused)


def test_models_in_the_form_of_the_client() -> None:
    """Known by path or header; one of them, and one that is not there."""
    cards = (ModelCard("a/b"),)
    anthropic, google = [(b"anthropic-version", b"2023-06-01")], [(b"x-goog-api-key", b"k")]
    assert orjson.loads(models_response("/v1/models", [], cards))["object"] == "list"
    assert orjson.loads(models_response("/v1/models", anthropic, cards))["first_id"] == "a/b"
    for path, headers in (("/v1beta/models", []), ("/v1/models", google)):
        assert orjson.loads(models_response(path, headers, cards))["models"]
    assert orjson.loads(models_response("/v1/models/a/b", [], cards))["id"] == "a/b"
    assert orjson.loads(models_response("/v1beta/models/a%2Fb", [], cards))["name"] == "models/a/b"
    with pytest.raises(RequestError) as refused:
        models_response("/v1/models/c", [], cards)
    assert refused.value.status == 404


CARDS = (ModelCard("a", 1_700_000_000, 4096), ModelCard("b"))


def test_what_engines_serve() -> None:
    """Is read of their own list, as far as it is one."""
    answer = {
        "data": [
            {"id": "a", "created": 1_700_000_000, "max_model_len": 4096},
            {"id": "b", "max_model_len": None},
            {"id": 3},
            "c",
        ]
    }
    assert model_cards(orjson.dumps(answer)) == CARDS
    for garbage in (None, [], {}, {"data": 3}):
        assert model_cards(orjson.dumps(garbage)) == ()
    assert model_cards(b"{") == ()


def test_every_dialects_form() -> None:
    """All of a list, to the letter."""
    listed = openai_chat.models_body(CARDS)
    one = {"id": "a", "object": "model", "created": 1_700_000_000, "owned_by": "jaxserve"}
    assert listed["object"] == "list" and listed["data"][0] == {**one, "max_model_len": 4096}
    page = anthropic_messages.models_body(CARDS)
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "a", "b")
    assert page["data"][0]["created_at"] == "2023-11-14T22:13:20Z"
    first, second = google_generate.models_body(CARDS)["models"]
    assert (first["name"], first["inputTokenLimit"]) == ("models/a", 4096)
    assert "inputTokenLimit" not in second
    for several in (openai_chat.models_body, anthropic_messages.models_body):
        assert several(())["data"] == []
