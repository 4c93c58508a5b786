"""Anthropic's ``/v1/messages``: requests, answers, errors, token counts and lists of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jaxserve.gateway.dialects.anthropic_messages.answers import (
    MessagesEventWriter,
    answer_body,
    count_body,
)
from jaxserve.gateway.dialects.anthropic_messages.requests import to_chat
from jaxserve.gateway.dialects.dialect import (
    Dialect,
    ModelCard,
    Translation,
    error_type,
    named_event,
    openai_usage,
)
from jaxserve.gateway.http.errors import RequestError

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def model_body(card: ModelCard) -> dict[str, Any]:
    """One model."""
    created = datetime.fromtimestamp(card.created_s, UTC)
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card.context_tokens,
        "max_tokens": card.context_tokens,
    }


def models_body(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """List of all models, on one page."""
    return {
        "data": [model_body(card) for card in cards],
        "has_more": False,
        "first_id": cards[0].id if cards else None,
        "last_id": cards[-1].id if cards else None,
    }


def _error(error: RequestError) -> Mapping[str, Any]:
    kind = error_type(error.status, _ERROR_TYPES, "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _finishes(event: Mapping[str, Any]) -> dict[int, str | None]:
    """The stop reason under 0, and the end of a stream apart, under 1."""
    if event.get("type") == "message_stop":
        return {1: "message_stop"}
    delta = event.get("delta")
    holder = delta if isinstance(delta, dict) else event
    reason = holder.get("stop_reason")
    return {0: str(reason)} if reason else {}


MESSAGES = Dialect(
    name="messages",
    error=_error,
    error_event=lambda error, events: named_event("error", _error(error)),
    has_token=lambda event: event.get("type") == "content_block_delta",
    is_error=lambda event: event.get("type") == "error",
    usage=lambda event: openai_usage(event, "message"),
    finishes=_finishes,
    translation=Translation(
        to_chat, answer_body, MessagesEventWriter, model_body, models_body, count_body
    ),
)
