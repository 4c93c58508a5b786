"""Google's ``Schema`` objects as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.checks import refuse

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_COUNTS = (
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
)
"""64-bit numbers, which Google's JSON writes as texts."""
_SAME = (
    "title",
    "description",
    "format",
    "enum",
    "default",
    "pattern",
    "minimum",
    "maximum",
    "required",
)


def json_schema(schema: Any, where: str) -> dict[str, Any]:
    """Translates a schema to JSON Schema.

    Args:
      schema: a ``Schema`` object.
      where: name of the schema in errors.

    Raises:
      InputError: the schema is malformed.
    """
    if not isinstance(schema, Mapping):
        refuse(where, schema, "a schema")
    found = _type(schema, where)
    found |= {name: schema[name] for name in _SAME if schema.get(name) is not None}
    for name in _COUNTS:
        if schema.get(name) is not None:
            found[name] = _count(schema[name], f"{where}: {name}")
    if schema.get("example") is not None:
        found["examples"] = [schema["example"]]
    if schema.get("items") is not None:
        found["items"] = json_schema(schema["items"], f"{where}: items")
    if schema.get("anyOf") is not None:
        others = schema["anyOf"]
        if not isinstance(others, list):
            refuse(f"{where}: anyOf", others, "a list of schemas")
        found["anyOf"] = [json_schema(one, f"{where}: anyOf") for one in others]
    if isinstance(schema.get("properties"), Mapping):
        found["properties"] = {
            name: json_schema(one, f"{where}: {name}") for name, one in schema["properties"].items()
        }
    more = schema.get("additionalProperties")
    if more is not None:
        is_flag = isinstance(more, bool)
        found["additionalProperties"] = more if is_flag else json_schema(more, where)
    return found


def _type(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = schema.get("type")
    if kind in (None, "TYPE_UNSPECIFIED"):
        return {}
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        refuse(f"{where}: type", kind, f"one of {', '.join(_TYPES).upper()}")
    return {"type": [kind.lower(), "null"] if schema.get("nullable") else kind.lower()}


def _count(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        refuse(where, value, "a whole number")
