"""How each engine is asked for token ids and log-probabilities, and where its answer has them.

Looked up in vLLM 0.32.0 (``entrypoints/openai/chat_completion``) and SGLang 0.5.23
(``srt/entrypoints/openai/serving_chat.py``). Nothing that is given is changed; every function
returns something new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxserve.gateway.dialects.request_fields import objects

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
"""Fields of a request that change which tokens are sampled."""
_OURS = ("prompt_token_ids", "token_ids", "response_token_ids", "meta_info", "logprobs")
"""Fields of answers, events and their choices that stand beside what the model said."""


class Told(NamedTuple):
    """What a choice tells of its tokens; None where it does not."""

    ids: Any
    logprobs: list[Any] | None = None
    texts: list[Any] | None = None


@dataclass(frozen=True)
class Strategy:
    """What one kind of engine needs."""

    ask: Callable[[Json], dict[str, Any]]
    """a chat request with the wish for ids and log-probabilities."""
    prompt: Callable[[Json], Any]
    """token ids of the prompt in an answer; None where it has none."""
    tokens: Callable[[Json], Told]
    """what a choice tells of its tokens."""


def _ask_vllm(chat: Json) -> dict[str, Any]:
    # Without reasoning in the answer vLLM leaves out all ids and log-probabilities as well.
    asked = {name: value for name, value in chat.items() if name != "include_reasoning"}
    asked |= {
        "logprobs": True,
        "top_logprobs": chat.get("top_logprobs") or 0,
        "return_token_ids": True,
    }
    return asked


def _vllm_tokens(choice: Json) -> Told:
    ids, content = choice.get("token_ids"), _inside(choice, "logprobs").get("content")
    if not isinstance(content, list):
        return Told(ids)
    entries = [one if isinstance(one, dict) else {} for one in content]
    texts = [one.get("token") for one in entries]
    return Told(ids, [one.get("logprob") for one in entries], texts)


def _ask_sglang(chat: Json) -> dict[str, Any]:
    # With ``stream`` it refuses three of these fields, and a step without text, as the last one
    # usually is, loses its log-probability. So the answer comes whole; the client gets its events.
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


def _sglang_tokens(choice: Json) -> Told:
    """``output_token_logprobs`` is ``[[logprob, token id, text], ...]``."""
    found = _inside(choice, "meta_info").get("output_token_logprobs")
    if not isinstance(found, list) or not all(
        isinstance(one, list) and len(one) > 1 for one in found
    ):
        return Told(None)
    texts = [one[2] if len(one) > 2 else None for one in found]
    return Told([one[1] for one in found], [one[0] for one in found], texts)


STRATEGIES: Mapping[str, Strategy] = {
    "vllm": Strategy(_ask_vllm, lambda answer: answer.get("prompt_token_ids"), _vllm_tokens),
    "sglang": Strategy(_ask_sglang, _sglang_prompt, _sglang_tokens),
}
"""By the kind of engine."""


def choices(answer: Json) -> Sequence[Json]:
    """Those of an answer or an event."""
    return objects(answer.get("choices"))


def sampling_of(asked: Json) -> dict[str, Any]:
    """The parameters of sampling in a request."""
    return {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}


class Tokens:
    """Ids, log-probabilities and texts of the tokens of one answer, whole or in events; what is
    malformed counts as not told."""

    def __init__(self, kind: str) -> None:
        """Args: kind of the engine."""
        self._strategy = STRATEGIES[kind]
        self._prompt: Any = None
        self._told: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}

    def add(self, answer: Json) -> None:
        """What a whole answer has, or one more event."""
        prompt = self._strategy.prompt(answer)
        self._prompt = self._prompt if prompt is None else prompt
        for choice in choices(answer):
            told = self._strategy.tokens(choice)
            if told.ids is None:
                continue
            index = choice.get("index", 0)
            known = self._told.setdefault(index if isinstance(index, int) else 0, ([], [], []))
            known[0].extend(told.ids if isinstance(told.ids, list) else [told.ids])
            known[1].extend(told.logprobs or ())
            known[2].extend(told.texts or ())

    @property
    def prompt_ids(self) -> np.ndarray | None:
        """Of the prompt, int32 ``[P]``."""
        return _ids(self._prompt)

    def of(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Those of a choice: int32 and float32 ``[T]``, or None twice."""
        if index not in self._told:
            return None, None
        told, logprobs, _ = self._told[index]
        ids = _ids(told)
        return ids, None if ids is None else _logprobs(logprobs, len(ids))

    def texts(self, index: int) -> tuple[str, ...] | None:
        """Of the tokens of a choice, ``[T]``; empty for a token without one, None where none has
        one or they cannot belong to the ids."""
        told, _, texts = self._told.get(index, ((), (), ()))
        found = tuple(one if isinstance(one, str) else "" for one in texts)
        return found if any(found) and len(found) == len(told) else None


def bare(answer: Json) -> dict[str, Any]:
    """An answer without ids and log-probabilities, for the record."""
    bared = {name: value for name, value in answer.items() if name not in _OURS}
    return bared | {
        "choices": [
            {name: value for name, value in one.items() if name not in _OURS}
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
    """``count`` numbers, NaN for what is none; none at all where they cannot belong to the ids."""
    if not isinstance(values, list) or len(values) != count:
        return np.full(count, np.nan, np.float32)
    numbers = [one if type(one) in (int, float) else np.nan for one in values]
    return np.array(numbers, np.float32)
