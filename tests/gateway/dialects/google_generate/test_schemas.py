"""Google's schemas, in the words that engines know."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.dialects.google_generate.schemas import json_schema


def test_a_schema_of_everything() -> None:
    """Types in small letters, counts as numbers, null as a type, and nothing of Google's own."""
    schema = {
        "type": "OBJECT",
        "description": "a place",
        "required": ["name"],
        "propertyOrdering": ["name", "size"],
        "properties": {
            "name": {"type": "STRING", "maxLength": "20", "pattern": "a+", "example": "aa"},
            "size": {"type": "NUMBER", "nullable": True, "minimum": 0, "format": "double"},
            "kind": {"type": "STRING", "format": "enum", "enum": ["a", "b"]},
            "tags": {"type": "ARRAY", "minItems": 1, "items": {"type": "INTEGER"}},
            "any": {"anyOf": [{"type": "BOOLEAN"}, {"type": "TYPE_UNSPECIFIED"}]},
        },
        "additionalProperties": False,
    }
    assert json_schema(schema, "s") == {
        "type": "object",
        "description": "a place",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 20, "pattern": "a+", "examples": ["aa"]},
            "size": {"type": ["number", "null"], "minimum": 0, "format": "double"},
            "kind": {"type": "string", "format": "enum", "enum": ["a", "b"]},
            "tags": {"type": "array", "minItems": 1, "items": {"type": "integer"}},
            "any": {"anyOf": [{"type": "boolean"}, {}]},
        },
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema", [3, {"type": "TEXT"}, {"maxItems": "many"}, {"properties": {"a": []}}]
)
def test_what_is_no_schema(schema: object) -> None:
    """One sentence with its place."""
    with pytest.raises(InputError, match=r"^s"):
        json_schema(schema, "s")
