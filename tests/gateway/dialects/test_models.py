"""The list of models."""

from __future__ import annotations

import json

import pytest

from jaxserve.gateway.dialects import models
from jaxserve.gateway.dialects.models import ModelCard

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
    assert models.cards_of(json.dumps(answer).encode()) == CARDS
    for garbage in (None, [], {}, {"data": 3}):
        assert models.cards_of(json.dumps(garbage).encode()) == ()
    assert models.cards_of(b"{") == ()


def test_every_dialects_form() -> None:
    """All of a list, to the letter."""
    listed = models.openai_models(CARDS)
    one = {"id": "a", "object": "model", "created": 1_700_000_000, "owned_by": "jaxserve"}
    assert listed["object"] == "list" and listed["data"][0] == {**one, "max_model_len": 4096}
    page = models.anthropic_models(CARDS)
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "a", "b")
    assert page["data"][0]["created_at"] == "2023-11-14T22:13:20Z"
    first, second = models.google_models(CARDS)["models"]
    assert (first["name"], first["inputTokenLimit"]) == ("models/a", 4096)
    assert "inputTokenLimit" not in second


@pytest.mark.parametrize("several", [models.openai_models, models.anthropic_models])
def test_no_models(several: object) -> None:
    """Is an empty list."""
    assert callable(several) and several(())["data"] == []
