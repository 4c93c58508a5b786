"""Canonical chats written as clients of the other dialects would send them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.gateway.dialects.sealed_reasoning import sealed

Messages = Sequence[Mapping[str, Any]]


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _data(url: str) -> tuple[str, str] | None:
    """Media type and data of an address that holds data."""
    if not url.startswith("data:"):
        return None
    kind, data = url.removeprefix("data:").split(";base64,")
    return kind, data


def anthropic_content(content: Any) -> Any:
    """Text and images as blocks."""
    if not isinstance(content, list):
        return content
    blocks = []
    for part in content:
        if part["type"] == "text":
            blocks.append(part)
        elif data := _data(part["image_url"]["url"]):
            source = {"type": "base64", "media_type": data[0], "data": data[1]}
            blocks.append({"type": "image", "source": source})
        else:
            blocks.append({"type": "image", "source": {"type": "url", **part["image_url"]}})
    return blocks


def anthropic_messages(messages: Messages) -> dict[str, Any]:
    """``system`` and ``messages``; results of tools in a row are one message."""
    found: dict[str, Any] = {"messages": []}
    for message in messages:
        role, content = message["role"], anthropic_content(message["content"])
        if role == "system":
            found["system"] = [{"type": "text", "text": content}]
        elif role == "user":
            found["messages"].append({"role": "user", "content": content})
        elif role == "assistant":
            found["messages"].append(_anthropic_assistant(message))
        else:
            result = {"tool_use_id": message["tool_call_id"], "content": content}
            if found["messages"][-1]["role"] == "assistant":
                found["messages"].append({"role": "user", "content": []})
            found["messages"][-1]["content"].append({"type": "tool_result", **result})
    return found


def _anthropic_assistant(message: Mapping[str, Any]) -> dict[str, Any]:
    blocks = []
    if reasoning := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": sealed(reasoning)})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        blocks.append(block)
    return {"role": "assistant", "content": blocks}


def responses_input(messages: Messages) -> list[dict[str, Any]]:
    """Input items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            output = _input_parts(content)
            call_id = message["tool_call_id"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        elif role != "assistant":
            items.append({"type": "message", "role": role, "content": _input_parts(content)})
        else:
            items += _responses_assistant(message)
    return items


def _responses_assistant(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        seal = sealed(reasoning)
        items.append({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": seal})
    if text := message["content"]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in message.get("tool_calls", ()):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _input_parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in content
    ]


def google_contents(messages: Messages, *, with_ids: bool) -> dict[str, Any]:
    """``systemInstruction`` and ``contents``."""
    found: dict[str, Any] = {"contents": []}
    called: dict[str, str] = {}
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            found["systemInstruction"] = {"parts": [{"text": content}]}
        elif role == "user":
            found["contents"].append({"role": "user", "parts": _google_parts(content)})
        elif role == "assistant":
            found["contents"].append(_google_model(message, called, with_ids))
        else:
            text, *rest = _google_parts(content)
            response = {"name": called[message["tool_call_id"]], "parts": rest}
            response["response"] = {"output": text["text"]}
            if with_ids:
                response["id"] = message["tool_call_id"]
            found["contents"].append({"role": "user", "parts": [{"functionResponse": response}]})
    return found


def _google_model(
    message: Mapping[str, Any], called: dict[str, str], with_ids: bool
) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message["content"]:
        parts.append({"text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        called[call["id"]] = function["name"]
        given = {"name": function["name"], "args": json.loads(function["arguments"])}
        parts.append({"functionCall": {"id": call["id"], **given} if with_ids else given})
    if reasoning := message.get("reasoning_content"):
        parts[0]["thoughtSignature"] = sealed(reasoning)
    return {"role": "model", "parts": parts}


def _google_parts(content: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in _parts(content):
        if part["type"] == "text":
            found.append({"text": part["text"]})
        elif data := _data(part["image_url"]["url"]):
            found.append({"inlineData": {"mimeType": data[0], "data": data[1]}})
        else:
            found.append({"fileData": {"fileUri": part["image_url"]["url"]}})
    return found
