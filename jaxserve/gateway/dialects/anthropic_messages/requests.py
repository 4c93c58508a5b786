"""Requests of Anthropic's ``/v1/messages``, and requests to count their tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.gateway.dialects.canonical import Chat, DialectRequest, build_chat
from jaxserve.gateway.dialects.request_fields import (
    assistant_message,
    content_of,
    data_url,
    function_call,
    function_tool,
    image_part,
    json_text,
    named_choice,
    optional_object,
    optional_objects,
    optional_text,
    refuse_fields,
    refuse_unsupported,
    refuses_bad_input,
    renamed,
    schema_format,
    text_part,
    tool_message,
    wants_stream,
)
from jaxserve.gateway.dialects.sealed_reasoning import unsealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.json_http import object_items

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Line that Claude Code puts before its system prompt. The line changes with every request, so that
no two prompts would share a prefix."""
_LACKING = {
    "container": "there are no containers here",
    "compaction": "ask for a summary in a message",
    "thread": "nothing is stored here, so send all messages",
    "mcp_servers": "let the client call them, as tools",
}
_NAMES = {
    "max_tokens": "max_completion_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
}
_SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_")
"""Prefixes of the types of tools that Anthropic's servers run."""


@refuses_bad_input
def to_chat(asked: DialectRequest, policy: TemplatePolicy) -> Chat:
    """Reads a client's request into the canonical form.

    Raises:
      RequestError: the request is malformed, or asks for something that engines lack.
    """
    fields = JsonObject(asked.fields, "the request")
    if not asked.counts:
        fields.whole("max_tokens", 1)
    streamed = not asked.counts and wants_stream(fields)
    refuse_fields(fields, _LACKING)
    fields.entries("messages")
    messages = list(_system(fields))
    for message in optional_objects(fields, "messages"):
        messages += _messages(message)
    request = renamed(fields, _NAMES)
    request |= _output(fields, policy)
    named = _named_tools(fields)
    tools = [
        tool
        for each in optional_objects(fields, "tools")
        if each.get("defer_loading") is not True or each.get("name") in named
        if (tool := _tool(each)) is not None
    ]
    if tools:
        request["tools"] = tools
    request |= _tool_choice(fields, tools)
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        # Fields of both engines for an answer that the client has begun.
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    model = fields.text("model")
    return build_chat(
        asked, model, messages, request, policy, streamed=streamed, notes=_notes(fields)
    )


def _notes(fields: JsonObject) -> dict[str, Any]:
    """Whether the client sees the reasoning, or only its sealed form."""
    return {"shows_thinking": optional_object(fields, "thinking").get("display") != "omitted"}


def _system(fields: JsonObject) -> Iterator[dict[str, Any]]:
    """Message with the system prompt, if there is one."""
    system = fields.get("system")
    if isinstance(system, str):
        texts = [system]
    else:
        texts = [
            optional_text(block, "text")
            for block in optional_objects(fields, "system")
            if _is_text(block)
        ]
    texts = [_BILLING.sub("", text) for text in texts]
    parts = [text_part(text) for text in texts if text]
    if parts:
        yield {"role": "system", "content": content_of(parts)}


def _is_text(block: JsonObject) -> bool:
    return block.one_of("type", ("text",)) == "text"


def _messages(message: JsonObject) -> Iterator[dict[str, Any]]:
    """Chat messages of one message: results of tools become messages of their own."""
    role = message.one_of("role", ("user", "assistant", "system"))
    if isinstance(message.get("content"), str):
        yield {"role": role, "content": message["content"]}
        return
    if message.get("content") is None:
        refuse(message.name("content"), None, "a text or a list of blocks")
    blocks = list(optional_objects(message, "content"))
    if role == "assistant":
        yield _assistant(blocks)
        return
    parts: list[dict[str, Any]] = []
    has_result = False
    for block in blocks:
        if block.text("type") == "tool_result":
            if parts:
                yield {"role": role, "content": content_of(parts)}
                parts = []
            yield _result(block)
            has_result = True
        else:
            parts += _parts(block)
    if parts or not has_result:
        yield {"role": role, "content": content_of(parts)}


def _assistant(blocks: list[JsonObject]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block.text("type"):
            case "text":
                texts.append(optional_text(block, "text"))
            case "thinking":
                thoughts.append(
                    optional_text(block, "thinking") or unsealed(block.get("signature")) or ""
                )
            case "redacted_thinking":
                thoughts.append(unsealed(block.get("data")) or "")
            case "tool_use":
                arguments = json_text(dict(block.inside("input")))
                calls.append(function_call(block.text("id"), block.text("name"), arguments))
            case kind if _is_of_server(kind):
                pass
            case kind:
                refuse(block.name("type"), kind, "a type of block that the assistant writes")
    # Join the text blocks: an answer is split only where a call stands between.
    return assistant_message("".join(texts), "".join(thoughts), calls)


def _is_of_server(kind: str) -> bool:
    """Whether a block is an action of Anthropic's servers."""
    return kind in ("server_tool_use", "container_upload", "mcp_tool_use") or (
        kind != "tool_result" and kind.endswith("_tool_result")
    )


def _result(block: JsonObject) -> dict[str, Any]:
    content = block.get("content")
    if not isinstance(content, str):
        parts = [part for each in optional_objects(block, "content") for part in _parts(each)]
        content = content_of(parts)
    return tool_message(block.text("tool_use_id"), content, failed=block.get("is_error") is True)


def _parts(block: JsonObject) -> Iterator[dict[str, Any]]:
    """Content parts of a block of the user or of a tool."""
    match block.text("type"):
        case "text":
            yield text_part(optional_text(block, "text"))
        case "image":
            yield _image(block.inside("source"))
        case "document":
            yield from _document(block)
        case "search_result":
            yield text_part(f"{optional_text(block, 'title')}\n{optional_text(block, 'source')}")
            for each in optional_objects(block, "content"):
                yield from _parts(each)
        case "tool_reference":
            yield text_part(block.text("tool_name"))
        case kind if _is_of_server(kind):
            pass
        case kind:
            refuse(block.name("type"), kind, "a type of block that the user sends")


def _image(source: JsonObject) -> dict[str, Any]:
    match source.one_of("type", ("base64", "url", "file")):
        case "base64":
            return image_part(data_url(source.text("media_type"), source.text("data")))
        case "url":
            return image_part(source.text("url"))
        case _:
            refuse_unsupported("images by file_id are not supported: send the data or a URL")


def _document(block: JsonObject) -> Iterator[dict[str, Any]]:
    source = block.inside("source")
    kind = source.one_of("type", ("text", "content", "base64", "url", "file"))
    if title := optional_text(block, "title"):
        yield text_part(title)
    if kind == "text":
        yield text_part(optional_text(source, "data"))
    elif kind == "content" and isinstance(source.get("content"), str):
        yield text_part(source["content"])
    elif kind == "content":
        for each in optional_objects(source, "content"):
            yield from _parts(each)
    else:
        refuse_unsupported(f"documents of type {kind} are not supported: send their text")


def _named_tools(fields: JsonObject) -> list[Any]:
    """Names in the references of tool searches; the model is offered no other deferred tool."""
    messages = object_items(fields.get("messages"))
    blocks = [block for message in messages for block in object_items(message.get("content"))]
    inside = [each for block in blocks for each in object_items(block.get("content"))]
    references = (one for one in (*blocks, *inside) if one.get("type") == "tool_reference")
    return [reference.get("tool_name") for reference in references]


def _tool(tool: JsonObject) -> dict[str, Any] | None:
    """Tool of the client; None for a tool that Anthropic's servers run."""
    kind = tool.get("type") or "custom"
    if not isinstance(kind, str):
        refuse(tool.name("type"), kind, "a text")
    if kind.startswith(_SERVER_TOOLS):
        return None
    if kind != "custom":
        refuse_unsupported(
            f"a tool of type {kind} has no input_schema: describe it as a custom tool"
        )
    schema = dict(tool.inside("input_schema"))
    return function_tool(tool.text("name"), tool.get("description"), schema, tool.get("strict"))


def _tool_choice(fields: JsonObject, tools: list[dict[str, Any]]) -> dict[str, Any]:
    if not tools or fields.get("tool_choice") is None:
        return {}
    choice = fields.inside("tool_choice")
    found: dict[str, Any] = {}
    match choice.one_of("type", ("auto", "any", "tool", "none")):
        case "any":
            found["tool_choice"] = "required"
        case "tool":
            names = [tool["function"]["name"] for tool in tools]
            found["tool_choice"] = named_choice(choice.one_of("name", names))
        case kind:
            found["tool_choice"] = kind
    if choice.get("disable_parallel_tool_use") is True:
        found["parallel_tool_calls"] = False
    return found


def _output(fields: JsonObject, policy: TemplatePolicy) -> dict[str, Any]:
    """Effort or budget of reasoning, and the schema of the output."""
    found: dict[str, Any] = {}
    thinking = optional_object(fields, "thinking")
    if thinking.get("type") == "disabled":
        found["reasoning_effort"] = "none"
    elif thinking.get("budget_tokens") is not None and policy.thinking_budget_field is not None:
        found[policy.thinking_budget_field] = thinking.whole("budget_tokens", 1)
    config = optional_object(fields, "output_config")
    if config.get("effort") is not None and "reasoning_effort" not in found:
        found["reasoning_effort"] = config.text("effort")
    # The field ``output_format`` is the older name.
    wanted = optional_object(config, "format") or optional_object(fields, "output_format")
    if wanted:
        wanted.one_of("type", ("json_schema",))
        found["response_format"] = schema_format("output", dict(wanted.inside("schema")))
    return found
