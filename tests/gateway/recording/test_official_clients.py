"""Every dialect through a session of a running gateway, spoken by the official clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.rollouts.builders import prefix_merging
from tests.gateway.conftest import Start
from tests.gateway.recording.client_conversations import (
    ASKED,
    CALL,
    DIALECTS,
    LAST,
    DialectClient,
    Talk,
    anthropic_client,
    converse,
    google_client,
    openai_client,
    strict,
    told,
)
from tests.gateway.recording.session_agent import Agent, started
from tests.gateway.token_engine import LENGTH, TokenEngine, message_of, prompt_of, sampled

ANSWERS: dict[str, dict[str, Any]] = {
    "text": {
        "reply": "Höhe: 5",
        "reasoning": "let me see",
        "usage": {
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    },
    "calls": {"reply": "I look.", "calls": ["find", "find"], "arguments": '{"x":1}'},
    "cut": {"reply": "Once upon", "finish": "length"},
    "refused": {"reply": "", "refusal": "no", "finish": "content_filter"},
    "nothing": {"reply": ""},
}
ASK: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_answer_is_understood(
    dialect: str, kind: str, agent: Agent, vllm: TokenEngine
) -> None:
    """Whole and streamed alike; the engine gets back what it said, calls before their results."""
    client: DialectClient = DIALECTS[dialect](agent, Talk())
    history, message = [client.user(ASKED)], message_of({"stub": ANSWERS[kind]}, 0)
    found = [client.ask(history, ANSWERS[kind], stream) for stream in (False, True)]
    assert found[0][:4] == found[1][:4]
    assert found[0].text == message["content"] + message.get("refusal", "")
    assert found[0].tokens == len(sampled(message))
    for said in found:
        results = [client.result(call, "seen") for call in said.calls]
        client.ask([*history, *said.history, *results, client.user("go on")], LAST, False)
        asked, *again, _ = vllm.seen[-1].json["messages"]
        assert asked == {"role": "user", "content": ASKED}
        if kind == "nothing" and dialect == "responses":
            assert again == []  # no item says it
            continue
        answer, *rest = again
        assert (answer.get("content") or "") + answer.get("refusal", "") == said.text
        for name in ("reasoning_content", "tool_calls"):
            assert answer.get(name, []) == message.get(name, [])
        assert [one["tool_call_id"] for one in rest] == [call[0] for call in said.calls]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_is_one_trace(
    dialect: str, stream: bool, start: Start, tmp_path: Path
) -> None:
    """With a tool and reasoning, in every dialect, recorded as it came and as it was sent; the same
    trace from both engines."""
    stubs = [message_of({"stub": stub}, 0) for stub in (CALL, LAST)]
    traces = []
    for kind in ("vllm", "sglang"):
        with TokenEngine(kind) as engine:
            agent = Agent(started(start, engine, tmp_path / kind))
            assert converse(dialect, agent, stream) == LAST["reply"]
        records = agent.records()
        for record, message in zip(records, stubs, strict=True):
            (choice,) = record.choices
            assert record.usable and record.sent is not None and record.prompt_ids is not None
            assert choice.response_ids is not None
            assert choice.response_ids.tolist() == sampled(message)
            assert record.prompt_ids.tolist() == prompt_of(record.messages)
            assert json.loads(record.received) != json.loads(record.sent)
            assert record.dialect == dialect.removesuffix("_v1")
        assert ASKED in records[0].received.decode()
        # What the model thought has come back to it, although the engine keeps nothing.
        assert records[1].messages[1]["reasoning_content"] == "which one?"
        trajectory = prefix_merging(records)
        assert not trajectory.cuts and not trajectory.dropped
        traces += trajectory.traces
    ours, theirs = traces
    for name in ("prompt_ids", "response_ids", "loss_mask", "response_logprobs"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.trainable == sum(map(len, map(sampled, stubs)))


def test_openai(agent: Agent, vllm: TokenEngine) -> None:
    """Parsers of schemas, the count of tokens, models, and errors by class and sentence."""
    import openai
    from pydantic import BaseModel

    class Place(BaseModel):
        """What is wanted."""

        place: str

    client, said = openai_client(agent), {"extra_headers": told({"reply": '{"place":"Ulm"}'})}
    with client.responses.stream(model="m", input="hello", text_format=Place, **said) as events:
        assert events.get_final_response().output_parsed == Place(place="Ulm")
    wanted = vllm.seen[-1].json["response_format"]
    assert wanted["json_schema"]["schema"]["properties"]["place"]["type"] == "string"
    chat = client.chat.completions.parse(model="m", messages=ASK, response_format=Place, **said)
    assert chat.choices[0].message.parsed == Place(place="Ulm")
    counted = client.responses.input_tokens.count(model="m", input="hello").input_tokens
    assert counted == len(prompt_of(ASK))
    assert [model.id for model in client.models.list()] == ["stub"]
    strict(client.models.retrieve("stub"))
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        client.responses.create(model="m", input="hi", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.models.retrieve("other")
    fails = {"stream": True, "extra_headers": told({"error": True})}
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(client.chat.completions.create(model="m", messages=ASK, **fails))


def test_anthropic(agent: Agent) -> None:
    """The count of tokens, models, and errors by class and sentence."""
    import anthropic

    client = anthropic_client(agent)
    counted = client.messages.count_tokens(model="m", messages=ASK, system="x").input_tokens
    assert counted == len(prompt_of([{"role": "system", "content": "x"}, *ASK]))
    (model,) = client.models.list()
    assert strict(model) == client.models.retrieve("stub")
    asked: Any = {"model": "m", "messages": ASK}
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0"):
        client.messages.create(**asked, max_tokens=0)
    fails = {"max_tokens": 5, "extra_headers": told({"error": True})}
    with (
        pytest.raises(anthropic.APIError, match="the engine failed"),
        client.messages.stream(**asked, **fails) as stream,
    ):
        stream.get_final_message()


def test_google(agent: Agent) -> None:
    """The count of tokens, models, and errors by status and sentence."""
    from google.genai import errors

    client = google_client(agent)
    asked: Any = {"model": "m", "contents": "hello"}
    assert client.models.count_tokens(**asked).total_tokens == len(prompt_of(ASK))
    (model,) = client.models.list()
    assert (model.name, model.input_token_limit) == ("models/stub", LENGTH)
    assert client.models.get(model="stub").name == "models/stub"
    with pytest.raises(
        errors.ClientError, match=r"400 INVALID_ARGUMENT.*responseLogprobs is not supported"
    ):
        client.models.generate_content(**asked, config={"response_logprobs": True})
    fails: Any = {"http_options": {"headers": told({"error": True})}}
    with pytest.raises(errors.APIError, match="the engine failed"):
        list(client.models.generate_content_stream(**asked, config=fails))
