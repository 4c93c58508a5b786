"""The list of models, in each dialect's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jaxserve.gateway.dialects.request_fields import count, object_in, objects


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that is served."""

    id: str
    created_s: int = 0
    """s since 1970; 0 where the engine does not say."""
    context_tokens: int | None = None
    """of prompt and output together; None where the engine does not say."""


def cards_of(body: bytes) -> tuple[ModelCard, ...]:
    """Models in an engine's answer to ``GET /v1/models``; what has not its shape is left out."""
    cards = objects((object_in(body) or {}).get("data"))
    return tuple(
        ModelCard(card["id"], count(card.get("created")) or 0, count(card.get("max_model_len")))
        for card in cards
        if isinstance(card.get("id"), str)
    )


def openai_model(card: ModelCard) -> dict[str, Any]:
    """One model."""
    model: dict[str, Any] = {"id": card.id, "object": "model", "created": card.created_s}
    model["owned_by"] = "jaxserve"
    return model if card.context_tokens is None else model | {"max_model_len": card.context_tokens}


def openai_models(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """All of them."""
    return {"object": "list", "data": [openai_model(card) for card in cards]}


def anthropic_model(card: ModelCard) -> dict[str, Any]:
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


def anthropic_models(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """All of them, on one page."""
    return {
        "data": [anthropic_model(card) for card in cards],
        "has_more": False,
        "first_id": cards[0].id if cards else None,
        "last_id": cards[-1].id if cards else None,
    }


def google_model(card: ModelCard) -> dict[str, Any]:
    """One model."""
    model: dict[str, Any] = {
        "name": f"models/{card.id}",
        "displayName": card.id,
        "version": "1",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    limit = card.context_tokens
    return model if limit is None else model | {"inputTokenLimit": limit, "outputTokenLimit": limit}


def google_models(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """All of them, on one page."""
    return {"models": [google_model(card) for card in cards]}
