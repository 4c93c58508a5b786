"""A dialect: error bodies, tokens and usage in its events, and its translation.

Pure functions of parsed JSON. An event is the ``data:`` of a server-sent event, an answer the body
of a whole response. An object of an unknown form counts neither as a token nor as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from jaxserve.gateway.dialects.canonical import Chat, Completion, DialectRequest
from jaxserve.gateway.dialects.deltas import EventWriter
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import object_items, parse_object, whole_number

Json = Mapping[str, Any]


class Usage(NamedTuple):
    """Tokens counted by an engine; None where the engine reports no count."""

    prompt: int | None = None
    """tokens of the prompt."""
    output: int | None = None
    """tokens of the output."""
    cached: int | None = None
    """tokens of the prompt found in a prefix cache."""

    def updated(self, later: Usage) -> Usage:
        """This usage with the counts of a later event."""
        return Usage(
            self.prompt if later.prompt is None else later.prompt,
            self.output if later.output is None else later.output,
            self.cached if later.cached is None else later.cached,
        )


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model, as the list of models shows it."""

    id: str
    """name of the model in requests."""
    created_s: int = 0
    """time of creation, s since 1970; 0 where the engine reports none."""
    context_tokens: int | None = None
    """limit of prompt and output together, tokens; None where the engine reports none."""


@dataclass(frozen=True, slots=True)
class Translation:
    """Functions of a dialect to the canonical form and back."""

    to_chat: Callable[[DialectRequest, TemplatePolicy], Chat]
    """reads a client's request."""
    answer_body: Callable[[Chat, Completion], dict[str, Any]]
    """body of a whole answer."""
    event_writer: Callable[[Chat], EventWriter]
    """writer of a streamed answer."""
    model: Callable[[ModelCard], dict[str, Any]]
    """one model, for a request that names it."""
    models: Callable[[Sequence[ModelCard]], dict[str, Any]]
    """list of models."""
    count_body: Callable[[int], dict[str, Any]] | None = None
    """body of a token count; None where the dialect has no route for it."""


@dataclass(frozen=True)
class Dialect:
    """One API for clients of language models."""

    name: str
    """``chat``, ``completions``, ``messages``, ``responses`` or ``google``."""
    error: Callable[[RequestError], Json]
    """body of an error response."""
    error_event: Callable[[RequestError, int], bytes]
    """error inside a stream, after a number of events."""
    has_token: Callable[[Json], bool]
    """whether an event brings output."""
    is_error: Callable[[Json], bool]
    """whether an event reports a failure of the engine."""
    usage: Callable[[Json], Usage]
    """usage in an event or a whole answer."""
    finishes: Callable[[Json], Mapping[int, str | None]]
    """reason for which each choice ended, in an event or a whole answer; None while it goes on."""
    translation: Translation | None = None
    """functions for sessions; None where requests can only be passed through."""
    asks_for_usage: bool = False
    """whether a stream reports usage only if ``stream_options`` ask for it."""


def model_cards(body: bytes) -> tuple[ModelCard, ...]:
    """Models in an engine's answer to ``GET /v1/models``; malformed entries are left out."""
    cards = object_items((parse_object(body) or {}).get("data"))
    return tuple(
        ModelCard(
            card["id"],
            whole_number(card.get("created")) or 0,
            whole_number(card.get("max_model_len")),
        )
        for card in cards
        if isinstance(card.get("id"), str)
    )


GIVEN_UP = ("abort", "error", "cancelled", "timeout")
"""Finish reasons of an answer that the engine did not bring to its end: those of vLLM and SGLang,
and the last two of TensorRT-LLM."""

DELTA_OUTPUT = (
    "content",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function_call",
    "refusal",
)
"""Fields of a chat delta that hold output."""


def finishes_by_index(items: object, field: str) -> dict[int, str | None]:
    """Reason in a field of each choice or candidate, by its index; None while it goes on."""
    found: dict[int, str | None] = {}
    for place, item in enumerate(object_items(items)):
        index = whole_number(item.get("index"))
        reason = item.get(field)
        found[place if index is None else index] = str(reason) if reason else None
    return found


def openai_failed(event: Json) -> bool:
    """Whether an event or a body is an error under OpenAI's name, or under SGLang's."""
    return event.get("error") is not None or event.get("object") == "error"


def named_event(name: str, content: Json) -> bytes:
    """A server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(content))


def error_type(status: int, types: Mapping[int, str], server: str) -> str:
    """Type of an error by its status.

    Args:
      status: of the error.
      types: types of some statuses.
      server: type of the statuses from 500 on; the rest is ``invalid_request_error``.
    """
    return types.get(status, "invalid_request_error" if status < 500 else server)


def openai_usage(event: Json, inside: str | None = None) -> Usage:
    """Usage at the top of an event, or inside one of its objects, under OpenAI's or Anthropic's
    names."""
    usage = event.get("usage")
    if usage is None and inside is not None:
        holder = event.get(inside)
        usage = holder.get("usage") if isinstance(holder, dict) else None
    if not isinstance(usage, dict):
        return NO_USAGE
    return Usage(
        _first_count(usage, "prompt_tokens", "input_tokens"),
        _first_count(usage, "completion_tokens", "output_tokens"),
        _cached(usage),
    )


def _cached(usage: Json) -> int | None:
    """Cached tokens under the names of OpenAI's chat, completions and responses."""
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            return whole_number(details.get("cached_tokens"))
    return None


def _first_count(usage: Json, *names: str) -> int | None:
    counts = (whole_number(usage.get(name)) for name in names)
    return next((count for count in counts if count is not None), None)
