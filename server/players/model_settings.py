"""Settings of the language model: model, key and limits; without importing openai, which takes
seconds."""

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
    """A language model, its key and its limits."""

    model: str
    api_key: str = field(repr=False)
    base_url: str | None = None
    decide_every: int = 10
    """windows of one decision."""
    max_tokens: int = 200_000
    """tokens of all exchanges of a run; the last knobs hold afterwards."""
    max_seconds: float = 600.0
    """seconds of a run; a request under way may take minutes more with its retries."""
    request_timeout_s: float = 45.0
    retries: int = 4
    """retries of a failed request by the official client, with exponential back-off."""

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
    """Name of the default model."""
    return variables.get("MODEL_NAME") or DEFAULT_MODEL


def has_key(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a key is set."""
    return _key(variables) is not None


def _key(variables: Mapping[str, str]) -> str | None:
    return variables.get("OPENAI_API_KEY") or variables.get("HF_TOKEN") or None
