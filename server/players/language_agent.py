"""A language model as an operator, which reads the dashboard every few windows and sets knobs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import openai

from jaxserve.errors import InputError
from jaxserve.spaces import ACTION_BOUNDS, KNOB_FIELDS, KNOBS, OBSERVATION_BOUNDS
from server.players.model_answers import first_object
from server.players.model_settings import ModelSettings
from server.sessions.programs import Knobs
from server.wire.error_sentences import checked
from server.wire.schemas import ActionModel

_HIDDEN = {
    "estimated_cost_per_1k",
    "step_index",
    "priority_distribution",
    "slo_violation_rate",
    "cost_so_far",
}
"""Fields of an observation that the model is not shown."""
_SHOWN = tuple(name for name in OBSERVATION_BOUNDS if name not in _HIDDEN)
_ANSWER_TOKENS = 400
_MOST_TOKENS = 8192
"""Tokens of an answer by a reasoning model, its thoughts included."""
_DECIMALS = 4
_HOPELESS = 3
"""First decisions without an answer, after which the model is given up."""


class LanguageAgent:
    """Chooses actions for any number of episodes within one budget, and keeps all exchanges."""

    def __init__(self, settings: ModelSettings) -> None:
        """Sends nothing yet."""
        self.settings = settings
        self.trace: list[dict[str, Any]] = []
        """every exchange: request, answer, tokens, seconds, error."""
        self.tokens = 0
        self.decisions = 0
        """decisions requested."""
        self.answers = 0
        """decisions with a valid answer, at once or after a repair."""
        self.refused: str | None = None
        """permanent error of the last exchange, None otherwise."""
        self._forms = list(_FORMS)
        self._parameters: dict[str, Any] = {"temperature": 0.0, "seed": 0}
        self._limit, self._answer_tokens = "max_tokens", _ANSWER_TOKENS
        self._started = time.monotonic()
        self._client = openai.OpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout=settings.request_timeout_s,
            max_retries=settings.retries,
        )

    @property
    def exhausted(self) -> str | None:
        """Sentence about a budget that is used up; None if none is."""
        if self.tokens >= self.settings.max_tokens:
            return f"the budget of {self.settings.max_tokens:,} tokens is used up"
        if time.monotonic() - self._started >= self.settings.max_seconds:
            return f"the budget of {self.settings.max_seconds:g} s is used up"
        return None

    @property
    def hopeless(self) -> str | None:
        """Why a model that has never answered is given up; None if it is not."""
        if self.answers or not self.decisions:
            return None
        if self.refused is None and self.decisions < _HOPELESS:
            return None
        error = self.refused or next(
            (each["error"] for each in reversed(self.trace) if each["error"]), "no answer"
        )
        return f"the model {self.settings.model} has never answered: {error}"

    def decide(
        self, task: Mapping[str, Any], windows: Sequence[Mapping[str, Any]], last: Knobs
    ) -> Knobs:
        """The knobs until the next decision; ``last`` if the model gives none.

        Args:
          task: from ``server.wire.catalogue.describe_task``.
          windows: observations with their reward, oldest first; None where there is nothing to
            judge.
        """
        if self.exhausted:
            return last
        self.decisions += 1
        messages = [
            {"role": "system", "content": _instructions(task)},
            {"role": "user", "content": _situation(task, windows, last)},
        ]
        for attempt in ("first", "repair"):
            if self.exhausted:
                return last
            text = self._ask(messages, attempt, len(windows))
            if text is None:
                return last
            try:
                knobs = _parse(text, last)
            except InputError as error:
                self.trace[-1]["error"] = str(error)
                if self.trace[-1].pop("cut", False):
                    self._answer_tokens = min(8 * self._answer_tokens, _MOST_TOKENS)
                    continue
                messages += [
                    {"role": "assistant", "content": text},
                    {
                        "role": "user",
                        "content": f"{error}. Answer with the corrected JSON only.",
                    },
                ]
            else:
                self.answers += 1
                self.refused = None
                return knobs
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
            entry["answer"], used, cut = self._stream(messages)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            entry["error"] = _describe(error)
            return self._ask(messages, attempt, window) if self._ask_less(error) else None
        except tuple(_REFUSALS) as error:
            # To ask again would change nothing.
            entry["error"] = self.refused = f"{_describe(error)}; {_REFUSALS[type(error)]}"
            return None
        except _BROKEN_ANSWERS as error:
            entry["error"] = _describe(error)
            return None
        finally:
            entry["seconds"] = round(time.monotonic() - started, 3)
        entry["tokens"] = used
        self.tokens += used
        if cut:
            entry["cut"] = True
        return entry["answer"]

    def _ask_less(self, error: openai.APIStatusError) -> bool:
        """Drops parameters that the provider refuses; returns whether to send the request again.

        Reasoning models refuse a temperature and ``max_tokens``; some servers, schemas or tools.
        """
        named = f"{error.param} {error.message}"
        unknown = [name for name in self._parameters if name in named]
        for name in unknown:
            del self._parameters[name]
        # An error about the limit names both parameters: the refused and the known one.
        if "max_tokens" in named and self._limit == "max_tokens":
            self._limit, self._answer_tokens = "max_completion_tokens", _MOST_TOKENS
            return True
        if unknown:
            return True
        if len(self._forms) == 1:
            return False
        del self._forms[0]
        return True

    def _stream(self, messages: list[dict[str, str]]) -> tuple[str, int, bool]:
        """The answer, its tokens, and whether the limit cut it; streamed, so that reading ends with
        the budget."""
        create: Any = self._client.chat.completions.create
        stream = create(
            model=self.settings.model,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **{self._limit: self._answer_tokens},
            **self._parameters,
            **self._forms[0],
        )
        pieces, used, cut = [], 0, False
        with stream:
            for chunk in stream:
                if chunk.usage is not None:
                    used = chunk.usage.total_tokens
                if chunk.choices:
                    pieces += _pieces(chunk.choices[0].delta)
                    cut = cut or chunk.choices[0].finish_reason == "length"
                if self.exhausted:
                    break
        text = "".join(pieces)
        # Some servers report no usage: a token is about four characters.
        asked = sum(len(message["content"]) for message in messages)
        return text, used or (asked + len(text)) // 4, cut


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
            "A figure is null where too few requests came to judge it.",
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


def _short(value: float | None) -> float | None:
    # Requests are fractions in the simulator: a billionth of one would be read as one.
    return None if value is None else round(float(f"{value:.4g}"), _DECIMALS)


def _parse(text: str, last: Knobs) -> Knobs:
    """The knobs of an answer; absent ones keep their value.

    Raises:
      InputError: the answer holds no JSON object, or an invalid value.
    """
    data = first_object(text)
    if data is None:
        raise InputError("the answer is not one JSON object")
    data.pop("reason", None)
    if not data:
        raise InputError("the answer names no knob")
    stay = dict(zip(KNOBS, last, strict=True))
    action = checked(ActionModel, stay | checked(ActionModel, data).model_dump(exclude_unset=True))
    return action.knobs()


def _pieces(delta: Any) -> list[str]:
    """The text of a chunk: content, or arguments of a tool call."""
    called = [call.function.arguments for call in delta.tool_calls or () if call.function]
    return [piece for piece in (delta.content, *called) if piece]


def _describe(error: Exception) -> str:
    """An error in one line, without headers or keys."""
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
"""Ways to request JSON, the most reliable first; the last is the instructions alone."""
_REFUSALS = {
    openai.AuthenticationError: "the key is refused",
    openai.PermissionDeniedError: "the key may not use the model",
    openai.NotFoundError: "MODEL_NAME or API_BASE_URL is wrong",
}
"""Permanent errors, and their sentences."""
_BROKEN_ANSWERS = (openai.OpenAIError, httpx.HTTPError, ValueError, AttributeError, TypeError)
"""Exceptions of the official client if a stream breaks off, or is no stream of chunks."""
