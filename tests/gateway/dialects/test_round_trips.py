"""Nothing that is said is lost on the way through a dialect."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects import openai_chat
from jaxserve.gateway.dialects.anthropic_messages import answers as anthropic_answers
from jaxserve.gateway.dialects.anthropic_messages import requests as anthropic_messages
from jaxserve.gateway.dialects.canonical import Chat, Completion
from jaxserve.gateway.dialects.google_generate import answers as google_answers
from jaxserve.gateway.dialects.google_generate import requests as google_generate
from jaxserve.gateway.dialects.openai_responses import answers as responses_answers
from jaxserve.gateway.dialects.openai_responses import requests as openai_responses
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from tests.gateway.dialects import writers
from tests.gateway.dialects.conversations import (
    asked,
    completions,
    conversations,
    cut_deltas,
    tools,
)
from tests.gateway.dialects.streams import (
    anthropic_message,
    chat_message,
    google_answer,
    response,
    written,
)

POLICY = TemplatePolicy()
ASK = [{"role": "user", "content": "hello"}]


def heard(chat: Chat) -> tuple[Any, Any]:
    """What the engine is told."""
    return chat.request["messages"], chat.request.get("tools", [])


@given(conversations(), tools())
def test_a_chat_through_its_own_dialect(messages: list[Any], offered: list[Any]) -> None:
    """It arrives as it was."""
    chat = chat_for(openai_chat, {"messages": messages, "tools": offered})
    assert heard(chat) == (messages, offered)


@given(conversations(), tools())
def test_a_chat_through_messages(messages: list[Any], offered: list[Any]) -> None:
    """Also reasoning, calls, results and images."""
    fields = writers.anthropic_messages(messages) | {"model": "m", "max_tokens": 5}
    fields["tools"] = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in offered
    ]
    for chat in (
        anthropic_messages.to_chat(asked(fields), POLICY),
        anthropic_messages.to_chat(asked(fields, counts=True), POLICY),
    ):
        assert heard(chat) == (messages, offered)


@given(conversations(), tools())
def test_a_chat_through_responses(messages: list[Any], offered: list[Any]) -> None:
    """Likewise; the assistant's items in a row are one message again."""
    items = writers.responses_input(messages)
    flat = [{"type": "function", **tool["function"]} for tool in offered]
    fields = {"model": "m", "input": items, "tools": flat}
    for chat in (
        openai_responses.to_chat(asked(fields), POLICY),
        openai_responses.to_chat(asked(fields, counts=True), POLICY),
    ):
        assert heard(chat) == (messages, offered)


@given(conversations(), tools(), st.booleans(), st.booleans())
def test_a_chat_through_google(
    messages: list[Any], offered: list[Any], with_ids: bool, nested: bool
) -> None:
    """Likewise; calls without ids get some, and results find their calls by function and order."""
    fields = writers.google_contents(messages, with_ids=with_ids)
    declared = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "parametersJsonSchema": tool["function"]["parameters"],
        }
        for tool in offered
    ]
    fields["tools"] = [{"functionDeclarations": declared}]
    counted = {"generateContentRequest": fields} if nested else fields
    for chat in (
        google_generate.to_chat(asked(fields, model="m"), POLICY),
        google_generate.to_chat(asked(counted, model="m", counts=True), POLICY),
    ):
        found, functions = heard(chat)
        assert functions == offered
        if with_ids:
            assert found == messages
        else:
            assert renumbered(found) == renumbered(messages)


def renumbered(messages: list[Any]) -> list[Any]:
    """With ids in the order of calls, and results of one turn in the order of their calls."""
    ids: dict[str, int] = {}
    found = []
    for message in messages:
        message = dict(message)
        for call in message.get("tool_calls", ()):
            ids[call["id"]] = len(ids)
        if "tool_calls" in message:
            message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = ids[message["tool_call_id"]]
        found.append(message)
    return found


def chat_for(dialect: Any, fields: dict[str, Any], **more: Any) -> Chat:
    """A request that is to be answered in some way."""
    return dialect.to_chat(asked({"model": "m", **fields}, **more), POLICY)


@given(st.data(), completions(most=3))
def test_any_cut_of_chat_is_the_same(data: st.DataObject, completion: Completion) -> None:
    """Messages, finish reasons and usage do not depend on where texts were cut."""
    fields = {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}}
    chat = chat_for(openai_chat, fields)
    body = openai_chat.answer_body(chat, completion)
    events = written(openai_chat.ChatEventWriter(chat), data.draw(cut_deltas(completion)))
    messages = chat_message(events)
    assert len(messages) == len(body["choices"])
    for choice in body["choices"]:
        said, streamed = choice["message"], messages[choice["index"]]
        for name in ("content", "reasoning_content", "refusal"):
            assert (said.get(name) or "") == streamed.get(name, "")
        calls = [{"id": call["id"], **call["function"]} for call in said.get("tool_calls", ())]
        assert calls == [call for _, call in sorted(streamed["calls"].items())]
        assert choice["finish_reason"] == streamed["finish_reason"]
    assert events[-1]["choices"] == []
    if "usage" in body:
        assert events[-1]["usage"] == body["usage"]


@given(st.data(), completions(), st.sampled_from(("summarized", "omitted")))
def test_any_cut_of_messages_is_the_same(
    data: st.DataObject, completion: Completion, display: str
) -> None:
    """The message that events make is the whole answer's."""
    thinking = {"type": "adaptive", "display": display}
    fields = {"messages": ASK, "max_tokens": 5, "stream": True, "thinking": thinking}
    chat = chat_for(anthropic_messages, fields)
    events = written(anthropic_answers.MessagesEventWriter(chat), data.draw(cut_deltas(completion)))
    assert anthropic_message(events) == anthropic_answers.answer_body(chat, completion)


@given(st.data(), completions(), st.booleans())
def test_any_cut_of_responses_is_the_same(
    data: st.DataObject, completion: Completion, seals: bool
) -> None:
    """The last event has the whole answer, and its items are what the deltas said."""
    include = ["reasoning.encrypted_content"] if seals else []
    chat = chat_for(openai_responses, {"input": "hello", "stream": True, "include": include})
    deltas = data.draw(cut_deltas(completion))
    events = written(responses_answers.ResponsesEventWriter(chat), deltas)
    assert response(events) == responses_answers.answer_body(chat, completion)


@given(st.data(), completions(most=3), st.booleans())
def test_any_cut_of_google_is_the_same(
    data: st.DataObject, completion: Completion, has_token: bool
) -> None:
    """Candidates put together are the whole answer's."""
    config = {"thinkingConfig": {"includeThoughts": has_token}}
    fields = {"contents": [{"parts": [{"text": "hello"}]}], "generationConfig": config}
    chat = chat_for(google_generate, fields, model="m", streamed=True)
    events = written(google_answers.GoogleEventWriter(chat), data.draw(cut_deltas(completion)))
    assert google_answer(events) == google_answer([google_answers.answer_body(chat, completion)])


def spoken(completion: Completion) -> dict[str, Any]:
    """The assistant's message that a completion is, as the next request has to bring it."""
    choice = completion.first
    text = choice.text + choice.refusal
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = text or None if choice.calls else text
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function"}
            | {"function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return message


@given(completions(), st.sampled_from(("summarized", "omitted")))
def test_an_answer_comes_back_through_messages(completion: Completion, display: str) -> None:
    """A client that sends the answer's content back gives the model its own message, reasoning
    included, also where the client was not shown any."""
    thinking = {"type": "adaptive", "display": display}
    fields = {"messages": ASK, "max_tokens": 5, "thinking": thinking}
    body = anthropic_answers.answer_body(chat_for(anthropic_messages, fields), completion)
    history = [*ASK, {"role": "assistant", "content": body["content"]}, *ASK]
    again = chat_for(anthropic_messages, {**fields, "messages": history})
    assert again.request["messages"] == [*ASK, spoken(completion), *ASK]


@given(completions(), st.booleans())
def test_an_answer_comes_back_through_responses(completion: Completion, stripped: bool) -> None:
    """Also from a client that keeps of reasoning nothing but what is sealed, as Codex does."""
    fields: dict[str, Any] = {"input": "hello", "include": ["reasoning.encrypted_content"]}
    body = responses_answers.answer_body(chat_for(openai_responses, fields), completion)
    items = body["output"]
    if stripped:
        gone = ("id", "status", "content")
        items = [
            {name: value for name, value in item.items() if name not in gone}
            if item["type"] == "reasoning"
            else item
            for item in items
        ]
    again = chat_for(openai_responses, {**fields, "input": [*ASK, *items, *ASK]})
    found = [one for one in again.request["messages"] if one["role"] == "assistant"]
    if not items:
        assert found == []
    else:
        # Text and refusal are two messages there, and so they come back.
        text = "".join(one["content"] or "" for one in found)
        assert {**found[0], "content": text or None} == {
            **spoken(completion),
            "content": spoken(completion)["content"] or None,
        }


@given(completions(), st.booleans(), st.booleans())
def test_an_answer_comes_back_through_google(
    completion: Completion, has_token: bool, drops: bool
) -> None:
    """Also from a client that drops thoughts, as long as it keeps the signature behind them."""
    config = {"thinkingConfig": {"includeThoughts": has_token}}
    fields: dict[str, Any] = {"generationConfig": config}
    ask = {"role": "user", "parts": [{"text": "hello"}]}
    chat = chat_for(google_generate, {**fields, "contents": [ask]}, model="m")
    content = google_answers.answer_body(chat, completion)["candidates"][0]["content"]
    if drops:
        kept = [part for part in content["parts"] if not part.get("thought")]
        content = {**content, "parts": kept}
        if not kept:
            return
    again = chat_for(google_generate, {**fields, "contents": [ask, content, ask]}, model="m")
    assert again.request["messages"] == [*ASK, spoken(completion), *ASK]
