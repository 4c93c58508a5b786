"""The list of models."""

from __future__ import annotations

import json

import pytest

from jaxserve.gateway.dialects import anthropic_messages, google_generate, openai_chat
from jaxserve.gateway.dialects.dialect import ModelCard, model_cards

CARDS = (ModelCard("a", 1_700_000_000, 4096), ModelCard("b"))


def test_what_engines_serve() -> None:
    """Is read of their own list, as far as it is one."""
    answer = {
        "data": [
            {"id": "a", "created": 1_700_000_000, "max_model_len": 4096},
            {"id": "b", "max_model_len": None},
            {"id": 3},
            "c",
        ]
    }
    assert model_cards(json.dumps(answer).encode()) == CARDS
    for garbage in (None, [], {}, {"data": 3}):
        assert model_cards(json.dumps(garbage).encode()) == ()
    assert model_cards(b"{") == ()


def test_every_dialects_form() -> None:
    """All of a list, to the letter."""
    listed = openai_chat.models_body(CARDS)
    one = {"id": "a", "object": "model", "created": 1_700_000_000, "owned_by": "jaxserve"}
    assert listed["object"] == "list" and listed["data"][0] == {**one, "max_model_len": 4096}
    page = anthropic_messages.models_body(CARDS)
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "a", "b")
    assert page["data"][0]["created_at"] == "2023-11-14T22:13:20Z"
    first, second = google_generate.models_body(CARDS)["models"]
    assert (first["name"], first["inputTokenLimit"]) == ("models/a", 4096)
    assert "inputTokenLimit" not in second


@pytest.mark.parametrize("several", [openai_chat.models_body, anthropic_messages.models_body])
def test_no_models(several: object) -> None:
    """Is an empty list."""
    assert callable(several) and several(())["data"] == []
