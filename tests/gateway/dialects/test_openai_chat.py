"""OpenAI's chat, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects import openai_chat
from jaxserve.gateway.dialects.canonical import Chat, Completion, CompletionChoice, Counts
from jaxserve.gateway.dialects.deltas import deltas_of
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.dialects.conversations import NOW_S, asked
from tests.gateway.dialects.streams import written

ASK = [{"role": "user", "content": "hello"}]
ENTRY = {"token": "hi", "logprob": -0.25}


def to_chat(**fields: Any) -> Chat:
    """A request with some more fields."""
    given = asked({"model": "m", "messages": ASK, **fields})
    return openai_chat.to_chat(given, TemplatePolicy())


def test_what_engines_are_told() -> None:
    """All that the client says of sampling, and nothing that is between it and a provider."""
    fields = {"temperature": 0.5, "top_k": 5, "n": 2, "chat_template_kwargs": {"a": 1}}
    chat = to_chat(**fields, store=True, metadata={"a": "b"}, service_tier="auto", stop=None)
    assert chat.request == {"model": "m", "messages": ASK, **fields}
    assert (chat.id, chat.unix_s, chat.model, chat.streamed) == ("id1", NOW_S, "m", False)
    form = {"max_completion_tokens": 32, "response_format": {"type": "json_object"}}
    assert to_chat(**form).request == {"model": "m", "messages": ASK, **form}
    streamed = to_chat(stream=True, stream_options={"include_usage": False})
    assert streamed.request["stream_options"] == {"include_usage": True} and streamed.streamed


def test_a_chat_does_not_change() -> None:
    """What is made of it is another one."""
    chat = to_chat()
    before = chat.content
    chat.request["messages"].clear()
    assert chat.content == before


def test_reasoning_in_the_history() -> None:
    """Under either name, as the canonical one."""
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": "a", name: "b"}
        (_, found) = to_chat(messages=[*ASK, answer]).request["messages"]
        assert found == {"role": "assistant", "content": "a", "reasoning_content": "b"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"functions": [{}]}, "functions is not supported: use tools"),
        ({"modalities": ["audio"]}, "modalities other than text"),
        ({"web_search_options": {"a": 1}}, "web_search_options is not supported"),
        ({"messages": []}, "messages is []; it must be a list with at least one entry"),
        ({"messages": [{"role": "bot"}]}, "messages[0]: role is 'bot'; it must be one of system"),
        ({"messages": [{"role": "user", "content": [3]}]}, "content[0] is 3; it must be"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "tool_call_id is missing"),
        ({"tools": [{"type": "custom"}]}, "tools[0]: type is 'custom'; it must be one of function"),
        ({"tools": [{"type": "function", "function": {}}]}, "function: name is missing"),
        ({"model": None}, "model is None; it must be a text"),
        ({"stream": "yes"}, "stream is 'yes'; it must be true or false"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(RequestError) as refused:
        to_chat(**fields)
    assert sentence in str(refused.value) and refused.value.status == 400


def test_what_only_captures_asked_for() -> None:
    """Log-probabilities and usage that the client did not ask for do not reach it."""
    completion = Completion(
        (CompletionChoice(0, "hi", finish="stop", logprobs=(ENTRY,)),), Counts(3, 2)
    )
    assert openai_chat.answer_body(to_chat(), completion)["choices"][0]["logprobs"] is None
    events = written(openai_chat.ChatEventWriter(to_chat(stream=True)), deltas_of(completion))
    assert {event["model"] for event in events} == {"m"}
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "hi"},
        {},
    ]
    wished = to_chat(stream=True, logprobs=True, stream_options={"include_usage": True})
    events = written(openai_chat.ChatEventWriter(wished), deltas_of(completion))
    assert events[2]["choices"][0]["logprobs"]["content"] == [ENTRY]
    assert events[-1]["usage"]["total_tokens"] == 5
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
