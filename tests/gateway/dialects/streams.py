"""Streams put together again, as clients do it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from jaxserve.gateway.dialects.deltas import Delta, EventWriter


def written(writer: EventWriter, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    """Events of some deltas, fed one by one, without chat's last word."""
    data = b"".join([*(writer.feed([delta]) for delta in deltas), writer.end()])
    found = []
    for event in data.replace(b"\r\n", b"\n").decode().split("\n\n"):
        if not event:
            continue
        *head, last = event.split("\n")
        text = last.removeprefix("data: ")
        if text == "[DONE]":
            continue
        found.append(json.loads(text))
        assert head == [] or head == [f"event: {found[-1]['type']}"]
    assert writer.events == len(found)
    return found


def chat_message(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Messages by index."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            message = found.setdefault(choice["index"], {"calls": {}, "finish_reason": None})
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "refusal"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", ()):
                whole = message["calls"].setdefault(call["index"], {"arguments": ""})
                if "id" in call:
                    whole |= {"id": call["id"], "name": call["function"]["name"]}
                whole["arguments"] += call["function"]["arguments"]
            message["finish_reason"] = message["finish_reason"] or choice["finish_reason"]
    return found


def anthropic_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole message."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    message, arguments, opened = events[0]["message"], "", None
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert opened is None and event["index"] == len(message["content"])
                opened, arguments = event["content_block"], ""
            case "content_block_delta":
                assert opened is not None
                delta = dict(event["delta"])
                kind = delta.pop("type")
                if kind == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    (name,) = delta
                    assert kind == f"{name}_delta"
                    opened[name] += delta[name]
            case "content_block_stop":
                assert opened is not None
                if opened["type"] == "tool_use":
                    opened["input"] = json.loads(arguments or "{}")
                message["content"].append(opened)
                opened = None
            case "message_delta":
                assert opened is None
                message |= event["delta"] | {"usage": event["usage"]}
    return message


def response(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last event's response, whose items are those of the events before."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    texts: dict[int, str] = {}
    for event in events[2:-1]:
        at, kind = event["output_index"], event["type"]
        if kind == "response.output_item.added":
            assert at == len(items) and event["item"]["status"] == "in_progress"
            items.append(event["item"])
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[at]["id"]
            texts[at] = texts.get(at, "") + event["delta"]
        elif kind == "response.output_item.done":
            done = event["item"]
            (part,) = done.get("content", [done])
            told = [part[name] for name in _TEXTS if name in part]
            assert told == [texts.get(at, "")] and done["id"] == items[at]["id"]
            items[at] = done
    whole = events[-1]["response"]
    assert events[-1]["type"] == f"response.{whole['status']}" and whole["output"] == items
    return whole


_TEXTS = ("text", "refusal", "arguments", "input")


def google_answer(events: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer, with texts of a kind as one part."""
    whole: dict[str, Any] = {"candidates": {}}
    for event in events:
        for candidate in event["candidates"]:
            found = whole["candidates"].setdefault(
                candidate["index"], {**candidate, "content": {"parts": [], "role": "model"}}
            )
            for part in candidate["content"]["parts"]:
                _add(found["content"]["parts"], part)
            if "finishReason" in candidate:
                found["finishReason"] = candidate["finishReason"]
        whole |= {name: event[name] for name in event if name != "candidates"}
    whole["candidates"] = [one for _, one in sorted(whole["candidates"].items())]
    return whole


def _add(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    last = parts[-1] if parts else {}
    same = last.get("thought") == part.get("thought") and "text" in last
    if "text" in part and "thoughtSignature" not in part and same:
        last["text"] += part["text"]
    else:
        parts.append(dict(part))
