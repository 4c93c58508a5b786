"""OpenAI's ``/v1/responses``: requests, answers, errors and token counts.

Nothing is stored here: the client sends its whole history, as Codex does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.gateway.dialects.dialect import Dialect, Translation, named_event, openai_usage
from jaxserve.gateway.dialects.openai_chat import model_body, models_body, openai_error
from jaxserve.gateway.dialects.openai_responses.answers import (
    ResponsesEventWriter,
    answer_body,
    count_body,
)
from jaxserve.gateway.dialects.openai_responses.requests import to_chat
from jaxserve.gateway.http.errors import RequestError


def _error_event(error: RequestError, events: int) -> bytes:
    body = {
        "type": "error",
        "code": error.reason,
        "message": str(error),
        "param": None,
        "sequence_number": events,
    }
    return named_event("error", body)


def _finishes(event: Mapping[str, Any]) -> dict[int, str | None]:
    """``completed`` or ``incomplete``, of the event that ends a stream or of a whole answer."""
    kind = str(event.get("type"))
    if kind in ("response.completed", "response.incomplete"):
        return {0: kind.removeprefix("response.")}
    status = event.get("status") if event.get("object") == "response" else None
    if status in ("failed", "cancelled"):
        return {0: "error"}
    return {0: str(status)} if status in ("completed", "incomplete") else {}


RESPONSES = Dialect(
    name="responses",
    error=openai_error,
    error_event=_error_event,
    has_token=lambda event: str(event.get("type")).endswith(".delta"),
    is_error=lambda event: event.get("type") in ("error", "response.failed"),
    usage=lambda event: openai_usage(event, "response"),
    finishes=_finishes,
    translation=Translation(
        to_chat, answer_body, ResponsesEventWriter, model_body, models_body, count_body
    ),
)
