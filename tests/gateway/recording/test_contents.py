"""What more than text a session takes to an engine: images, a wished form of output, counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest

from jaxserve.rollouts.builders import prefix_merging
from tests.gateway.dialects import writers
from tests.gateway.recording.session_agent import Agent, user
from tests.gateway.token_engine import TokenEngine, prompt_of

PLACE = '{"place": "Ulm"}'
IMAGE = "data:image/png;base64,iVBORw0KGgo="
PICTURE = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


@dataclass(frozen=True)
class Body:
    """A dialect's words."""

    path: str
    counts: str | None
    """the route that counts tokens; None where there is none."""
    conversation: Callable[[Any], Mapping[str, Any]]
    """messages of a chat in the dialect."""
    sampling: Mapping[str, Any]
    """what asks for an object of the schema at temperature 1."""

    def say(self, agent: Agent, *messages: Any, reply: str = "ok", **fields: Any) -> httpx.Response:
        """Asks in a session; the engine answers with a text."""
        headers = {**agent.headers, "x-stub": orjson.dumps({"reply": reply}).decode()}
        body = {**self.conversation(messages), **fields}
        return agent.gateway.http.post(self.path, json=body, headers=headers)


CHAT_FORMAT = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
BODIES: Mapping[str, Body] = {
    "chat": Body(
        "/v1/chat/completions",
        None,
        lambda messages: {"model": "stub", "messages": messages},
        {"temperature": 1, "response_format": CHAT_FORMAT},
    ),
    "messages": Body(
        "/v1/messages",
        "/v1/messages/count_tokens",
        lambda messages: {"model": "stub", **writers.anthropic_messages(messages)},
        {"temperature": 1, "max_tokens": 50, "output_config": {"format": FORMAT}},
    ),
    "responses": Body(
        "/v1/responses",
        "/v1/responses/input_tokens",
        lambda messages: {"model": "stub", "input": writers.responses_input(messages)},
        {"temperature": 1, "text": {"format": {**FORMAT, "name": "output"}}},
    ),
    "google": Body(
        "/v1beta/models/stub:generateContent",
        "/v1beta/models/stub:countTokens",
        lambda messages: writers.google_contents(messages, with_ids=True),
        {
            "generationConfig": {
                "temperature": 1,
                "responseMimeType": "application/json",
                "responseJsonSchema": SCHEMA,
            }
        },
    ),
}
COUNTING = [name for name, body in BODIES.items() if body.counts]


@pytest.mark.parametrize("dialect", BODIES)
def test_an_image_reaches_the_engine(dialect: str, any_agent: Agent, tokens: TokenEngine) -> None:
    """As an image of chat, whole; it is in the record as received and as sent, and the answer to it
    can be continued."""
    body, picture = BODIES[dialect], {"role": "user", "content": PICTURE}
    history = [picture, {"role": "assistant", "content": "a pixel"}, user("and now?")]
    more = {"max_tokens": 50} if dialect == "messages" else {}
    assert body.say(any_agent, picture, reply="a pixel", **more).status_code == 200
    assert body.say(any_agent, *history, **more).status_code == 200
    for record, seen, messages in zip(
        any_agent.records(), tokens.seen, ([picture], history), strict=True
    ):
        assert seen.json["messages"] == record.messages == messages
        assert record.sent == seen.body and record.prompt_ids is not None
        assert record.prompt_ids.tolist() == prompt_of(messages)
        assert IMAGE.partition(",")[2].encode() in record.received
    (trace,) = prefix_merging(any_agent.records()).traces
    assert trace.trainable == len("a pixel.ok.") and list(trace.messages[:1]) == [picture]


@pytest.mark.parametrize("dialect", BODIES)
def test_wishes_reach_the_engine(dialect: str, any_agent: Agent, tokens: TokenEngine) -> None:
    """A temperature and a schema, which is chat's ``response_format`` there; both are parameters of
    sampling in the record: tokens that do not fit have no chance."""
    body = BODIES[dialect]
    answer = body.say(any_agent, user("look"), reply=PLACE, **body.sampling)
    assert answer.status_code == 200 and texts_in(answer.json()).count(PLACE) == 1
    (record,) = any_agent.records()
    (seen,) = tokens.seen
    for told in (seen.json, record.sampling):
        assert (told["temperature"], told["response_format"]) == (1, CHAT_FORMAT)
    assert record.choices[0].message["content"] == PLACE
    (trace,) = prefix_merging([record]).traces
    (sampling,) = trace.metadata["sampling"]
    assert sampling == record.sampling


def texts_in(value: Any) -> list[str]:
    """All texts in some JSON."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_in(one)]


@pytest.mark.parametrize("dialect", COUNTING)
def test_who_counts_tokens(dialect: str, any_agent: Agent, tokens: TokenEngine) -> None:
    """vLLM does; SGLang's route takes no chat, which is said with 501 in the dialect's own form.
    Neither is recorded."""
    body = BODIES[dialect]
    asked = body.conversation([user("look")])
    answer = any_agent.gateway.http.post(body.counts or "", json=asked, headers=any_agent.headers)
    told = answer.json()
    if tokens.kind == "vllm":
        count = len(prompt_of([user("look")]))
        assert answer.status_code == 200 and count in told.values()
    else:
        assert answer.status_code == 501
        sentence = told["error"].pop("message")
        assert sentence.endswith("does not count tokens of a chat") and "\n" not in sentence
        assert told == NOT_COUNTED[dialect]
    assert any_agent.records() == []


_DETAIL = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "COUNTING_NOT_SUPPORTED",
    "domain": "jaxserve",
}
NOT_COUNTED: dict[str, Any] = {
    "messages": {"type": "error", "error": {"type": "api_error"}},
    "responses": {
        "error": {"type": "server_error", "param": None, "code": "counting_not_supported"}
    },
    "google": {"error": {"code": 501, "status": "UNIMPLEMENTED", "details": [_DETAIL]}},
}
"""Errors without their sentence."""
