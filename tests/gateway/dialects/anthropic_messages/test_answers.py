"""Answers in Anthropic's dialect, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects.anthropic_messages import answers as anthropic_answers
from jaxserve.gateway.dialects.anthropic_messages import requests as anthropic_messages
from jaxserve.gateway.dialects.canonical import Chat, Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.dialects.deltas import deltas_of
from jaxserve.gateway.dialects.request_fields import INVALID_ARGUMENTS
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from tests.gateway.dialects.conversations import asked
from tests.gateway.dialects.streams import written

CALLS = (ToolCall("c0", "f", '{"a":1}'),)


def to_chat(**fields: Any) -> Chat:
    """A request to answer."""
    ask = [{"role": "user", "content": "hello"}]
    given = asked({"model": "m", "max_tokens": 9, "messages": ask, **fields})
    return anthropic_messages.to_chat(given, TemplatePolicy())


@pytest.mark.parametrize(
    ("choice", "reason", "sequence"),
    [
        (CompletionChoice(text="a", finish="stop"), "end_turn", None),
        (CompletionChoice(text="a", finish="stop", stop="END"), "stop_sequence", "END"),
        (CompletionChoice(text="a", finish="length"), "max_tokens", None),
        (CompletionChoice(text="a", finish="content_filter"), "refusal", None),
        (CompletionChoice(refusal="a", finish="stop"), "refusal", None),
        (CompletionChoice(calls=CALLS, finish="tool_calls"), "tool_use", None),
        (CompletionChoice(calls=CALLS, finish="stop"), "tool_use", None),
        (CompletionChoice(calls=CALLS, finish="length"), "max_tokens", None),
        (CompletionChoice(text="a"), None, None),
    ],
)
def test_stop_reasons(choice: CompletionChoice, reason: str | None, sequence: str | None) -> None:
    """The same in a whole answer and in a stream."""
    completion = Completion((choice,))
    body = anthropic_answers.answer_body(to_chat(), completion)
    last = written(anthropic_answers.MessagesEventWriter(to_chat()), deltas_of(completion))[-2][
        "delta"
    ]
    for found in (body, last):
        assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)


def test_arguments_that_are_no_object() -> None:
    """Reach the tool as the one argument that it will refuse."""
    for written_down in ('{"a":', "[1]", "3"):
        choice = CompletionChoice(calls=(ToolCall("c0", "f", written_down),), finish="tool_calls")
        body = anthropic_answers.answer_body(to_chat(), Completion((choice,)))
        assert body["content"][0]["input"] == {INVALID_ARGUMENTS: written_down}


def test_counts_that_come_early() -> None:
    """Stand in the stream's first event."""
    choice = CompletionChoice(0, "hi", finish="stop")
    deltas = [Counts(10, 0), *deltas_of(Completion((choice,), Counts(10, 5)))]
    events = written(anthropic_answers.MessagesEventWriter(to_chat()), deltas)
    assert events[0]["message"]["usage"]["input_tokens"] == 10
    assert events[-2]["usage"]["output_tokens"] == 5
