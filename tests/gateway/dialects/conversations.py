"""Conversations and answers in canonical form, for tests of every dialect."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from jaxserve.gateway.dialects.canonical import (
    Completion,
    CompletionChoice,
    Counts,
    DialectRequest,
    ToolCall,
)
from jaxserve.gateway.dialects.deltas import (
    Arguments,
    Delta,
    Reasoning,
    Refusal,
    Text,
    deltas_of,
)

PIXEL = "iVBORw0KGgo="
NOW_S = 1_700_000_000

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
object_items = st.dictionaries(names, plain_json, max_size=2)
schemas = st.builds(
    lambda fields: {"type": "object", "properties": {name: {"type": "string"} for name in fields}},
    st.lists(names, max_size=2),
)
images = st.sampled_from((f"data:image/png;base64,{PIXEL}", "https://example.com/a.png"))
numbers = st.integers(0, 1000)


def dumps(value: Any) -> str:
    """JSON as the gateway writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def asked(fields: dict[str, Any], **more: Any) -> DialectRequest:
    """A request with a body."""
    return DialectRequest(fields, "id1", NOW_S, **more)


@st.composite
def contents(draw: st.DrawFn) -> Any:
    """What a user or a tool says: a text, or a text and an image."""
    text = draw(texts)
    if draw(st.booleans()):
        return text
    image = {"type": "image_url", "image_url": {"url": draw(images)}}
    return [{"type": "text", "text": text}, image]


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of a chat that is whole: every call has a result."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(contents())})
        called = draw(st.lists(st.tuples(names, object_items), max_size=2))
        text = draw(texts) if not called or draw(st.booleans()) else None
        answer: dict[str, Any] = {"role": "assistant", "content": text}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(texts)
        if called:
            answer["tool_calls"] = [
                {
                    "id": f"call_{turn}_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": dumps(given)},
                }
                for number, (name, given) in enumerate(called)
            ]
        messages.append(answer)
        for call in answer.get("tool_calls", ()):
            content = draw(contents())
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    messages.append({"role": "user", "content": draw(contents())})
    return messages


@st.composite
def tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Functions with names of their own."""
    offered = draw(st.lists(st.tuples(names, texts, schemas), max_size=2, unique_by=lambda t: t[0]))
    return [
        {
            "type": "function",
            "function": {"name": name, "description": about, "parameters": schema},
        }
        for name, about, schema in offered
    ]


@st.composite
def choices(draw: st.DrawFn, index: int = 0) -> CompletionChoice:
    """An answer of a model that makes no mistakes in its JSON."""
    calls = draw(st.lists(st.tuples(names, object_items), max_size=2))
    maybe = st.just("") | texts
    finish = st.sampled_from(("tool_calls", "length") if calls else ("stop", "length"))
    return CompletionChoice(
        index=index,
        text=draw(maybe),
        reasoning=draw(maybe),
        refusal="" if calls else draw(maybe),
        calls=tuple(
            ToolCall(f"call_{number}", name, dumps(given))
            for number, (name, given) in enumerate(calls)
        ),
        finish=draw(finish),
    )


counts = st.builds(Counts, numbers, numbers, st.none() | st.just(0), st.none() | st.just(0))


@st.composite
def completions(draw: st.DrawFn, most: int = 1) -> Completion:
    """An answer, or several at a time."""
    several = draw(st.integers(1, most))
    return Completion(tuple(draw(choices(index)) for index in range(several)), draw(counts))


@st.composite
def cut_deltas(draw: st.DrawFn, completion: Completion) -> list[Delta]:
    """Deltas that fold to a completion, with its texts cut anywhere."""
    found: list[Delta] = []
    for delta in deltas_of(completion):
        if isinstance(delta, Arguments):
            pieces = _cut(delta.text, draw(st.lists(st.integers(0, 12), max_size=4)))
            found += [Arguments(delta.choice, delta.call, piece) for piece in pieces]
        elif isinstance(delta, Reasoning | Text | Refusal):
            pieces = _cut(delta.text, draw(st.lists(st.integers(0, 12), max_size=4)))
            found += [type(delta)(delta.choice, piece) for piece in pieces]
        else:
            found.append(delta)
    return found


def _cut(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]
