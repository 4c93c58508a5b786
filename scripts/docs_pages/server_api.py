"""The routes of the server and what they take, from its OpenAPI schema."""

from __future__ import annotations

import json
import re
from typing import Any

from docs_pages.markdown import code, table
from server.server_settings import IN_MEMORY, Settings
from server.wiring import build_app

_INTRODUCTION = """\
# Server routes

<!-- Written by scripts/generate_docs.py from the server's OpenAPI schema. -->

The routes that a running server describes at `/openapi.json`. [Server](server.md) explains how they
are meant and what errors look like, and has the WebSocket routes, which are not part of OpenAPI.

Every error is a `Problem`. All routes can answer 429 and 500, all but `/health` 401, 403 and 422,
and those that change something 408 and 413 as well; what else a route can answer stands with it.
"""
_OF_ALL = {"401", "403", "408", "413", "422", "429", "500"}
"""Statuses in the introduction of the page."""


class _NothingCompiled:
    """Stands for the compilation that a server starts with, of which a schema needs nothing."""


def server_api_page() -> str:
    """Text of the page."""
    application = build_app(Settings(database=IN_MEMORY), _NothingCompiled())  # type: ignore[arg-type]
    schema = application.openapi()
    bodies = schema["components"]["schemas"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["MCP"])[0]
            section = _route(f"{method.upper()} {path}", operation, bodies)
            by_tag.setdefault(tag, []).append(section)
    parts = [_INTRODUCTION]
    for tag, routes in by_tag.items():
        parts += [f"## {tag}\n", *routes]
    named = dict.fromkeys(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema["paths"])))
    names = _with_parts([name for name in named if not name.endswith("Body")], bodies)
    parts += ["## Types\n", *(_type(name, bodies[name]) for name in names)]
    return "\n".join(parts)


def _route(title: str, operation: dict[str, Any], bodies: dict[str, Any]) -> str:
    lines = [f"### `{title}`", "", f"{operation['summary']}.", ""]
    parameters = operation.get("parameters", [])
    rows = [
        [
            code(one["name"]),
            one["in"],
            _kind(one["schema"]),
            one.get("description", one["schema"].get("description", "")),
        ]
        for one in parameters
    ]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = _reference(content.get("schema", {}))
    if name:
        rows += [[field, "body", kind, about] for field, kind, about in _fields(bodies[name])]
    if rows:
        lines += [table(["name", "in", "type", "what it is"], rows), ""]
    lines += [_answers(operation["responses"]), ""]
    return "\n".join(lines)


def _answers(responses: dict[str, Any]) -> str:
    """One line: what comes back, and which errors are the route's own."""
    said = responses["200"].get("content", {}).get("application/json", {}).get("schema", {})
    errors = [
        f"{status} ({answer['description']})"
        for status, answer in sorted(responses.items())
        if status not in _OF_ALL | {"200"}
    ]
    return f"Answers {_kind(said)}" + (f"; or {', '.join(errors)}." if errors else ".")


def _with_parts(names: list[str], bodies: dict[str, Any]) -> list[str]:
    """These types and their parts, each once."""
    found = list(names)
    for name in found:
        inside = re.findall(r"#/components/schemas/(\w+)", json.dumps(bodies[name]))
        found += [part for part in dict.fromkeys(inside) if part not in found]
    return found


def _type(name: str, schema: dict[str, Any]) -> str:
    rows = [list(row) for row in _fields(schema)]
    about = [line.replace("``", "`") for line in schema.get("description", "").splitlines()[:1]]
    fields = [table(["field", "type", "what it is"], rows), ""] if rows else []
    return "\n".join([f"### `{name}`", "", *about, "", *fields])


def _fields(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, type and description of each property."""
    required = schema.get("required", [])
    rows = []
    for field, one in schema.get("properties", {}).items():
        about = one.get("description", "")
        if field in required:
            about = f"required; {about}".removesuffix("; ")
        elif one.get("default") is not None:
            about = f"{about}; default `{json.dumps(one['default'])}`".removeprefix("; ")
        rows.append((code(field), _kind(one), about))
    return rows


def _kind(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if name := _reference(schema):
        return code(name)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low:g} to {high:g}"
    if low is not None:
        return f"{kind}, from {low:g}"
    return kind


def _reference(schema: dict[str, Any]) -> str:
    return schema.get("$ref", "").rpartition("/")[2]
