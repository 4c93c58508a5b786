"""Answers of the engines, in the canonical form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice, Counts, ToolCall
from jaxserve.gateway.dialects.deltas import fold
from jaxserve.gateway.dialects.engine_reader import EngineReader, engine_error
from jaxserve.gateway.http.errors import RequestError
from tests.examples_drawn import any_json
from tests.gateway.dialects.conversations import completions

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def whole(message: dict[str, Any], **choice: Any) -> Completion:
    """What is read of an answer with one message."""
    choices = [{"index": 0, "message": message, "finish_reason": "stop", **choice}]
    return EngineReader("id1").whole({"choices": choices})


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_under_either_name(name: str) -> None:
    """vLLM's and SGLang's; the other one may be there as null."""
    nothing = {"reasoning": None, "reasoning_content": None}
    found = whole({**nothing, "content": "text", name: "thought"}).first
    assert found == CompletionChoice(0, "text", "thought", finish="stop")
    (delta,) = EngineReader("id1").feed({"choices": [{"delta": {**nothing, name: "x"}}]})
    assert fold([delta]).first.reasoning == "x"


def test_calls() -> None:
    """Whole, and in events: the name once, arguments in pieces, an id also where none is given."""
    assert whole({"content": None, "tool_calls": [CALL]}).first.calls == (
        ToolCall("c1", "f", '{"a":1}'),
    )
    reader = EngineReader("id1")
    pieces = [
        {"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"name": "f", "arguments": ":1}"}},
        {"index": 1, "function": {"name": "g", "arguments": "{}"}},
    ]
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    calls = fold(delta for event in events for delta in reader.feed(event)).first.calls
    assert calls == (ToolCall("c1", "f", '{"a":1}'), ToolCall("call_id1_0_1", "g", "{}"))


@pytest.mark.parametrize(
    ("said", "stop"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": 151645}, None),
        ({"matched_stop": 151645}, None),
        ({}, None),
    ],
)
def test_stop_sequences(said: dict[str, Any], stop: str | None) -> None:
    """Under either engine's name; a token that ends is none."""
    assert whole({"content": "a"}, **said).first.stop == stop


def test_counts() -> None:
    """Beside or behind the choices, with what was cached and thought."""
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert EngineReader("i").feed({"choices": [], "usage": usage}) == [Counts(7, 5, 3, 2)]
    flat = {"prompt_tokens": 7, "completion_tokens": 5, "reasoning_tokens": 2}
    assert EngineReader("i").feed({"choices": [], "usage": flat}) == [Counts(7, 5, None, 2)]
    assert EngineReader("i").feed({"choices": [], "usage": None}) == []


def test_several_choices_and_logprobs() -> None:
    """Each under its index."""
    entry = {"token": "a", "logprob": -0.1}
    choices = [
        {"index": 1, "message": {"content": "b"}, "finish_reason": "length"},
        {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
    ]
    choices[1]["logprobs"] = {"content": [entry]}
    found = EngineReader("id1").whole({"choices": choices}).choices
    assert found == (
        CompletionChoice(0, "a", finish="stop", logprobs=(entry,)),
        CompletionChoice(1, "b", finish="length"),
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [3]},
        {"choices": [{"message": 3}]},
        {"choices": [{"message": {"content": 3}}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]},
        {"choices": [{"message": {"tool_calls": [{}]}}]},
        {"choices": [{"index": -1, "message": {"content": "a"}}]},
        {"choices": [{"message": {"content": "a"}}], "usage": 3},
        {"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "3"}},
    ],
)
def test_what_is_no_answer(answer: dict[str, Any]) -> None:
    """Is the engine's error, not ours."""
    with pytest.raises(RequestError) as refused:
        EngineReader("id1").whole(answer)
    assert refused.value.status == 502 and refused.value.reason == "engine_garbage"


@given(any_json("choices index delta content tool_calls function usage"))
def test_any_json_is_read_or_refused(value: Any) -> None:
    """Nothing that an engine says is more than its own error."""
    for event in ({"choices": value, "usage": value}, {"choices": [{"delta": value}]}):
        try:
            EngineReader("id1").feed(event)
        except RequestError as refused:
            assert refused.status == 502


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_was_given_up(reason: str) -> None:
    """Is none, and neither is an error in place of one."""
    with pytest.raises(RequestError, match="gave up"):
        EngineReader("i").feed({"choices": [{"delta": {}, "finish_reason": reason}]})
    with pytest.raises(RequestError, match="out of memory"):
        EngineReader("i").feed({"error": {"message": "out of memory", "code": 500}})


def test_errors_of_engines() -> None:
    """Their words, in a form that every dialect can tell; with a time to come back after 429."""
    vllm = engine_error(400, b'{"error": {"message": "too long", "code": 400}}', "e")
    sglang = engine_error(400, b'{"object": "error", "message": "too long"}', "e")
    assert str(vllm) == str(sglang) == "too long" and vllm.reason == "engine_4xx"
    mute = engine_error(500, b"<html>", "e")
    assert str(mute) == "engine e answered with status 500" and mute.reason == "engine_5xx"
    assert engine_error(429, b"[]", "e").retry_after_s == 1


@given(completions(most=3))
def test_an_answer_is_read_as_it_was_meant(completion: Completion) -> None:
    """Written as an engine would, every completion is read back."""
    choices = []
    for choice in completion.choices:
        calls = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
        message = {"content": choice.text, "reasoning": choice.reasoning, "tool_calls": calls}
        message["refusal"] = choice.refusal
        choices.append({"index": choice.index, "message": message, "finish_reason": choice.finish})
    answer = json.loads(json.dumps({"choices": choices}))
    assert EngineReader("id1").whole(answer).choices == completion.choices


def _piece(arguments: str, **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    return {"function": {"arguments": arguments} | ({"name": name} if name else {}), **fields}


@pytest.mark.parametrize("index", [{"index": 0}, {}, {"index": None}, {"index": -1}])
@pytest.mark.parametrize("ids", [True, False])
def test_calls_of_a_stream_that_share_an_index(index: dict[str, Any], ids: bool) -> None:
    """Another id or another name begins another call, where an engine counts none."""
    first, second = ({"id": "c1"}, {"id": "c2"}) if ids else ({}, {})
    pieces = [
        _piece("", name="lookup", **first, **index),
        _piece('{"q": ', **index),
        _piece('"a"}', **index),
        _piece("", name="convert", **second, **index),
        _piece('{"x": 2}', **index),
        _piece('{"x": 3}', name="convert", **({"id": "c3"} if ids else {}), **index),
    ]
    reader = EngineReader("id1")
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    calls = fold(delta for event in events for delta in reader.feed(event)).first.calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("lookup", '{"q": "a"}'),
        ("convert", '{"x": 2}'),
        ("convert", '{"x": 3}'),
    ]
    assert len({call.id for call in calls}) == 3


@given(
    st.lists(st.tuples(st.sampled_from("fg"), st.integers(0, 9)), min_size=1, max_size=5),
    st.booleans(),
    st.integers(1, 12),
)
def test_calls_by_index_may_be_interleaved(
    made: list[tuple[str, int]], named_again: bool, size: int
) -> None:
    """Pieces of parallel calls with an index each are put together in any order of the calls."""
    texts = [f'{{"value": "{name}{value}"}}' for name, value in made]
    reader, deltas = EngineReader("id1"), []
    for number, (name, _) in enumerate(made):
        start = _piece("", name=name, id=f"c{number}", index=number)
        deltas += reader.feed({"choices": [{"delta": {"tool_calls": [start]}}]})
    for begin in range(0, max(map(len, texts)), size):
        for number, (name, _) in enumerate(made):
            again = {"name": name, "id": f"c{number}"} if named_again else {}
            piece = _piece(texts[number][begin : begin + size], index=number, **again)
            deltas += reader.feed({"choices": [{"delta": {"tool_calls": [piece]}}]})
    calls = fold(deltas).first.calls
    assert [(call.name, call.arguments) for call in calls] == [
        (name, text) for (name, _), text in zip(made, texts, strict=True)
    ]


@pytest.mark.parametrize("indices", [(0, 0), (1, 0), (-1, -1), (None, None), (7, 3)])
def test_calls_of_a_whole_answer_are_its_entries(indices: tuple[int | None, ...]) -> None:
    """In the order of the list, whatever their indices say: engines put the place of the function
    among the tools there."""
    entries = [
        {"id": f"c{number}", "index": index, "function": {"name": "f", "arguments": f"[{number}]"}}
        for number, index in enumerate(indices)
    ]
    calls = whole({"content": None, "tool_calls": entries}).first.calls
    assert [(call.id, call.arguments) for call in calls] == [("c0", "[0]"), ("c1", "[1]")]


def test_an_event_without_choices_says_nothing() -> None:
    """Routers send their cost so, and usage alone."""
    reader = EngineReader("id1")
    assert reader.feed({"object": "chat.completion.chunk", "cost": 0.1}) == []
    assert reader.feed({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}) == [
        Counts(3, 2, None, None)
    ]
