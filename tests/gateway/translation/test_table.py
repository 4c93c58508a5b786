"""Paths find their dialect, and the whole way there and back."""

from __future__ import annotations

import ast
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway import translation
from jaxserve.gateway.dialects import CHAT, GOOGLE, MESSAGES, RESPONSES, Usage, dialect_of
from jaxserve.gateway.problems import Problem
from jaxserve.gateway.translation.chat import Choice, Completion, Counts
from jaxserve.gateway.translation.deltas import deltas_of
from jaxserve.gateway.translation.models import ModelCard
from jaxserve.gateway.translation.table import Answerer, models_body, translated, translates
from tests.gateway.translation.conversations import plain_json

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
SAID = Completion((Choice(0, "hi", "hm", finish="stop"),), Counts(10, 5))


def sent(path: str, body: object, query: bytes = b"alt=sse") -> Answerer:
    """The way back of a request."""
    chat, answerer = translated(path, query, orjson.dumps(body), answer_id="id1", unix_s=5)
    assert answerer.chat is chat
    return answerer


@pytest.mark.parametrize("path", BODIES)
def test_every_path(path: str) -> None:
    """One chat, whatever the dialect; what counts answers a number."""
    assert translates(path)
    answerer = sent(path, BODIES[path])
    assert answerer.chat.request["messages"] == ASK and answerer.chat.model == "m"
    assert answerer.way.dialect is dialect_of(path)
    counts = path.endswith(("tokens", "Tokens"))
    assert answerer.counts == counts
    assert answerer.chat.streamed == ("stream" in path)
    if counts:
        assert 7 in orjson.loads(answerer.counted(7)).values()


@pytest.mark.parametrize("path", [path for path in BODIES if "okens" not in path])
def test_answers_are_what_the_gateway_measures(path: str) -> None:
    """Its eye for tokens, usage and errors sees in every dialect what was written."""
    body = BODIES[path] | {"stream_options": {"include_usage": True}, "stream": True}
    answerer = sent(path, body)
    dialect = answerer.way.dialect
    whole = orjson.loads(answerer.whole(SAID))
    assert dialect.usage(whole) == Usage(10, 5) and not dialect.is_error(whole)
    events = answerer.events()
    data = events.feed(deltas_of(SAID)) + events.end()
    found = [orjson.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    assert any(dialect.has_token(event) for event in found)
    assert not any(dialect.is_error(event) for event in found)
    usage = Usage()
    for event in found:
        usage = usage.updated(dialect.usage(event))
    assert usage == Usage(10, 5)
    error = dialect.error_event(Problem(502, "engine_broke", "it broke"), events.events)
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
    error = GOOGLE.error(Problem(status, "why", "the sentence"))["error"]
    assert (error["code"], error["status"], error["message"]) == (status, told, "the sentence")
    assert error["details"][0]["reason"] == "WHY"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 5000])
def test_bodies_that_are_no_requests(path: str, body: bytes) -> None:
    """400, in one sentence."""
    with pytest.raises(Problem) as refused:
        translated(path, b"alt=sse", body, answer_id="i", unix_s=0)
    assert refused.value.status == 400


def test_a_stream_needs_events() -> None:
    """Google's other form of streams is a list that ends when the answer does."""
    path = "/v1beta/models/m:streamGenerateContent"
    for query in (b"", b"alt=json", b"key=k"):
        with pytest.raises(Problem, match="alt=sse"):
            sent(path, BODIES["/v1beta/models/m:generateContent"], query)


_NAMES = st.sampled_from(
    (
        "model", "messages", "role", "content", "type", "text", "input", "tools", "name",
        "tool_choice", "system", "contents", "parts", "functionCall", "functionResponse",
        "generationConfig", "thinking", "output_config", "format", "schema", "reasoning",
        "inlineData", "source", "tool_calls", "include", "stream", "stream_options", "n",
        "toolConfig", "functionDeclarations", "parameters", "responseSchema", "modalities",
        "systemInstruction", "namespace", "allowedFunctionNames", "functionCallingConfig", "mode",
    )
)  # fmt: skip
_VALUES = (
    plain_json
    | st.sampled_from(("user", "assistant", "model", "function", "ANY", "tool_result", "message"))
    | st.sampled_from(
        ("image", "tool_use", "json_schema", "function_call", "namespace", "thinking")
    )
)
_JSON = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.parametrize("path", BODIES)
@given(fields=st.dictionaries(_NAMES, _JSON, max_size=4))
def test_any_json_is_read_or_refused(path: str, fields: dict[str, object]) -> None:
    """Whatever a client sends, it gets an answer or one sentence with a status of its own fault."""
    try:
        sent(path, BODIES[path] | fields)
    except Problem as refused:
        assert refused.status == 400 and "\n" not in str(refused)


def test_models_in_the_form_of_the_client() -> None:
    """Known by path or header; one of them, and one that is not there."""
    cards = (ModelCard("a/b"),)
    anthropic, google = [(b"anthropic-version", b"2023-06-01")], [(b"x-goog-api-key", b"k")]
    assert orjson.loads(models_body("/v1/models", [], cards))["object"] == "list"
    assert orjson.loads(models_body("/v1/models", anthropic, cards))["first_id"] == "a/b"
    for path, headers in (("/v1beta/models", []), ("/v1/models", google)):
        assert orjson.loads(models_body(path, headers, cards))["models"]
    assert orjson.loads(models_body("/v1/models/a/b", [], cards))["id"] == "a/b"
    assert orjson.loads(models_body("/v1beta/models/a%2Fb", [], cards))["name"] == "models/a/b"
    with pytest.raises(Problem) as refused:
        models_body("/v1/models/c", [], cards)
    assert refused.value.status == 404


def test_what_translation_knows_of_the_gateway() -> None:
    """Forms of errors and headers, nothing that serves: it is pure."""
    allowed = ("translation", "problems", "dialects", "headers")
    (folder,) = translation.__path__
    for file in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxserve"):
                rest = (node.module or "").removeprefix("jaxserve.").split(".")
                names = rest[1:2] or [alias.name for alias in node.names]
                assert rest[0] in ("checks", "errors") or set(names) <= set(allowed)
