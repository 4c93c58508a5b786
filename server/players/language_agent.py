"""A language model as an operator: it reads the dashboard every few windows and sets the knobs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from jaxserve.errors import InputError
from jaxserve.spaces import ACTION_BOUNDS, KNOB_FIELDS, KNOBS, OBSERVATION_BOUNDS
from server.sessions.engine import Knobs
from server.wire.schemas import ServeAction
from server.wire.sentences import checked

HUGGING_FACE_URL = "https://router.huggingface.co/v1"
DEFAULT_MODEL = "gpt-4o-mini"
_HIDDEN = {
    "estimated_cost_per_1k",
    "step_index",
    "priority_distribution",
    "slo_violation_rate",
    "cost_so_far",
}
"""Of an observation, what a decision does not need."""
_SHOWN = tuple(name for name in OBSERVATION_BOUNDS if name not in _HIDDEN)
_ANSWER_TOKENS = 400


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
        key = variables.get("OPENAI_API_KEY") or variables.get("HF_TOKEN")
        if not key:
            raise InputError(
                "no key for a language model; set OPENAI_API_KEY, or HF_TOKEN for Hugging Face"
            )
        base_url = variables.get("API_BASE_URL") or variables.get("OPENAI_BASE_URL")
        if base_url is None and not variables.get("OPENAI_API_KEY"):
            base_url = HUGGING_FACE_URL
        model = chosen.pop("model", None) or variables.get("MODEL_NAME") or DEFAULT_MODEL
        return cls(model=model, api_key=key, base_url=base_url, **chosen)


class LanguageAgent:
    """Chooses actions for any number of episodes within one budget, and writes down why."""

    def __init__(self, settings: ModelSettings) -> None:
        """Nothing is sent yet."""
        self.settings = settings
        self.trace: list[dict[str, Any]] = []
        """every exchange: what was asked, what came back, tokens, seconds, error."""
        self.tokens = 0
        self._forms = list(_FORMS)
        self._started = time.monotonic()
        self._client = openai.OpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout=settings.request_timeout_s,
            max_retries=settings.retries,
        )

    @property
    def exhausted(self) -> str | None:
        """Which budget is used up, if one is."""
        if self.tokens >= self.settings.max_tokens:
            return f"the budget of {self.settings.max_tokens:,} tokens is used up"
        if time.monotonic() - self._started >= self.settings.max_seconds:
            return f"the budget of {self.settings.max_seconds:g} s is used up"
        return None

    def decide(
        self, task: Mapping[str, Any], windows: Sequence[Mapping[str, Any]], last: Knobs
    ) -> Knobs:
        """The knobs to hold until the next decision; ``last`` where the model gives none.

        Args:
          task: from ``server.wire.catalogue.describe_task``.
          windows: observations with their reward, oldest first; the last one is now.
        """
        if self.exhausted:
            return last
        messages = [
            {"role": "system", "content": _instructions(task)},
            {"role": "user", "content": _situation(task, windows, last)},
        ]
        for attempt in ("first", "repair"):
            text = self._ask(messages, attempt, len(windows))
            if text is None:
                return last
            try:
                return _parse(text, last)
            except InputError as error:
                self.trace[-1]["error"] = str(error)
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": f"{error}. Answer with the corrected JSON only."},
                ]
        return last

    def _ask(self, messages: list[dict[str, str]], attempt: str, window: int) -> str | None:
        entry: dict[str, Any] = {
            "window": window,
            "attempt": attempt,
            "messages": list(messages),
            "answer": None,
            "error": None,
        }
        self.trace.append(entry)
        started = time.monotonic()
        try:
            entry["answer"], used = self._stream(messages)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            entry["error"] = _describe(error)
            if len(self._forms) == 1:
                return None
            # Not every server knows JSON schemas, or tools; the next form asks for less.
            del self._forms[0]
            return self._ask(messages, attempt, window)
        except _BROKEN_ANSWERS as error:
            entry["error"] = _describe(error)
            return None
        finally:
            entry["seconds"] = round(time.monotonic() - started, 3)
        entry["tokens"] = used
        self.tokens += used
        return entry["answer"]

    def _stream(self, messages: list[dict[str, str]]) -> tuple[str, int]:
        """The answer and its tokens, read as it comes so that it can be cut when time is up."""
        create: Any = self._client.chat.completions.create
        stream = create(
            model=self.settings.model,
            messages=messages,
            max_tokens=_ANSWER_TOKENS,
            temperature=0.0,
            seed=0,
            stream=True,
            stream_options={"include_usage": True},
            **self._forms[0],
        )
        pieces, used = [], 0
        with stream:
            for chunk in stream:
                if chunk.usage is not None:
                    used = chunk.usage.total_tokens
                if chunk.choices:
                    pieces += _pieces(chunk.choices[0].delta)
                if self.exhausted:
                    break
        text = "".join(pieces)
        # Servers that count nothing: about four characters make a token.
        asked = sum(len(message["content"]) for message in messages)
        return text, used or (asked + len(text)) // 4


def _instructions(task: Mapping[str, Any]) -> str:
    knobs = [
        f"- {name} ({knob.bound.low:g}..{knob.bound.high:g}): {knob.text}"
        for name, knob in KNOB_FIELDS.items()
        if name in task["active_knobs"]
    ]
    classes = [
        f"- {one['name']}: first token within {one['ttft_slo_ms']:g} ms, then a token every "
        f"{one['tpot_slo_ms']:g} ms; priority {one['priority']}, worth {one['value']:g}"
        for one in task["classes"]
    ]
    return "\n".join(
        [
            f"You operate an LLM inference server: {task['model']} on {task['num_gpus']} x "
            f"{task['hardware']}. {task['description']}",
            "Requests count only if they are completed within their objectives:",
            *classes,
            f"Memory beyond {task['memory_limit_gb']:g} GiB a GPU and money cost reward.",
            "The traffic changes; your knobs hold until you are asked again. The knobs:",
            *knobs,
            "Answer with one JSON object that has every knob and a short reason, nothing else.",
        ]
    )


def _situation(task: Mapping[str, Any], windows: Sequence[Mapping[str, Any]], last: Knobs) -> str:
    recent = [
        {name: _short(window[name]) for name in (*_SHOWN, "reward")} for window in windows[-5:]
    ]
    now = windows[-1]["step_index"]
    return json.dumps(
        {
            "window": now,
            "windows_left": task["max_steps"] - now,
            "knobs_now": dict(zip(KNOBS, last, strict=True)),
            "last_windows": recent,
        }
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _parse(text: str, last: Knobs) -> Knobs:
    """The knobs of an answer; those it leaves out stay.

    Raises:
      InputError: it holds no JSON object, or one with other than allowed values.
    """
    first, final = text.find("{"), text.rfind("}")
    try:
        data = json.loads(text[first : final + 1])
    except (ValueError, RecursionError):
        raise InputError("the answer is not one JSON object") from None
    if not isinstance(data, dict):
        raise InputError("the answer is not one JSON object")
    data.pop("reason", None)
    if not data:
        raise InputError("the answer names no knob")
    stay = dict(zip(KNOBS, last, strict=True))
    action = checked(ServeAction, stay | checked(ServeAction, data).model_dump(exclude_unset=True))
    return action.knobs()


def _pieces(delta: Any) -> list[str]:
    """The text of a part of an answer, be it content or the argument of a tool call."""
    called = [call.function.arguments for call in delta.tool_calls or () if call.function]
    return [piece for piece in (delta.content, *called) if piece]


def _describe(error: Exception) -> str:
    """What went wrong, in one line, without headers or keys."""
    if isinstance(error, openai.APIStatusError):
        return f"status {error.status_code} of {type(error).__name__}"
    return type(error).__name__


def _schema() -> dict[str, Any]:
    knobs = {
        knob: {
            "type": "integer" if bound.integer else "number",
            "minimum": bound.low,
            "maximum": bound.high,
        }
        for knob, bound in ACTION_BOUNDS.items()
    }
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, **knobs},
        "required": ["reason", *KNOBS],
        "additionalProperties": False,
    }


_FORMS: tuple[dict[str, Any], ...] = (
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "knobs", "strict": True, "schema": _schema()},
        }
    },
    {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "set_knobs",
                    "description": "Holds the knobs until the next decision.",
                    "parameters": _schema(),
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "set_knobs"}},
    },
    {},
)
"""Ways to ask for JSON, the surest first; the instructions alone come last."""
_BROKEN_ANSWERS = (openai.OpenAIError, httpx.HTTPError, ValueError, AttributeError, TypeError)
"""What the official client raises when a stream breaks off, or is no stream of chunks."""
