"""What more than text a session takes to an engine: images, a wished form of output, counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from jaxserve.rollouts.builders import prefix_merging
from tests.gateway.conftest import Start
from tests.gateway.recording.dialect_bodies import BODIES, IMAGE, SCHEMA
from tests.gateway.recording.session_agent import Agent, started, user
from tests.gateway.token_engine import TokenEngine, prompt_of

PLACE = '{"place": "Ulm"}'
SEEN = [
    {"type": "text", "text": "what?"},
    {"type": "image_url", "image_url": {"url": IMAGE}},
]
COUNTING = [name for name, body in BODIES.items() if body.counts]


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[TokenEngine]:
    """Of each kind."""
    running = TokenEngine(request.param)
    with running:
        yield running


@pytest.fixture
def agent(engine: TokenEngine, start: Start, tmp_path: Path) -> Agent:
    """In a session before it."""
    return Agent(started(start, engine, tmp_path))


@pytest.mark.parametrize("dialect", BODIES)
def test_an_image_reaches_the_engine(dialect: str, agent: Agent, engine: TokenEngine) -> None:
    """As an image of chat, whole; it is in the record as received and as sent, and the answer to it
    can be continued."""
    body = BODIES[dialect]
    assert body.say(agent, body.first(), reply="a pixel").status_code == 200
    assert body.say(agent, body.history("a pixel")).status_code == 200
    answer = {"role": "assistant", "content": "a pixel"}
    asked = [[{"role": "user", "content": SEEN}]]
    asked.append([*asked[0], answer, user("and now?")])
    for record, seen, messages in zip(agent.records(), engine.seen, asked, strict=True):
        assert seen.json["messages"] == record.messages == messages
        assert record.sent == seen.body and record.prompt_ids is not None
        assert record.prompt_ids.tolist() == prompt_of(messages)
        received = orjson.loads(record.received)
        assert IMAGE.partition(",")[2] in orjson.dumps(received).decode()
    (trace,) = prefix_merging(agent.records()).traces
    assert trace.trainable == len("a pixel.ok.") and list(trace.messages[:1]) == asked[0]


@pytest.mark.parametrize("dialect", BODIES)
def test_a_wished_form_reaches_the_engine(dialect: str, agent: Agent, engine: TokenEngine) -> None:
    """A schema is chat's ``response_format`` there, and a parameter of sampling in the record:
    tokens that do not fit have no chance."""
    body = BODIES[dialect]
    answer = body.say(agent, body.schema, reply=PLACE)
    assert answer.status_code == 200 and texts_in(answer.json()).count(PLACE) == 1
    (record,) = agent.records()
    (seen,) = engine.seen
    wanted = {"name": "output", "schema": SCHEMA}
    assert seen.json["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert record.sampling["response_format"] == seen.json["response_format"]
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
def test_who_counts_tokens(dialect: str, agent: Agent, engine: TokenEngine) -> None:
    """vLLM does; SGLang's route takes no chat, which is said with 501 in the dialect's own form.
    Neither is recorded."""
    body = BODIES[dialect]
    asked = {name: value for name, value in body.ask.items() if name != "max_tokens"}
    answer = agent.gateway.http.post(body.counts or "", json=asked, headers=agent.headers)
    told = answer.json()
    if engine.kind == "vllm":
        count = len(prompt_of([user("look")]))
        assert answer.status_code == 200 and count in told.values()
    else:
        assert answer.status_code == 501
        sentence = told["error"].pop("message")
        assert sentence.endswith("does not count tokens of a chat") and "\n" not in sentence
        assert told == NOT_COUNTED[dialect]
    assert agent.records() == []


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
