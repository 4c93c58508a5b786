"""Answers in Google's dialect, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects.canonical import Chat, Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.dialects.deltas import (
    Arguments,
    CallStart,
    Finish,
    Reasoning,
    Text,
    deltas_of,
)
from jaxserve.gateway.dialects.google_generate import answers as google_answers
from jaxserve.gateway.dialects.google_generate import requests as google_generate
from jaxserve.gateway.dialects.sealed_reasoning import sealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from tests.gateway.dialects.conversations import asked
from tests.gateway.dialects.streams import written

CALL = {"functionCall": {"id": "c0", "name": "f", "args": {"a": 1}}}
CALLS = (ToolCall("c0", "f", '{"a":1}'),)


def to_chat(has_token: bool = True) -> Chat:
    """A request to answer."""
    config = {"thinkingConfig": {"includeThoughts": has_token}}
    fields = {"contents": [{"parts": [{"text": "hello"}]}], "generationConfig": config}
    return google_generate.to_chat(asked(fields, model="m", streamed=True), TemplatePolicy())


def test_thoughts_that_are_not_shown() -> None:
    """Leave their signature, on the call if that comes first."""
    choice = CompletionChoice(0, "", "hm", calls=CALLS, finish="tool_calls")
    body = google_answers.answer_body(to_chat(has_token=False), Completion((choice,)))
    signed = {**CALL, "thoughtSignature": sealed("hm")}
    assert body["candidates"][0]["content"]["parts"] == [signed]


@pytest.mark.parametrize(
    ("finish", "told"),
    [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
        ("something_new", "STOP"),
    ],
)
@pytest.mark.parametrize("text", ["a", ""])
def test_finish_reasons(finish: str, told: str, text: str) -> None:
    """The same whole and streamed, also where nothing was said; one that is not known is no
    failure."""
    completion = Completion((CompletionChoice(0, text, finish=finish),))
    body = google_answers.answer_body(to_chat(), completion)
    last = written(google_answers.GoogleEventWriter(to_chat()), deltas_of(completion))[-1]
    assert body["candidates"][0]["finishReason"] == told == last["candidates"][0]["finishReason"]
    said = [part["text"] for part in body["candidates"][0]["content"]["parts"]]
    assert "".join(said) == text


def test_events() -> None:
    """Texts as they come, calls when they are whole, the reason and usage at the end."""
    deltas: list[Any] = [
        Reasoning(0, "h"),
        Reasoning(0, "m"),
        Text(0, "h"),
        Text(0, "i"),
        CallStart(0, 0, "c0", "f"),
        Arguments(0, 0, '{"a"'),
        Arguments(0, 0, ":1}"),
        CallStart(0, 1, "c1", "g"),
        Finish(0, "tool_calls"),
        Counts(10, 5),
    ]
    events = written(google_answers.GoogleEventWriter(to_chat()), deltas)
    other = {"functionCall": {"id": "c1", "name": "g", "args": {}}}
    assert [event["candidates"][0]["content"]["parts"] for event in events] == [
        [{"text": "h", "thought": True}],
        [{"text": "m", "thought": True}],
        [{"text": "h", "thoughtSignature": sealed("hm")}],
        [{"text": "i"}],
        [CALL],
        [other],
    ]
    assert ["usageMetadata" in event for event in events] == [False] * 5 + [True]
    assert google_answers.GoogleEventWriter(to_chat()).feed(deltas[:1]).endswith(b"\r\n\r\n")
