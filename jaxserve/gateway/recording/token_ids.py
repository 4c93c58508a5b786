"""Token ids and log-probabilities: request fields that ask for them, and their place in answers.

Sources: vLLM 0.32.0 (``entrypoints/openai/chat_completion``) and SGLang 0.5.23
(``srt/entrypoints/openai/serving_chat.py``). All functions leave their arguments unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxserve.gateway.http.json_http import object_items

Json = Mapping[str, Any]

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "response_format",
    "structured_outputs",
    "tool_choice",
)
"""Fields of a request that affect sampling."""
_TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "response_token_ids", "meta_info", "logprobs")
"""Fields of answers, events and choices with tokens, which agents do not get."""


class ChoiceTokens(NamedTuple):
    """Tokens of a choice in an answer or event; None where the engine sent none."""

    ids: Any
    """token ids, unchecked."""
    logprobs: list[Any] | None = None
    """log-probabilities, unchecked."""
    texts: list[Any] | None = None
    """texts, unchecked."""


@dataclass(frozen=True)
class EngineFormat:
    """Request fields and answer format of one kind of engine."""

    ask: Callable[[Json], dict[str, Any]]
    """adds the fields for ids and log-probabilities to a chat request."""
    prompt: Callable[[Json], Any]
    """reads the token ids of the prompt in an answer; None where it has none."""
    tokens: Callable[[Json], ChoiceTokens]
    """reads the tokens of a choice."""


def _ask_vllm(chat: Json) -> dict[str, Any]:
    # With ``include_reasoning`` false, vLLM leaves out all ids and log-probabilities as well.
    asked = {name: value for name, value in chat.items() if name != "include_reasoning"}
    asked |= {
        "logprobs": True,
        "top_logprobs": chat.get("top_logprobs") or 0,
        "return_token_ids": True,
    }
    return asked


def _vllm_tokens(choice: Json) -> ChoiceTokens:
    ids, content = choice.get("token_ids"), _inside(choice, "logprobs").get("content")
    if not isinstance(content, list):
        return ChoiceTokens(ids)
    entries = [one if isinstance(one, dict) else {} for one in content]
    texts = [one.get("token") for one in entries]
    return ChoiceTokens(ids, [one.get("logprob") for one in entries], texts)


def _ask_sglang(chat: Json) -> dict[str, Any]:
    # Ask for a whole answer: with ``stream``, SGLang refuses three of these fields and loses the
    # log-probability of a step without text, usually the last. The client still gets events.
    left_out = ("stream_options", "return_token_ids")
    asked = {name: value for name, value in chat.items() if name not in left_out}
    return asked | {
        "stream": False,
        "logprobs": True,
        "return_prompt_token_ids": True,
        "return_meta_info": True,
    }


def _sglang_prompt(answer: Json) -> Any:
    return next(
        (one["prompt_token_ids"] for one in choices(answer) if "prompt_token_ids" in one), None
    )


def _sglang_tokens(choice: Json) -> ChoiceTokens:
    """``output_token_logprobs`` is ``[[logprob, token id, text], ...]``."""
    found = _inside(choice, "meta_info").get("output_token_logprobs")
    if not isinstance(found, list) or not all(
        isinstance(one, list) and len(one) > 1 for one in found
    ):
        return ChoiceTokens(None)
    texts = [one[2] if len(one) > 2 else None for one in found]
    return ChoiceTokens([one[1] for one in found], [one[0] for one in found], texts)


FORMATS: Mapping[str, EngineFormat] = {
    "vllm": EngineFormat(_ask_vllm, lambda answer: answer.get("prompt_token_ids"), _vllm_tokens),
    "sglang": EngineFormat(_ask_sglang, _sglang_prompt, _sglang_tokens),
}
"""Formats by the kind of engine."""


def choices(answer: Json) -> Sequence[Json]:
    """Choices of an answer or an event."""
    return object_items(answer.get("choices"))


def sampling_parameters(request: Json) -> dict[str, Any]:
    """Sampling parameters in a chat request."""
    return {name: request[name] for name in _SAMPLING if request.get(name) is not None}


class TokenCollector:
    """Collects the tokens of one answer, whole or in events; malformed values count as absent."""

    def __init__(self, kind: str) -> None:
        """Args: the kind of the engine."""
        self._format = FORMATS[kind]
        self._prompt: Any = None
        self._collected: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}

    def add(self, answer: Json) -> None:
        """Adds a whole answer, or one more event."""
        prompt = self._format.prompt(answer)
        self._prompt = self._prompt if prompt is None else prompt
        for choice in choices(answer):
            tokens = self._format.tokens(choice)
            if tokens.ids is None:
                continue
            index = choice.get("index", 0)
            known = self._collected.setdefault(index if isinstance(index, int) else 0, ([], [], []))
            known[0].extend(tokens.ids if isinstance(tokens.ids, list) else [tokens.ids])
            known[1].extend(tokens.logprobs or ())
            known[2].extend(tokens.texts or ())

    @property
    def prompt_ids(self) -> np.ndarray | None:
        """Token ids of the prompt, int32 ``[P]``; None if absent."""
        return _ids(self._prompt)

    def of(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Token ids int32 ``[T]`` and log-probabilities float32 ``[T]`` of a choice; (None, None)
        if absent."""
        if index not in self._collected:
            return None, None
        values, logprobs, _ = self._collected[index]
        ids = _ids(values)
        return ids, None if ids is None else _logprobs(logprobs, len(ids))

    def texts(self, index: int) -> tuple[str, ...] | None:
        """Texts of the tokens of a choice, ``[T]``; empty for a token without one, None where all
        are or their number is not that of the ids."""
        ids, _, texts = self._collected.get(index, ((), (), ()))
        found = tuple(one if isinstance(one, str) else "" for one in texts)
        return found if any(found) and len(found) == len(ids) else None


def without_tokens(answer: Json) -> dict[str, Any]:
    """An answer without its token fields."""
    rest = {name: value for name, value in answer.items() if name not in _TOKEN_FIELDS}
    return rest | {
        "choices": [
            {name: value for name, value in one.items() if name not in _TOKEN_FIELDS}
            for one in choices(answer)
        ]
    }


def _inside(holder: Json, name: str) -> Json:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _ids(values: Any) -> np.ndarray | None:
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        return None
    try:
        return np.array(values, np.int32)
    except OverflowError:
        return None


def _logprobs(values: Any, count: int) -> np.ndarray:
    """Log-probabilities float32 ``[count]``, NaN for other values; all NaN where their number is
    not ``count``."""
    if not isinstance(values, list) or len(values) != count:
        return np.full(count, np.nan, np.float32)
    numbers = [one if type(one) in (int, float) else np.nan for one in values]
    return np.array(numbers, np.float32)
