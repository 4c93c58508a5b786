"""The OpenAPI schema: the model of every answer, the status of every error."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from server.wire.response_models import ErrorAnswer

_REFERENCE = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ALWAYS = {
    401: "the token is missing or wrong, where the server asks for one",
    403: "the page of another site",
    422: "the input",
    429: "too many requests; Retry-After says how long to wait",
    500: "the server failed",
}
_OF_CHANGES = {
    408: "the body takes too long",
    413: "the body is too large",
}
_OF_TASK_API = {404: "no environment of that name"}
_OPEN = "/health"
_WORDS = re.compile(r"\w+")

SESSION = (404, 409)
"""Errors about the session of the request."""
_TEXTS = {
    402: "the spending limit",
    404: "the session is unknown or has expired",
    409: "the session is not in that state",
    502: "the real engine",
    503: "more is asked for than can be computed now",
    507: "the disk is full or cannot be written",
}


def responses(model: type[BaseModel], *errors: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route: its answer and its own errors; ``describe`` adds the others."""
    refused = {status: {"model": ErrorAnswer, "description": _TEXTS[status]} for status in errors}
    return {200: {"model": model}, **refused}


def describe(app: FastAPI) -> None:
    """Adds errors and operation ids to the schema of all routes, OpenEnv's own included."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            schemas = schema["components"]["schemas"]
            schemas["Problem"] = ErrorAnswer.model_json_schema()
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path, operations in schema["paths"].items():
                for method, operation in operations.items():
                    # Generated clients name their functions by it: get_state, post_step.
                    operation["operationId"] = f"{method}_{'_'.join(_WORDS.findall(path))}"
                    _add_errors(path, method, operation["responses"])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _add_errors(path: str, method: str, responses: dict[str, Any]) -> None:
    texts = _ALWAYS if path != _OPEN else {status: _ALWAYS[status] for status in (429, 500)}
    if method != "get":
        texts = texts | _OF_CHANGES
    if "{env_name}" in path:
        texts = texts | _OF_TASK_API
    for status, text in texts.items():
        responses[str(status)] = {"description": text, "content": _REFERENCE}
