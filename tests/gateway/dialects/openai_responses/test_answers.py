"""Answers in the dialect of OpenAI's responses, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects.canonical import Chat, Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.dialects.deltas import deltas_of
from jaxserve.gateway.dialects.openai_responses import answers as responses_answers
from jaxserve.gateway.dialects.openai_responses import requests as openai_responses
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from tests.gateway.dialects.conversations import asked
from tests.gateway.dialects.streams import written

CALLS = (ToolCall("c0", "f", '{"a":1}'),)
SEALS = {"include": ["reasoning.encrypted_content"]}


def to_chat(**fields: Any) -> Chat:
    """A request to answer."""
    given = asked({"model": "m", "input": "hello", **fields})
    return openai_responses.to_chat(given, TemplatePolicy())


def test_events() -> None:
    """All of a stream, in their order, numbered."""
    choice = CompletionChoice(0, "hi", "hm", calls=CALLS, finish="tool_calls")
    events = written(
        responses_answers.ResponsesEventWriter(to_chat()),
        deltas_of(Completion((choice,), Counts(3, 2))),
    )
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    content = "content_part.added {0}.delta {0}.done content_part.done output_item.done"
    called = "output_item.added function_call_arguments.delta function_call_arguments.done"
    kinds = f"created in_progress output_item.added {content.format('reasoning_text')} "
    kinds += (
        f"output_item.added {content.format('output_text')} {called} output_item.done completed"
    )
    assert [event["type"].removeprefix("response.") for event in events] == kinds.split()
    places = [event.get("output_index") for event in events]
    assert places == [None] * 2 + [0] * 6 + [1] * 6 + [2] * 4 + [None]
    assert events[2]["item"] == {
        "id": "rs_id1_0",
        "type": "reasoning",
        "status": "in_progress",
        "summary": [],
        "content": [],
    }
    assert events[16]["arguments"] == '{"a":1}' and events[16]["item_id"] == "fc_id1_2"
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    assert len(events[-1]["response"]["output"]) == 3


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        (CompletionChoice(0, "Hello.", finish="stop"), ["message"]),
        (CompletionChoice(0, "", "Think harder.", finish="stop"), ["reasoning"]),
        (CompletionChoice(0, "", "A.", calls=CALLS), ["reasoning", "function_call"]),
        (CompletionChoice(0, calls=(*CALLS, *CALLS)), ["function_call"] * 2),
        (CompletionChoice(0, refusal="no", finish="stop"), ["message"]),
    ],
)
def test_only_what_was_said_is_an_item(choice: CompletionChoice, kinds: list[str]) -> None:
    """Nothing is there that is empty; a refusal is a part of its own kind."""
    items = responses_answers.answer_body(to_chat(), Completion((choice,)))["output"]
    assert [item["type"] for item in items] == kinds
    if choice.refusal:
        assert items[0]["content"] == [{"type": "refusal", "refusal": "no"}]


@pytest.mark.parametrize(
    ("finish", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_it_ends(finish: str, status: str, why: Any) -> None:
    """An answer that was cut off is incomplete, and so is its last item; also in a stream."""
    completion = Completion((CompletionChoice(0, "hi", "hm", finish=finish),))
    body = responses_answers.answer_body(to_chat(), completion)
    assert (body["status"], body["incomplete_details"]) == (status, why)
    assert [item["status"] for item in body["output"]] == ["completed", status]
    events = written(responses_answers.ResponsesEventWriter(to_chat()), deltas_of(completion))
    last = {"type": f"response.{status}", "sequence_number": len(events) - 1}
    assert events[-1] == {**last, "response": body}
    assert events[-2]["item"] == body["output"][-1]


def test_calls_of_custom_and_named_tools() -> None:
    """In the client's words again; input that is none is told as the model wrote it."""
    custom = {"type": "custom", "name": "patch"}
    inner = {"type": "function", "name": "f"}
    space = {"type": "namespace", "name": "env", "description": "E", "tools": [inner]}
    calls = (
        ToolCall("c0", "patch", '{"input":"a\\nb"}'),
        ToolCall("c1", "patch", "a"),
        ToolCall("c2", "env__f", "{}"),
    )
    chat = to_chat(tools=[custom, space])
    completion = Completion((CompletionChoice(0, calls=calls, finish="tool_calls"),))
    done = {"status": "completed"}
    patch = {**done, "type": "custom_tool_call", "name": "patch"}
    named = {**done, "type": "function_call", "name": "f", "namespace": "env"}
    assert responses_answers.answer_body(chat, completion)["output"] == [
        {**patch, "id": "ctc_id1_0", "call_id": "c0", "input": "a\nb"},
        {**patch, "id": "ctc_id1_1", "call_id": "c1", "input": "a"},
        {**named, "id": "fc_id1_2", "call_id": "c2", "arguments": "{}"},
    ]
    events = written(responses_answers.ResponsesEventWriter(chat), deltas_of(completion))
    told = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [(event["type"].rsplit(".")[-1], event["output_index"]) for event in told] == [
        ("delta", 0),
        ("done", 0),
        ("delta", 1),
        ("done", 1),
    ]
    assert told[0]["delta"] == told[1]["input"] == "a\nb"
