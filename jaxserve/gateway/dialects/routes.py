"""Paths of the dialects, and the translation of a request and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from jaxserve.gateway.dialects.anthropic_messages import MESSAGES
from jaxserve.gateway.dialects.canonical import Chat, Completion, DialectRequest
from jaxserve.gateway.dialects.deltas import EventWriter
from jaxserve.gateway.dialects.dialect import Dialect, ModelCard, Translation
from jaxserve.gateway.dialects.google_generate import GOOGLE
from jaxserve.gateway.dialects.openai_chat import CHAT, COMPLETIONS
from jaxserve.gateway.dialects.openai_responses import RESPONSES
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.headers import RawHeaders, first_value

INFERENCE: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
"""Dialects that engines speak themselves, by path."""
_COUNTS = {
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses/input_tokens": RESPONSES,
}
_GOOGLE_PATH = re.compile(r"/(?:v1beta|v1)/models/([^:]+):(\w+)")
_GOOGLE_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_DEFAULT_POLICY = TemplatePolicy()


def dialect_of(path: str) -> Dialect:
    """Dialect of a path, known or not: errors take its form."""
    if path.startswith("/v1beta/") or path.endswith(tuple(f":{one}" for one in _GOOGLE_METHODS)):
        return GOOGLE
    for beginning, dialect in (("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)):
        if path.startswith(beginning):
            return dialect
    return INFERENCE.get(path, CHAT)


def translates(path: str) -> bool:
    """Whether a ``POST`` to a path asks a model for output, or for a count of its tokens, in a
    dialect that is translated."""
    google = _GOOGLE_PATH.fullmatch(path)
    if google is not None:
        return google[2] in _GOOGLE_METHODS
    known = INFERENCE.get(path) or _COUNTS.get(path)
    return known is not None and known.translation is not None


def counts_tokens(path: str) -> bool:
    """Whether a request to a path that ``translates`` asks only for the number of tokens."""
    return path in _COUNTS or path.endswith(":countTokens")


def lists_models(path: str) -> bool:
    """Whether a ``GET`` of a path asks for the list of models, or for one of them."""
    named = re.fullmatch(r"/(?:v1beta|v1)/models(?:/.+)?", path)
    return named is not None and not translates(path)


@dataclass(frozen=True, slots=True)
class AnswerTranslator:
    """Translates the answer to one request into the dialect of its client."""

    translation: Translation
    """functions of the dialect."""
    chat: Chat
    """request in canonical form."""

    def whole(self, completion: Completion) -> bytes:
        """Body of a whole answer."""
        return orjson.dumps(self.translation.answer_body(self.chat, completion))

    def events(self) -> EventWriter:
        """Writer of a stream of deltas; errors in it are the dialect's ``error_event``."""
        return self.translation.event_writer(self.chat)

    def counted(self, tokens: int) -> bytes:
        """Body of the answer to a request that counts tokens."""
        assert self.translation.count_body is not None
        return orjson.dumps(self.translation.count_body(tokens))


def translate(
    path: str,
    query: bytes,
    fields: Mapping[str, Any],
    *,
    answer_id: str,
    unix_s: int,
    policy: TemplatePolicy = _DEFAULT_POLICY,
) -> tuple[Chat, AnswerTranslator]:
    """Reads a request into the canonical form.

    Args:
      path: path that ``translates``.
      query: query string of the request.
      fields: body of the request, parsed.
      answer_id: unique id of the answer, of letters, digits, ``-`` and ``_``.
      unix_s: arrival of the request, s since 1970.
      policy: policy of the model's chat template.

    Returns:
      the request, and the translator of its answer.

    Raises:
      RequestError: the request is malformed, or asks for something that engines lack; its form is
        that of ``dialect_of(path)``.
    """
    translation = dialect_of(path).translation
    assert translation is not None
    counts, google = counts_tokens(path), _GOOGLE_PATH.fullmatch(path)
    request = DialectRequest(fields, answer_id, unix_s, counts=counts)
    if google is not None:
        streamed = google[2] == "streamGenerateContent"
        if streamed and parse_qs(query).get(b"alt") != [b"sse"]:
            raise RequestError(
                400, "not_supported", "streamGenerateContent answers in events only: add alt=sse"
            )
        model = unquote(google[1])
        request = DialectRequest(fields, answer_id, unix_s, model, streamed, counts)
    chat = translation.to_chat(request, policy)
    return chat, AnswerTranslator(translation, chat)


def models_response(path: str, headers: RawHeaders, cards: Sequence[ModelCard]) -> bytes:
    """Body of the answer to ``GET`` of ``/v1/models`` or ``/v1beta/models``, or of a model in it.

    Args:
      path: path of the request.
      headers: headers of the request; clients of all dialects share a path, not their headers.
      cards: served models.

    Raises:
      RequestError: the path names an unknown model.
    """
    if path.startswith("/v1beta/") or first_value(headers, b"x-goog-api-key") is not None:
        dialect = GOOGLE
    elif first_value(headers, b"anthropic-version") is not None:
        dialect = MESSAGES
    else:
        dialect = CHAT
    assert dialect.translation is not None
    _, _, name = path.partition("/models/")
    if not name:
        return orjson.dumps(dialect.translation.models(cards))
    for card in cards:
        if card.id == unquote(name):
            return orjson.dumps(dialect.translation.model(card))
    raise RequestError(
        404, "unknown_model", "there is no such model; GET the list to see which are"
    )
