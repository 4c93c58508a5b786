"""How each engine is asked for token ids and log-probabilities, and where its answer has them.

Looked up in vLLM 0.32.0 (``entrypoints/openai/chat_completion``) and SGLang 0.5.23
(``srt/entrypoints/openai/serving_chat.py``). Nothing that is given is changed; every function
returns something new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxserve.gateway.sessions.records import Choice

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


@dataclass(frozen=True)
class Strategy:
    """What one kind of engine needs."""

    ask: Callable[[Json], dict[str, Any]]
    """a chat request with the wish for ids and log-probabilities."""
    prompt: Callable[[Json], Any]
    """token ids of the prompt in an answer; None where it has none."""
    tokens: Callable[[Json], tuple[Any, Any]]
    """ids and log-probabilities in a choice; None for either."""


def _ask_vllm(chat: Json) -> dict[str, Any]:
    # Without reasoning in the answer vLLM leaves out all ids and log-probabilities as well.
    asked = {name: value for name, value in chat.items() if name != "include_reasoning"}
    asked |= {
        "logprobs": True,
        "top_logprobs": chat.get("top_logprobs") or 0,
        "return_token_ids": True,
    }
    if chat.get("stream") is True:
        asked["stream_options"] = {**(chat.get("stream_options") or {}), "include_usage": True}
    return asked


def _vllm_tokens(choice: Json) -> tuple[Any, Any]:
    content = _inside(choice, "logprobs").get("content")
    if not isinstance(content, list):
        return choice.get("token_ids"), None
    return choice.get("token_ids"), [
        one.get("logprob") if isinstance(one, dict) else None for one in content
    ]


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


def _sglang_tokens(choice: Json) -> tuple[Any, Any]:
    """``output_token_logprobs`` is ``[[logprob, token id, text], ...]``."""
    found = _inside(choice, "meta_info").get("output_token_logprobs")
    if not isinstance(found, list) or not all(
        isinstance(one, list) and len(one) > 1 for one in found
    ):
        return None, None
    return [one[1] for one in found], [one[0] for one in found]


STRATEGIES: Mapping[str, Strategy] = {
    "vllm": Strategy(_ask_vllm, lambda answer: answer.get("prompt_token_ids"), _vllm_tokens),
    "sglang": Strategy(_ask_sglang, _sglang_prompt, _sglang_tokens),
}
"""By the kind of engine."""


def choices(answer: Json) -> Sequence[Json]:
    """Those of an answer or an event."""
    return objects(answer.get("choices"))


def objects(found: Any) -> Sequence[Json]:
    """The JSON objects of a list; none of anything else."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def sampling_of(asked: Json) -> dict[str, Any]:
    """The parameters of sampling in a request."""
    return {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}


def read(kind: str, answer: Json) -> tuple[np.ndarray | None, tuple[Choice, ...]]:
    """Prompt ids and choices of an answer; what is malformed counts as not told.

    Args:
      kind: of the engine.
    """
    strategy = STRATEGIES[kind]
    found = []
    for place, choice in enumerate(choices(answer)):
        ids, logprobs = strategy.tokens(choice)
        response_ids = _ids(ids)
        index = choice.get("index")
        found.append(
            Choice(
                index=index if isinstance(index, int) else place,
                message={**_inside(choice, "message")},
                finish_reason=choice.get("finish_reason"),
                response_ids=response_ids,
                logprobs=None if response_ids is None else _logprobs(logprobs, len(response_ids)),
            )
        )
    return _ids(strategy.prompt(answer)), tuple(sorted(found, key=lambda one: one.index))


def bare(answer: Json) -> dict[str, Any]:
    """An answer without ids and log-probabilities, for the record."""
    return _without(answer, _OURS)


def shown(answer: Json, asked: Json) -> dict[str, Any]:
    """An answer or event as the client asked for it: only with the ids and log-probabilities that
    it wants, and without reasoning where it wants none.

    Args:
      asked: the chat request as the client would have sent it.
    """
    wanted = set()
    if asked.get("return_token_ids") is True:
        wanted |= {"prompt_token_ids", "token_ids", "response_token_ids"}
    if asked.get("return_prompt_token_ids") is True:
        wanted.add("prompt_token_ids")
    if asked.get("return_meta_info") is True:
        wanted.add("meta_info")
    if asked.get("logprobs") is True:
        wanted.add("logprobs")
    seen = _without(answer, [name for name in _OURS if name not in wanted])
    if asked.get("include_reasoning") is False:
        for choice in seen["choices"] if isinstance(seen.get("choices"), list) else ():
            for part in ("message", "delta"):
                if isinstance(choice, dict) and isinstance(choice.get(part), dict):
                    choice[part] = {k: v for k, v in choice[part].items() if k != "reasoning"}
    return seen


def _without(answer: Json, names: Sequence[str]) -> dict[str, Any]:
    bared = {name: value for name, value in answer.items() if name not in names}
    if isinstance(bared.get("choices"), list):
        bared["choices"] = [
            {name: value for name, value in one.items() if name not in names}
            if isinstance(one, dict)
            else one
            for one in bared["choices"]
        ]
    return bared


def _inside(holder: Json, name: str) -> Json:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _ids(values: Any) -> np.ndarray | None:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
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
