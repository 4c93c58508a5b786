"""Pieces that requests of all dialects are read with, and messages that they are made into."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import orjson

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.gateway.http.errors import Problem

_P = ParamSpec("_P")
_T = TypeVar("_T")

INVALID_ARGUMENTS = "invalid_json_arguments"
"""The one argument of a call whose arguments are no JSON object, in dialects that have objects: the
tool refuses it, and the model reads what it wrote."""


def refusing(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes bad input a problem with status 400, which every dialect has a form for."""

    @functools.wraps(read)
    def reads(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return read(*arguments, **options)
        except InputError as error:
            raise Problem(400, "bad_request", str(error)) from None
        except (RecursionError, orjson.JSONEncodeError):
            raise Problem(400, "bad_request", "the request is nested too deeply") from None

    return reads


def json_object(body: bytes) -> dict[str, Any]:
    """A request's body.

    Raises:
      Problem: it is not a JSON object.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Problem(400, "bad_request", "the request body is not JSON") from None
    if not isinstance(fields, dict):
        raise Problem(400, "bad_request", "the request body is not a JSON object")
    return fields


def object_in(text: bytes | str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def objects(found: Any) -> list[dict[str, Any]]:
    """The objects of a list; none of anything else."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def count(value: Any) -> int | None:
    """A whole number from 0 on; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def lacks(what: str) -> NoReturn:
    """Refuses what no engine behind the gateway offers.

    Args: the sentence, which says what to do in its place.
    """
    raise Problem(400, "not_supported", what)


def refuse_fields(fields: Mapping[str, Any], lacking: Mapping[str, str]) -> None:
    """Refuses fields that ask for what is not here; null, false and empty ask for nothing.

    Args: the object, and by field why it is refused.
    """
    for name, why in lacking.items():
        if fields.get(name):
            lacks(f"{name} is not supported: {why}")


def listed(fields: JsonObject, key: str) -> Iterator[JsonObject]:
    """Objects of a list that may be missing or null."""
    found = fields.get(key)
    if found is None:
        return
    if not isinstance(found, list):
        refuse(fields.name(key), found, "a list")
    for number, each in enumerate(found):
        yield JsonObject(each, f"{fields.name(key)}[{number}]")


def said(fields: JsonObject, key: str) -> str:
    """A text that may be empty, missing or null."""
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        refuse(fields.name(key), value, "a text")
    return value or ""


def words(fields: JsonObject, key: str) -> list[str]:
    """A list of texts that may be missing or null."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        refuse(fields.name(key), value, "a list of texts")
    return value


def within(fields: JsonObject, key: str) -> JsonObject:
    """An object that may be missing or null, which is an empty one."""
    return JsonObject(fields.get(key) or {}, fields.name(key))


def asked_stream(fields: JsonObject) -> bool:
    """Whether a body asks for events."""
    value = fields.get("stream")
    if value is not None and not isinstance(value, bool):
        refuse(fields.name("stream"), value, "true or false")
    return bool(value)


def renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Fields that mean the same under another name; null means that there is none."""
    return {new: fields[old] for old, new in names.items() if fields.get(old) is not None}


def text_part(text: str) -> dict[str, Any]:
    """A part of content."""
    return {"type": "text", "text": text}


def image_part(url: str, detail: Any = None) -> dict[str, Any]:
    """An image by its address, which may hold the data itself, in a detail that engines know."""
    image = {"url": url, "detail": detail} if detail in ("auto", "low", "high") else {"url": url}
    return {"type": "image_url", "image_url": image}


def data_url(media_type: str, data: str) -> str:
    """An address that holds an image."""
    return f"data:{media_type};base64,{data}"


def content_of(parts: Sequence[Mapping[str, Any]]) -> Any:
    """Content of a message; a single text stands for itself."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def assistant(
    text: str, reasoning: str, calls: Sequence[Mapping[str, Any]], refusal: str = ""
) -> dict[str, Any]:
    """A message of the model."""
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = (text or refusal) or (None if calls else "")
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in a message of the model."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def tool_result(call_id: str, content: Any, *, failed: bool = False) -> dict[str, Any]:
    """What a tool answered. Chat has no mark for failure, so the text says it."""
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
    """A function that the model may call."""
    function = {"name": name}
    function |= renamed(
        {"description": description, "parameters": parameters, "strict": strict},
        {"description": "description", "parameters": "parameters", "strict": "strict"},
    )
    return {"type": "function", "function": function}


def named_choice(name: str) -> dict[str, Any]:
    """The choice of one function that must be called."""
    return {"type": "function", "function": {"name": name}}


def only_named(
    tools: Sequence[Mapping[str, Any]], names: Sequence[str], where: str
) -> list[Mapping[str, Any]]:
    """Tools of some names, for engines that cannot forbid the others.

    Raises:
      InputError: a name is none of them.
    """
    there = {tool["function"]["name"] for tool in tools}
    for name in names:
        if name not in there:
            refuse(where, name, f"one of the tools of the request: {', '.join(sorted(there))}")
    return [tool for tool in tools if tool["function"]["name"] in names]


def schema_format(name: str, schema: Any, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The wish for output that a JSON schema allows."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **(more or {})}}


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object, for dialects that have one."""
    found = object_in(arguments or "{}")
    return {INVALID_ARGUMENTS: arguments} if found is None else found


def dumped(value: Any) -> str:
    """JSON as text."""
    return orjson.dumps(value).decode()
