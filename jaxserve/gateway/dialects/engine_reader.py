"""An engine's chat answer, whole or in events, read into the canonical form.

vLLM calls reasoning ``reasoning``, SGLang ``reasoning_content``; the stop sequence is in
``stop_reason`` or ``matched_stop``. An answer of another form is an error of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxserve.gateway.dialects.canonical import Completion, Counts
from jaxserve.gateway.dialects.deltas import (
    Arguments,
    CallStart,
    Delta,
    Finish,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    fold,
)
from jaxserve.gateway.dialects.request_fields import parse_object
from jaxserve.gateway.http.errors import RequestError

_NO_END = ("abort", "error")
"""Finish reasons of an answer that the engine aborted."""


class EngineReader:
    """Reads the events of a streamed answer, or the body of a whole answer.

    A call starts once, before its arguments, and always has an id.
    """

    def __init__(self, answer_id: str) -> None:
        """Args: id of the answer, for ids of calls that the engine left without one."""
        self._answer_id = answer_id
        self._started: set[tuple[int, int]] = set()

    def feed(self, event: Mapping[str, Any]) -> list[Delta]:
        """Deltas of an event.

        Raises:
          RequestError: the event reports a failure of the engine, or is malformed.
        """
        try:
            return list(self._read(event, "delta"))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _garbage() from None

    def whole(self, answer: Mapping[str, Any]) -> Completion:
        """Completion of a whole answer.

        Raises:
          RequestError: the answer reports a failure of the engine, or is malformed.
        """
        try:
            completion = fold(self._read(answer, "message"))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _garbage() from None
        if not completion.choices:
            raise _garbage()
        return completion

    def _read(self, answer: Mapping[str, Any], name: str) -> Iterator[Delta]:
        error = answer.get("error")
        if error is not None:
            raise RequestError(502, "engine_error", _message(error) or "the engine failed")
        for choice in answer["choices"]:
            yield from self._choice(choice, choice.get(name) or {})
        usage = answer.get("usage")
        if usage is not None:
            yield _counts(usage)

    def _choice(self, choice: Mapping[str, Any], message: Mapping[str, Any]) -> Iterator[Delta]:
        at = _whole(choice.get("index", 0))
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            yield Reasoning(at, _text(reasoning))
        if message.get("content"):
            yield Text(at, _text(message["content"]))
        if message.get("refusal"):
            yield Refusal(at, _text(message["refusal"]))
        for number, call in enumerate(message.get("tool_calls") or ()):
            yield from self._call(at, _whole(call.get("index", number)), call)
        if logprobs := (choice.get("logprobs") or {}).get("content"):
            yield Logprobs(at, tuple(logprobs))
        reason = choice.get("finish_reason")
        if reason in _NO_END:
            raise RequestError(502, "engine_error", "the engine gave up the answer before its end")
        if reason is not None:
            stop = choice.get("stop_reason", choice.get("matched_stop"))
            yield Finish(at, _text(reason), stop if isinstance(stop, str) else None)

    def _call(self, at: int, number: int, call: Mapping[str, Any]) -> Iterator[Delta]:
        function = call.get("function") or {}
        if (at, number) not in self._started:
            name = _text(function["name"])
            made = f"call_{self._answer_id}_{at}_{number}"
            self._started.add((at, number))
            yield CallStart(at, number, _text(call.get("id") or made), name)
        if function.get("arguments"):
            yield Arguments(at, number, _text(function["arguments"]))


def engine_error(status: int, body: bytes, engine: str) -> RequestError:
    """An engine's error response as an error for the client.

    Args:
      status: status of the response, 400 or above.
      body: body of the response.
      engine: name of the engine, for a body without a message.
    """
    found = parse_object(body) or {}
    # SGLang has its message at the top, vLLM inside an object.
    error = found.get("error", found)
    reason = "engine_429" if status == 429 else f"engine_{status // 100}xx"
    message = _message(error) or f"engine {engine} answered with status {status}"
    return RequestError(status, reason, message, 1 if status == 429 else None)


def _counts(usage: Mapping[str, Any]) -> Counts:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    read = usage.get("prompt_tokens_details") or {}
    written = usage.get("completion_tokens_details") or {}
    reasoning = written.get("reasoning_tokens", usage.get("reasoning_tokens"))
    counts = (prompt, output, read.get("cached_tokens"), reasoning)
    return Counts(*(None if count is None else _whole(count) for count in counts))


def _message(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _garbage() -> RequestError:
    return RequestError(
        502, "engine_garbage", "the engine's answer has not the shape of a chat answer"
    )
