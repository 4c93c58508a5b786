"""Fields of requests, read alike in all dialects, and the chat messages built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import orjson

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import parse_object

_P = ParamSpec("_P")
_T = TypeVar("_T")

INVALID_ARGUMENTS = "invalid_json_arguments"
"""Only argument of a call whose arguments are not a JSON object, in dialects that have objects: the
tool refuses the call, and the model reads its own text in the refusal."""


def refuses_bad_input(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a reader: an InputError becomes a RequestError with status 400."""

    @functools.wraps(read)
    def reads(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return read(*arguments, **options)
        except InputError as error:
            raise RequestError(400, "bad_request", str(error)) from None
        except (RecursionError, orjson.JSONEncodeError):
            raise RequestError(400, "bad_request", "the request is nested too deeply") from None

    return reads


def refuse_unsupported(what: str) -> NoReturn:
    """Refuses a feature that no engine behind the gateway offers.

    Args:
      what: sentence for the client, with the alternative.
    """
    raise RequestError(400, "not_supported", what)


def refuse_fields(fields: Mapping[str, Any], lacking: Mapping[str, str]) -> None:
    """Refuses fields of unsupported features; null, false and empty values ask for nothing.

    Args:
      fields: object with the fields.
      lacking: reason of the refusal, by name of the field.
    """
    for name, why in lacking.items():
        if fields.get(name):
            refuse_unsupported(f"{name} is not supported: {why}")


def optional_objects(fields: JsonObject, key: str) -> Iterator[JsonObject]:
    """Objects in a list that may be missing or null."""
    found = fields.get(key)
    if found is None:
        return
    if not isinstance(found, list):
        refuse(fields.name(key), found, "a list")
    for number, each in enumerate(found):
        yield JsonObject(each, f"{fields.name(key)}[{number}]")


def optional_text(fields: JsonObject, key: str) -> str:
    """A text; empty if it is missing or null."""
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        refuse(fields.name(key), value, "a text")
    return value or ""


def optional_texts(fields: JsonObject, key: str) -> list[str]:
    """A list of texts; empty if it is missing or null."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        refuse(fields.name(key), value, "a list of texts")
    return value


def optional_object(fields: JsonObject, key: str) -> JsonObject:
    """An object; empty if it is missing or null."""
    return JsonObject(fields.get(key) or {}, fields.name(key))


def wants_stream(fields: JsonObject) -> bool:
    """Whether a body asks for a stream."""
    value = fields.get("stream")
    if value is not None and not isinstance(value, bool):
        refuse(fields.name("stream"), value, "true or false")
    return bool(value)


def renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Fields under new names, without the ones that are null.

    Args:
      fields: object with the fields.
      names: new names by old ones.
    """
    return {new: fields[old] for old, new in names.items() if fields.get(old) is not None}


def text_part(text: str) -> dict[str, Any]:
    """A content part with text."""
    return {"type": "text", "text": text}


def image_part(url: str, detail: Any = None) -> dict[str, Any]:
    """A content part with an image, by a URL or data URL; an unknown detail is left out."""
    image = {"url": url, "detail": detail} if detail in ("auto", "low", "high") else {"url": url}
    return {"type": "image_url", "image_url": image}


def data_url(media_type: str, data: str) -> str:
    """Data URL of an image."""
    return f"data:{media_type};base64,{data}"


def content_of(parts: Sequence[Mapping[str, Any]]) -> Any:
    """Content of a message: its parts, or the text of a single text part."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def assistant_message(
    text: str, reasoning: str, calls: Sequence[Mapping[str, Any]], refusal: str = ""
) -> dict[str, Any]:
    """Message of the assistant."""
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = (text or refusal) or (None if calls else "")
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Tool call in a message of the assistant."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def tool_message(call_id: str, content: Any, *, failed: bool = False) -> dict[str, Any]:
    """Message with the result of a tool. Chat has no field for failure, so the text says so."""
    if failed:
        parts = [text_part(content)] if isinstance(content, str) else content
        first = parts[0] if parts and parts[0]["type"] == "text" else None
        if first is None:
            content = [text_part("Error:"), *parts] if parts else "Error"
        elif not first["text"].lower().startswith("error"):
            content = content_of([text_part(f"Error: {first['text']}"), *parts[1:]])
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function_tool(
    name: str, description: Any, parameters: Any, strict: Any = None
) -> dict[str, Any]:
    """Function in the list of tools."""
    function = {"name": name}
    function |= renamed(
        {"description": description, "parameters": parameters, "strict": strict},
        {"description": "description", "parameters": "parameters", "strict": "strict"},
    )
    return {"type": "function", "function": function}


def named_choice(name: str) -> dict[str, Any]:
    """Value of ``tool_choice`` that forces one function."""
    return {"type": "function", "function": {"name": name}}


def only_named(
    tools: Sequence[Mapping[str, Any]], names: Sequence[str], where: str
) -> list[Mapping[str, Any]]:
    """The tools with given names, for engines that cannot forbid the others.

    Raises:
      InputError: no tool has one of the names.
    """
    there = {tool["function"]["name"] for tool in tools}
    for name in names:
        if name not in there:
            refuse(where, name, f"one of the tools of the request: {', '.join(sorted(there))}")
    return [tool for tool in tools if tool["function"]["name"] in names]


def schema_format(name: str, schema: Any, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Value of ``response_format`` for output that follows a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **(more or {})}}


def arguments_object(arguments: str) -> dict[str, Any]:
    """Arguments of a call as an object, for dialects that have objects."""
    found = parse_object(arguments or "{}")
    return {INVALID_ARGUMENTS: arguments} if found is None else found


def json_text(value: Any) -> str:
    """A value as JSON text."""
    return orjson.dumps(value).decode()
