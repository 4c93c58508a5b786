"""Requests of OpenAI's ``/v1/responses``, and requests to count their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from jaxserve.checks import JsonObject, refuse
from jaxserve.gateway.dialects.canonical import Chat, DialectRequest, build_chat
from jaxserve.gateway.dialects.request_fields import (
    assistant_message,
    content_of,
    function_call,
    function_tool,
    image_part,
    json_text,
    named_choice,
    only_named,
    optional_object,
    optional_objects,
    optional_text,
    optional_texts,
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

_LACKING = {
    "previous_response_id": "responses are not stored, so send the whole input",
    "conversation": "conversations are not stored, so send the whole input",
    "prompt": "prompts are not stored, so send the input itself",
    "background": "ask for a stream, or wait for the answer",
    "background_options": "ask for a stream, or wait for the answer",
    "moderation": "nothing is moderated here",
    "personality": "say it in the instructions",
    "top_logprobs": "ask for log-probabilities on /v1/chat/completions",
}
_NAMES = {
    "max_output_tokens": "max_completion_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "parallel_tool_calls": "parallel_tool_calls",
}
_SERVER_TOOLS = (
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
    "programmatic_tool_calling",
)
"""Prefixes of the types of tools that OpenAI's servers run, and of the items for their actions."""
_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_ROLES = ("user", "assistant", "system", "developer")
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Schema for the input of a custom tool, any text: engines only know functions."""
_PARTS = ("input_text", "input_image", "input_file", "input_audio")
"""Types of content parts."""
_OUTPUT = ("content", "body", "success")
"""Fields of a result that is an object."""


@refuses_bad_input
def to_chat(asked: DialectRequest, policy: TemplatePolicy) -> Chat:
    """Reads a client's request into the canonical form.

    Raises:
      RequestError: the request is malformed, or asks for something that engines lack.
    """
    fields = JsonObject(asked.fields, "the request")
    streamed = not asked.counts and wants_stream(fields)
    refuse_fields(fields, _LACKING)
    included = optional_texts(fields, "include")
    if _LOGPROBS in included:
        refuse_unsupported(
            f"include {_LOGPROBS} is not supported: ask for them on /v1/chat/completions"
        )
    messages = list(_messages(fields))
    if not messages:
        refuse(fields.name("input"), fields.get("input"), "a text or a list of items")
    request = renamed(fields, _NAMES)
    offered = list(_tools(fields))
    if offered:
        request["tools"] = [one.tool for one in offered]
    request |= _tool_choice(fields, request.get("tools", []))
    effort = optional_object(fields, "reasoning").get("effort")
    if effort is not None:
        request["reasoning_effort"] = effort
    text = optional_object(fields, "text")
    request |= renamed(text, {"verbosity": "verbosity"}) | _text_format(text)
    notes = {
        "seals": _ENCRYPTED in included,
        "repeated": _repeated(fields),
        "tools": {one.tool["function"]["name"]: one.shown for one in offered if one.shown},
    }
    model = fields.text("model")
    return build_chat(asked, model, messages, request, policy, streamed=streamed, notes=notes)


@dataclass(slots=True)
class _Turn:
    """Consecutive items of the assistant, which make one message."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    last: Literal["", "reasoning", "message", "call"] = ""

    def starts_anew(self, kind: str) -> bool:
        """Whether an item begins another turn: reasoning comes first in a turn, and a turn has only
        one text."""
        return (kind == "reasoning" and self.last in ("message", "call")) or (
            kind == "message" == self.last
        )

    def message(self) -> dict[str, Any]:
        """The message of the turn."""
        return assistant_message("".join(self.texts), "".join(self.thoughts), self.calls)


def _messages(fields: JsonObject) -> Iterator[dict[str, Any]]:
    """Messages of instructions and input; consecutive items of the assistant make one message."""
    if instructions := optional_text(fields, "instructions"):
        yield {"role": "system", "content": instructions}
    if isinstance(fields.get("input"), str):
        yield {"role": "user", "content": fields["input"]}
        return
    turn = _Turn()
    for item in _items(fields):
        kind = _kind(item)
        if kind in ("reasoning", "message", "call"):
            if turn.starts_anew(kind):
                yield turn.message()
                turn = _Turn()
            _add(turn, kind, item)
            continue
        if kind == "dropped":
            continue
        if turn.last:
            yield turn.message()
            turn = _Turn()
        yield _result(item) if kind == "result" else _other_message(item)
    if turn.last:
        yield turn.message()


def _items(fields: JsonObject) -> Iterator[JsonObject]:
    """Input items. Some clients put content parts among them: those become messages of the user."""
    items = optional_objects(fields, "input")
    for without_tokens, group in groupby(items, key=lambda item: item.get("type") in _PARTS):
        if without_tokens:
            parts = list(group)
            yield JsonObject({"role": "user", "content": parts}, parts[0].where)
        else:
            yield from group


def _kind(item: JsonObject) -> str:
    """Kind of an item: part of the assistant's turn, result, message of others, or dropped."""
    if item.get("type") is None or item["type"] == "message":
        return "message" if item.one_of("role", _ROLES) == "assistant" else "other"
    match item.text("type"):
        case "reasoning":
            return "reasoning"
        case "function_call" | "custom_tool_call":
            return "call"
        case "function_call_output" | "custom_tool_call_output":
            return "result"
        case "item_reference" | "compaction":
            refuse_unsupported(
                f"input items of type {item['type']} are not supported: nothing is stored here"
            )
        case kind if kind.startswith(_SERVER_TOOLS):
            return "dropped"
        case kind:
            refuse(item.name("type"), kind, "a type of item that a client of a model sends")


def _add(turn: _Turn, kind: str, item: JsonObject) -> None:
    if kind == "reasoning":
        turn.last = "reasoning"
        turn.thoughts.append(_reasoning(item))
    elif kind == "message":
        turn.last = "message"
        turn.texts.append(_assistant_text(item))
    else:
        turn.last = "call"
        turn.calls.append(_call(item))


def _reasoning(item: JsonObject) -> str:
    """Reasoning of an item: the sealed text, else the content, else the summary."""
    text = unsealed(item.get("encrypted_content"))
    if text is not None:
        return text
    for name in ("content", "summary"):
        if texts := [optional_text(part, "text") for part in optional_objects(item, name)]:
            return "".join(texts)
    return ""


def _assistant_text(item: JsonObject) -> str:
    if isinstance(item.get("content"), str):
        return item["content"]
    texts = []
    for part in optional_objects(item, "content"):
        kind = part.one_of("type", ("output_text", "input_text", "text", "refusal"))
        texts.append(optional_text(part, "refusal" if kind == "refusal" else "text"))
    return "".join(texts)


def _call(item: JsonObject) -> dict[str, Any]:
    name = _full_name(optional_text(item, "namespace"), item.text("name"))
    if item["type"] == "custom_tool_call":
        arguments = json_text({"input": optional_text(item, "input")})
    else:
        arguments = optional_text(item, "arguments")
    return function_call(item.text("call_id"), name, arguments)


def _result(item: JsonObject) -> dict[str, Any]:
    """Message with a result: a text or parts, which some clients put into an object with a flag for
    success."""
    call_id = item.text("call_id")
    if not isinstance(item.get("output"), Mapping):
        return tool_message(call_id, _content(item, "output"))
    output = item.inside("output", _OUTPUT)
    names = [name for name in ("content", "body") if output.get(name) is not None]
    if len(names) != 1:
        refuse(output.where, dict(output), "a text, a list, or an object with content or body")
    return tool_message(call_id, _content(output, names[0]), failed=output.get("success") is False)


def _other_message(item: JsonObject) -> dict[str, Any]:
    return {"role": item["role"], "content": _content(item, "content")}


def _content(item: JsonObject, key: str) -> Any:
    if isinstance(item.get(key), str):
        return item[key]
    return content_of([_part(part) for part in optional_objects(item, key)])


def _part(part: JsonObject) -> dict[str, Any]:
    match part.text("type"):
        case "input_text" | "output_text" | "text":
            return text_part(optional_text(part, "text"))
        case "input_image":
            if part.get("image_url") is None:
                refuse_unsupported("images by file_id are not supported: send the data or a URL")
            return image_part(part.text("image_url"), part.get("detail"))
        case "input_file" | "input_audio" as kind:
            refuse_unsupported(f"content of type {kind} is not supported: send text and images")
        case kind:
            refuse(part.name("type"), kind, "input_text or input_image")


@dataclass(frozen=True, slots=True)
class _Offered:
    """A tool under its two names."""

    tool: dict[str, Any]
    """function for the engine."""
    shown: dict[str, Any]
    """fields of its calls in answers; empty where they are the engine's."""


def _full_name(namespace: str, name: str) -> str:
    """Name of a function at the engine, which knows no namespaces."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _tools(fields: JsonObject) -> Iterator[_Offered]:
    for tool in optional_objects(fields, "tools"):
        if _kind_of(tool) == "namespace":
            for inner in optional_objects(tool, "tools"):
                yield from _tool(inner, tool.text("name"))
        else:
            yield from _tool(tool, "")


def _kind_of(tool: JsonObject) -> str:
    """Type of a tool; a tool with a name and no type is a function."""
    if tool.get("type") is None and tool.get("name") is not None:
        return "function"
    return tool.text("type")


def _tool(tool: JsonObject, namespace: str) -> Iterator[_Offered]:
    kind = _kind_of(tool)
    if kind.startswith(_SERVER_TOOLS):
        return
    if kind not in ("function", "custom"):
        refuse_unsupported(f"tools of type {kind} are not supported: describe it as a function")
    name = tool.text("name")
    full, description = _full_name(namespace, name), tool.get("description")
    shown: dict[str, Any] = {"name": name, "namespace": namespace} if namespace else {}
    if kind == "custom":
        shown = {"name": name, **shown, "custom": True}
        yield _Offered(function_tool(full, _with_grammar(description, tool), _INPUT), shown)
    else:
        function = function_tool(full, description, _parameters(tool), tool.get("strict"))
        yield _Offered(function, shown)


def _parameters(tool: JsonObject) -> Any:
    """Schema of a function's arguments, also under the name of other dialects."""
    if tool.get("input_schema") is None:
        return tool.get("parameters")
    if tool.get("parameters") is not None:
        refuse(tool.name("input_schema"), tool["input_schema"], "left out beside parameters")
    schema = tool.inside("input_schema")
    return dict(optional_object(schema, "jsonSchema") or schema)


def _with_grammar(description: Any, tool: JsonObject) -> Any:
    """Description of a custom tool, with the grammar of its input."""
    grammar = optional_object(tool, "format").get("definition")
    return description if not grammar else f"{description or ''}\n\nGrammar of input:\n{grammar}"


def _tool_choice(fields: JsonObject, tools: list[dict[str, Any]]) -> dict[str, Any]:
    if not tools or fields.get("tool_choice") is None:
        return {}
    if isinstance(fields["tool_choice"], str):
        return {"tool_choice": fields.one_of("tool_choice", ("auto", "none", "required"))}
    choice = fields.inside("tool_choice")
    kind = choice.one_of("type", ("function", "custom", "allowed_tools"))
    if kind == "allowed_tools":
        names = [
            _full_name(optional_text(one, "namespace"), one.text("name"))
            for one in optional_objects(choice, "tools")
        ]
        allowed = only_named(tools, names, choice.name("tools"))
        return {"tools": allowed, "tool_choice": choice.one_of("mode", ("auto", "required"))}
    name = _full_name(optional_text(choice, "namespace"), choice.text("name"))
    only_named(tools, [name], choice.name("name"))
    return {"tool_choice": named_choice(name)}


def _text_format(text: JsonObject) -> dict[str, Any]:
    form = optional_object(text, "format")
    if not form:
        return {}
    match form.one_of("type", ("text", "json_object", "json_schema")):
        case "json_schema":
            more = renamed(form, {"strict": "strict", "description": "description"})
            schema = dict(form.inside("schema"))
            return {"response_format": schema_format(form.text("name"), schema, more)}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case _:
            return {}


def _repeated(fields: JsonObject) -> dict[str, Any]:
    """Fields of the request that the answer repeats."""
    found = {name: fields.get(name) for name in _REPEATED}
    defaults = {"parallel_tool_calls": True, "tool_choice": "auto", "metadata": {}}
    found |= {name: value for name, value in defaults.items() if found.get(name) is None}
    found["tools"] = [_whole_tool(tool) for tool in optional_objects(fields, "tools")]
    found["text"] = found["text"] or {"format": {"type": "text"}}
    # The engine refuses a prompt beyond its context.
    found["truncation"] = "disabled"
    return found


_REPEATED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
)


def _whole_tool(tool: JsonObject) -> Mapping[str, Any]:
    """A tool with all fields that a response must have."""
    if _kind_of(tool) != "function":
        return tool
    given = {name: value for name, value in tool.items() if name != "input_schema"}
    own = {"type": "function", "parameters": _parameters(tool)}
    return {"description": None, "strict": None, **given, **own}
