"""What differs between the interfaces that engines offer: errors, tokens in events, usage.

Pure functions of parsed JSON. An event is one ``data:`` of a stream, an answer a whole body; a
stranger to the dialect is neither a token nor an error, and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from jaxserve.gateway.dialects.request_fields import count, objects
from jaxserve.gateway.http.errors import Problem


class Usage(NamedTuple):
    """Tokens that an engine says it counted; None where it does not say."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    """of those of the prompt, found in a prefix cache."""

    def updated(self, later: Usage) -> Usage:
        """With what a later event says."""
        return Usage(
            self.prompt if later.prompt is None else later.prompt,
            self.output if later.output is None else later.output,
            self.cached if later.cached is None else later.cached,
        )


NO_USAGE = Usage()


@dataclass(frozen=True)
class Dialect:
    """One interface."""

    name: str
    error: Callable[[Problem], Mapping[str, Any]]
    """body of an error."""
    error_event: Callable[[Problem, int], bytes]
    """the same inside a stream, after a number of events."""
    has_token: Callable[[Mapping[str, Any]], bool]
    """whether an event brings output."""
    is_error: Callable[[Mapping[str, Any]], bool]
    """whether an event says that the engine failed."""
    usage: Callable[[Mapping[str, Any]], Usage]
    """of an event or a whole answer."""
    asks_for_usage: bool = False
    """whether a stream tells its usage only when ``stream_options`` ask for it."""


_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    **_OPENAI_TYPES,
    403: "permission_error",
    413: "request_too_large",
    504: "timeout_error",
}


_GOOGLE_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def named_event(name: str, content: Mapping[str, Any]) -> bytes:
    """A server-sent event of the dialects whose events have names."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(content))


def _client_or(server: str, types: Mapping[int, str], status: int) -> str:
    return types.get(status, "invalid_request_error" if status < 500 else server)


def _openai_error(problem: Problem) -> Mapping[str, Any]:
    kind = _client_or("server_error", _OPENAI_TYPES, problem.status)
    return {"error": {"message": str(problem), "type": kind, "param": None, "code": problem.reason}}


def _anthropic_error(problem: Problem) -> Mapping[str, Any]:
    kind = _client_or("api_error", _ANTHROPIC_TYPES, problem.status)
    return {"type": "error", "error": {"type": kind, "message": str(problem)}}


def _google_error(problem: Problem) -> Mapping[str, Any]:
    rest = "INVALID_ARGUMENT" if problem.status < 500 else "INTERNAL"
    status = _GOOGLE_STATUSES.get(problem.status, rest)
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": problem.reason.upper(),
        "domain": "jaxserve",
    }
    error = {"code": problem.status, "message": str(problem), "status": status}
    return {"error": {**error, "details": [reason]}}


def _openai_event(problem: Problem, events: int) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(_openai_error(problem))


def _anthropic_event(problem: Problem, events: int) -> bytes:
    return named_event("error", _anthropic_error(problem))


def _responses_event(problem: Problem, events: int) -> bytes:
    body = {
        "type": "error",
        "code": problem.reason,
        "message": str(problem),
        "param": None,
        "sequence_number": events,
    }
    return named_event("error", body)


def _google_event(problem: Problem, events: int) -> bytes:
    return b"data: %b\r\n\r\n" % orjson.dumps(_google_error(problem))


def _choices(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    return objects(event.get("choices"))


_DELTA_OUTPUT = (
    "content",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function_call",
    "refusal",
)


def _chat_token(event: Mapping[str, Any]) -> bool:
    for choice in _choices(event):
        delta = choice.get("delta")
        if choice.get("token_ids"):
            return True
        if isinstance(delta, dict) and (
            any(delta.get(name) for name in _DELTA_OUTPUT)
            or (not delta.get("role") and _held_back(delta.get("content"), choice))
        ):
            return True
    return False


def _completions_token(event: Mapping[str, Any]) -> bool:
    return any(
        choice.get("text") or choice.get("token_ids") or _held_back(choice.get("text"), choice)
        for choice in _choices(event)
    )


def _held_back(text: Any, choice: Mapping[str, Any]) -> bool:
    """A token that is not the whole of a character yet: engines send it with an empty text."""
    return text == "" and choice.get("finish_reason") is None


def _messages_token(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "content_block_delta"


def _responses_token(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    return isinstance(kind, str) and kind.endswith(".delta")


def _google_token(event: Mapping[str, Any]) -> bool:
    for candidate in objects(event.get("candidates")):
        content = candidate.get("content")
        if isinstance(content, dict) and content.get("parts"):
            return True
    return False


def _google_usage(event: Mapping[str, Any]) -> Usage:
    usage = event.get("usageMetadata")
    if not isinstance(usage, dict):
        return NO_USAGE
    prompt, total = _count(usage, "promptTokenCount"), _count(usage, "totalTokenCount")
    # The output is told in several counts, of which thoughts are one.
    if prompt is None or total is None or total < prompt:
        return Usage(prompt)
    return Usage(prompt, total - prompt)


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = count(usage.get(name))
        if value is not None:
            return value
    return None


def _usage_at(event: Mapping[str, Any], inside: str | None = None) -> Usage:
    """Usage at the top of an event, or inside one of its objects."""
    usage = event.get("usage")
    if usage is None and inside is not None:
        holder = event.get(inside)
        usage = holder.get("usage") if isinstance(holder, dict) else None
    if not isinstance(usage, dict):
        return NO_USAGE
    return Usage(
        _count(usage, "prompt_tokens", "input_tokens"),
        _count(usage, "completion_tokens", "output_tokens"),
        _cached(usage),
    )


def _cached(usage: Mapping[str, Any]) -> int | None:
    """Of OpenAI's chat and completions, and its responses."""
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            return _count(details, "cached_tokens")
    return None


CHAT = Dialect(
    name="chat",
    error=_openai_error,
    error_event=_openai_event,
    has_token=_chat_token,
    is_error=lambda event: event.get("error") is not None,
    usage=_usage_at,
    asks_for_usage=True,
)
COMPLETIONS = Dialect(
    name="completions",
    error=_openai_error,
    error_event=_openai_event,
    has_token=_completions_token,
    is_error=lambda event: event.get("error") is not None,
    usage=_usage_at,
    asks_for_usage=True,
)
MESSAGES = Dialect(
    name="messages",
    error=_anthropic_error,
    error_event=_anthropic_event,
    has_token=_messages_token,
    is_error=lambda event: event.get("type") == "error",
    usage=lambda event: _usage_at(event, "message"),
)
RESPONSES = Dialect(
    name="responses",
    error=_openai_error,
    error_event=_responses_event,
    has_token=_responses_token,
    is_error=lambda event: event.get("type") in ("error", "response.failed"),
    usage=lambda event: _usage_at(event, "response"),
)

GOOGLE = Dialect(
    name="google",
    error=_google_error,
    error_event=_google_event,
    has_token=_google_token,
    is_error=lambda event: event.get("error") is not None,
    usage=_google_usage,
)

INFERENCE: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
"""Dialects that engines speak themselves, by path."""
_GOOGLE_METHODS = (":generateContent", ":streamGenerateContent", ":countTokens")


def dialect_of(path: str) -> Dialect:
    """In whose form an error on a path is."""
    if path.startswith("/v1beta/") or path.endswith(_GOOGLE_METHODS):
        return GOOGLE
    for beginning, dialect in (("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)):
        if path.startswith(beginning):
            return dialect
    return INFERENCE.get(path, CHAT)
