"""Which dialect a request speaks, and its functions for the way there and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from jaxserve.gateway.dialects import openai_chat
from jaxserve.gateway.dialects.anthropic_messages import answers as anthropic_answers
from jaxserve.gateway.dialects.anthropic_messages import requests as anthropic_messages
from jaxserve.gateway.dialects.canonical import Asked, Chat, Completion
from jaxserve.gateway.dialects.deltas import EventWriter
from jaxserve.gateway.dialects.dialect import CHAT, GOOGLE, MESSAGES, RESPONSES, Dialect
from jaxserve.gateway.dialects.google_generate import answers as google_answers
from jaxserve.gateway.dialects.google_generate import requests as google_generate
from jaxserve.gateway.dialects.models import (
    ModelCard,
    anthropic_model,
    anthropic_models,
    google_model,
    google_models,
    openai_model,
    openai_models,
)
from jaxserve.gateway.dialects.openai_responses import answers as responses_answers
from jaxserve.gateway.dialects.openai_responses import requests as openai_responses
from jaxserve.gateway.dialects.request_fields import json_object
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.errors import Problem
from jaxserve.gateway.http.headers import RawHeaders

DEFAULT_POLICY = TemplatePolicy()


@dataclass(frozen=True, slots=True)
class Way:
    """One dialect's functions."""

    dialect: Dialect
    """for errors, and for looking at its events."""
    chat_of: Callable[[Asked, TemplatePolicy], Chat]
    body_of: Callable[[Chat, Completion], dict[str, Any]]
    events: Callable[[Chat], EventWriter]
    count_body: Callable[[int], dict[str, Any]] | None = None
    """None where the dialect has no route that counts tokens."""


OPENAI_CHAT = Way(CHAT, openai_chat.chat_of, openai_chat.body_of, openai_chat.Events)
ANTHROPIC = Way(
    MESSAGES,
    anthropic_messages.chat_of,
    anthropic_answers.body_of,
    anthropic_answers.Events,
    anthropic_answers.count_body,
)
OPENAI_RESPONSES = Way(
    RESPONSES,
    openai_responses.chat_of,
    responses_answers.body_of,
    responses_answers.Events,
    responses_answers.count_body,
)
GOOGLE_GENERATE = Way(
    GOOGLE,
    google_generate.chat_of,
    google_answers.body_of,
    google_answers.Events,
    google_answers.count_body,
)


@dataclass(frozen=True, slots=True)
class Answerer:
    """The way back of one request."""

    way: Way
    chat: Chat
    counts: bool
    """whether the client asked for the number of tokens of its prompt, and nothing else."""

    def whole(self, completion: Completion) -> bytes:
        """The body of a whole answer."""
        return orjson.dumps(self.way.body_of(self.chat, completion))

    def events(self) -> EventWriter:
        """A stream, to be fed deltas; errors in it are the dialect's ``error_event``."""
        return self.way.events(self.chat)

    def counted(self, tokens: int) -> bytes:
        """The body of the answer to a request that counts."""
        assert self.way.count_body is not None
        return orjson.dumps(self.way.count_body(tokens))


_GENERATES = {
    "/v1/chat/completions": OPENAI_CHAT,
    "/v1/messages": ANTHROPIC,
    "/v1/responses": OPENAI_RESPONSES,
}
_COUNTS = {
    "/v1/messages/count_tokens": ANTHROPIC,
    "/v1/responses/input_tokens": OPENAI_RESPONSES,
}
_GOOGLE_PATH = re.compile(r"/(?:v1beta|v1)/models/([^:]+):(\w+)")
_GOOGLE_METHODS = ("generateContent", "streamGenerateContent", "countTokens")


def translates(path: str) -> bool:
    """Whether a ``POST`` to a path is a request to a model, or to count its tokens."""
    google = _GOOGLE_PATH.fullmatch(path)
    known = path in _GENERATES or path in _COUNTS
    return known or (google is not None and google[2] in _GOOGLE_METHODS)


def counts(path: str) -> bool:
    """Whether a request to a path that ``translates`` asks for the number of tokens only."""
    return path in _COUNTS or path.endswith(":countTokens")


def lists_models(path: str) -> bool:
    """Whether a ``GET`` of a path asks which models there are, or for one of them."""
    named = re.fullmatch(r"/(?:v1beta|v1)/models(?:/.+)?", path)
    return named is not None and not translates(path)


def translated(
    path: str,
    query: bytes,
    body: bytes,
    *,
    answer_id: str,
    unix_s: int,
    policy: TemplatePolicy = DEFAULT_POLICY,
) -> tuple[Chat, Answerer]:
    """A request in canonical form, and the way back.

    Args:
      path: one that ``translates``.
      query: of the address.
      body: as it was received.
      answer_id: for the answer; unique, of letters, digits, ``-`` and ``_``.
      unix_s: when the request came, s since 1970.
      policy: of the model's chat template.

    Raises:
      Problem: it is malformed, or asks for what engines lack; its form is ``dialect_of(path)``'s.
    """
    fields = json_object(body)
    google = _GOOGLE_PATH.fullmatch(path)
    only_counts = counts(path)
    if google is None:
        way = _COUNTS[path] if only_counts else _GENERATES[path]
        asked = Asked(fields, answer_id, unix_s, counts=only_counts)
    else:
        way, method = GOOGLE_GENERATE, google[2]
        streamed = method == "streamGenerateContent"
        if streamed and parse_qs(query).get(b"alt") != [b"sse"]:
            raise Problem(
                400, "not_supported", "streamGenerateContent answers in events only: add alt=sse"
            )
        asked = Asked(fields, answer_id, unix_s, unquote(google[1]), streamed, only_counts)
    chat = way.chat_of(asked, policy)
    return chat, Answerer(way, chat, only_counts)


def models_body(path: str, headers: RawHeaders, cards: Sequence[ModelCard]) -> bytes:
    """The answer to ``GET`` of ``/v1/models`` or ``/v1beta/models``, or of one model below it.

    Args:
      path: of the request.
      headers: of it; clients of all dialects use one path, with headers of their own.
      cards: of the models that are served.

    Raises:
      Problem: the path names no such model.
    """
    if path.startswith("/v1beta/") or names.first(headers, b"x-goog-api-key") is not None:
        several, one = google_models, google_model
    elif names.first(headers, b"anthropic-version") is not None:
        several, one = anthropic_models, anthropic_model
    else:
        several, one = openai_models, openai_model
    _, _, asked = path.partition("/models/")
    if not asked:
        return orjson.dumps(several(cards))
    for card in cards:
        if card.id == unquote(asked):
            return orjson.dumps(one(card))
    raise Problem(404, "unknown_model", "there is no such model; GET the list to see which are")
