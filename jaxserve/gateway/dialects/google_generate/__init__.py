"""Google's ``generateContent``: requests, answers, errors, token counts and lists of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from jaxserve.gateway.dialects.dialect import (
    NO_USAGE,
    Dialect,
    ModelCard,
    Translation,
    Usage,
    finishes_by_index,
)
from jaxserve.gateway.dialects.google_generate.answers import (
    GoogleEventWriter,
    answer_body,
    count_body,
)
from jaxserve.gateway.dialects.google_generate.requests import to_chat
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import object_items, whole_number

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def model_body(card: ModelCard) -> dict[str, Any]:
    """One model."""
    model: dict[str, Any] = {
        "name": f"models/{card.id}",
        "displayName": card.id,
        "version": "1",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    limit = card.context_tokens
    return model if limit is None else model | {"inputTokenLimit": limit, "outputTokenLimit": limit}


def models_body(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """List of all models, on one page."""
    return {"models": [model_body(card) for card in cards]}


def _error(error: RequestError) -> Mapping[str, Any]:
    other = "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL"
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": error.reason.upper(),
        "domain": "jaxserve",
    }
    return {
        "error": {
            "code": error.status,
            "message": str(error),
            "status": _STATUSES.get(error.status, other),
            "details": [reason],
        }
    }


def _has_token(event: Mapping[str, Any]) -> bool:
    contents = (item.get("content") for item in object_items(event.get("candidates")))
    return any(isinstance(content, dict) and content.get("parts") for content in contents)


def _usage(event: Mapping[str, Any]) -> Usage:
    usage = event.get("usageMetadata")
    if not isinstance(usage, dict):
        return NO_USAGE
    prompt = whole_number(usage.get("promptTokenCount"))
    total = whole_number(usage.get("totalTokenCount"))
    # Output is the total without the prompt: its own count leaves out the thoughts.
    if prompt is None or total is None or total < prompt:
        return Usage(prompt)
    return Usage(prompt, total - prompt)


GOOGLE = Dialect(
    name="google",
    error=_error,
    error_event=lambda error, events: b"data: %b\r\n\r\n" % orjson.dumps(_error(error)),
    has_token=_has_token,
    is_error=lambda event: event.get("error") is not None,
    usage=_usage,
    finishes=lambda event: finishes_by_index(event.get("candidates"), "finishReason"),
    translation=Translation(
        to_chat, answer_body, GoogleEventWriter, model_body, models_body, count_body
    ),
)
