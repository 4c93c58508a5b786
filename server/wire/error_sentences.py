"""Errors of requests as one sentence: the field, its value, the allowed values.

HTTP, WebSocket and MCP use the same sentences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.spaces import KNOBS
from server.wire.spellings import knob_values

_COMPLETE = "complete"
"""Type of errors whose message is a whole sentence."""
_WRAPPERS = frozenset({"body", "query", "header", "data", "action"})
"""Containers of fields, which a sentence leaves out."""
_ALLOWED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "a JSON object",
    "model_type": "a JSON object",
    "string_pattern_mismatch": "the id that reset returned",
    "string_too_long": "text of at most {max_length} characters",
    "string_type": "text",
    "string_unicode": "text",
    "task": "the name or the number of a task",
    "too_long": "a list of at most {max_length} entries",
    "too_short": "a list of at least {min_length} entries",
}
"""Allowed values by type of error, pydantic's and this package's own."""

B = TypeVar("B", bound=BaseModel)


def checked(kind: type[B], data: Any) -> B:
    """``data`` as a model of class ``kind``.

    Raises:
      InputError: a field is invalid; names the first one.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(sentence(error.errors(include_url=False))) from None


def complaint(text: str) -> PydanticCustomError:
    """An error for validators, whose text is the client's sentence."""
    return PydanticCustomError(_COMPLETE, "{text}", {"text": text})


def check_names(given: Mapping[Any, Any], allowed: Set[str]) -> None:
    """Raises a ``complaint`` about the first unknown name."""
    if given.keys() <= allowed:
        return
    name = next(name for name in given if name not in allowed)
    raise complaint(f"field {name!r:.60} is unknown; allowed are {', '.join(allowed)}")


def sentence(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors as a sentence."""
    first = errors[0]
    kind, place = first["type"], first["loc"]
    if kind == "json_invalid":
        return f"the request is no JSON: {first['ctx']['error'].lower()} at character {place[-1]}"
    within = [f"{part!s:.60}" for part in place if part not in _WRAPPERS]
    if kind == _COMPLETE:
        return f"{'.'.join(within)}: {first['msg']}" if within else first["msg"]
    if place and place[-1] in _WRAPPERS and place[-1] != "body":
        within.append(place[-1])
    field = ".".join(within) or "the request"
    if kind == "missing":
        return f"{field} is missing"
    given = first["input"]
    if isinstance(given, bytes):
        return "the request is not sent as JSON; it needs Content-Type: application/json"
    if place and place[-1] in KNOBS:
        allowed = knob_values(place[-1])
    elif kind in _ALLOWED:
        allowed = _ALLOWED[kind].format(**first.get("ctx", {}))
    else:
        return f"{field} is {given!r:.60}: {first['msg']}"
    return f"{field} is {given!r:.60}; it must be {allowed}"


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
      InputError: an object has a name twice. ValueError, RecursionError: the text is no JSON.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InputError(f"{twice!r:.60} is given twice in one object of the request")
    return values


def read_object(text: str | bytes | None) -> dict[str, Any]:
    """The JSON object of a message; models refuse NaN and Infinity.

    Raises:
      InputError: the message holds no object; None stands for a binary message.
    """
    if text is None:
        raise InputError("the request is binary; it must be the text of a JSON object")
    try:
        found = read_json(text)
        # JSON allows half a surrogate pair, which no answer could repeat; a str has one only as an
        # escape.
        if not isinstance(text, str) or "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(unreadable(error)) from None
    if not isinstance(found, Mapping):
        checks.refuse("the request", found, "a JSON object")
    return dict(found)


def unreadable(error: BaseException | None) -> str:
    """Sentence for text that is no JSON, by the parser's exception."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg.lower()} at character {error.pos}"
    elif isinstance(error, UnicodeError):
        reason = "its text is not Unicode"
    elif isinstance(error, RecursionError):
        reason = "it nests too deeply"
    else:
        reason = "a number in it has thousands of digits"
    return f"the request is no JSON: {reason}"
