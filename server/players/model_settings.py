"""Which language model is asked, by whose key, and how much of it; without importing openai, which
takes seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.errors import InputError

HUGGING_FACE_URL = "https://router.huggingface.co/v1"
DEFAULT_MODEL = "gpt-4o-mini"


@dataclass(frozen=True)
class ModelSettings:
    """Which model, and how much of it."""

    model: str
    api_key: str = field(repr=False)
    base_url: str | None = None
    decide_every: int = 10
    """windows that a decision holds."""
    max_tokens: int = 200_000
    """tokens of all exchanges of a run; afterwards the last knobs are held."""
    max_seconds: float = 600.0
    """the same for time; a request under way then may take minutes more with its retries."""
    request_timeout_s: float = 45.0
    retries: int = 4
    """of failed requests, with exponential back-off; by the official client."""

    @classmethod
    def from_environment(
        cls, variables: Mapping[str, str] = os.environ, **chosen: Any
    ) -> ModelSettings:
        """Reads ``OPENAI_API_KEY`` or ``HF_TOKEN``, ``API_BASE_URL`` and ``MODEL_NAME``.

        Raises:
          InputError: there is no key.
        """
        key = chosen.pop("api_key", None) or _key(variables)
        if not key:
            raise InputError(
                "no key for a language model; set OPENAI_API_KEY, or HF_TOKEN for Hugging Face"
            )
        base_url = variables.get("API_BASE_URL") or variables.get("OPENAI_BASE_URL")
        if base_url is None and not variables.get("OPENAI_API_KEY"):
            base_url = HUGGING_FACE_URL
        model = chosen.pop("model", None) or model_name(variables)
        return cls(model=model, api_key=key, base_url=base_url, **chosen)


def model_name(variables: Mapping[str, str] = os.environ) -> str:
    """The model that is asked where nobody chooses another."""
    return variables.get("MODEL_NAME") or DEFAULT_MODEL


def has_key(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a model to ask."""
    return _key(variables) is not None


def _key(variables: Mapping[str, str]) -> str | None:
    return variables.get("OPENAI_API_KEY") or variables.get("HF_TOKEN") or None
