"""An engine's chat answer, whole or in events, read into the canonical form.

vLLM calls reasoning ``reasoning``, SGLang ``reasoning_content``; the stop sequence is in
``stop_reason`` or ``matched_stop``. An answer of another form is an error of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from jaxserve.gateway.dialects.dialect import DELTA_OUTPUT, GIVEN_UP, openai_failed
from jaxserve.gateway.dialects.request_fields import parse_object
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.events import error_message


class EngineReader:
    """Reads the events of a streamed answer, or the body of a whole answer.

    A call starts once, before its arguments, and always has an id.
    """

    def __init__(self, answer_id: str) -> None:
        """Args: id of the answer, for ids of calls that the engine left without one."""
        self._answer_id = answer_id
        self._calls: dict[int, _Calls] = {}
        self._finishes: dict[int, str] = {}

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
        if openai_failed(answer):
            raise RequestError(502, "engine_error", error_message(answer) or "the engine failed")
        # Routers send further events, of cost or usage alone.
        for choice in answer.get("choices") or ():
            yield from self._choice(choice, choice.get(name) or {}, name == "message")
        usage = answer.get("usage")
        if usage is not None:
            yield _counts(usage)

    def _choice(
        self, choice: Mapping[str, Any], message: Mapping[str, Any], is_whole: bool
    ) -> Iterator[Delta]:
        at = _whole(choice.get("index", 0))
        ended = self._finishes.get(at)
        if ended is not None and any(message.get(name) for name in DELTA_OUTPUT):
            raise ValueError
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            yield Reasoning(at, _text(reasoning))
        if message.get("content"):
            yield Text(at, _text(message["content"]))
        if message.get("refusal"):
            yield Refusal(at, _text(message["refusal"]))
        calls = self._calls.setdefault(at, _Calls())
        for call in message.get("tool_calls") or ():
            # In a whole answer every entry is a call, whatever its index says.
            yield from self._call(at, calls, None if is_whole else calls.known(call), call)
        if logprobs := (choice.get("logprobs") or {}).get("content"):
            yield Logprobs(at, tuple(logprobs))
        reason = choice.get("finish_reason")
        if reason in GIVEN_UP:
            raise RequestError(502, "engine_error", "the engine gave up the answer before its end")
        # Some engines send "" in place of null, and routers repeat the reason beside the usage.
        if reason and reason != ended:
            if ended is not None:
                raise ValueError
            self._finishes[at] = _text(reason)
            stop = choice.get("stop_reason", choice.get("matched_stop"))
            yield Finish(at, _text(reason), stop if isinstance(stop, str) else None)

    def _call(
        self, at: int, calls: _Calls, number: int | None, call: Mapping[str, Any]
    ) -> Iterator[Delta]:
        """Deltas of an entry.

        Args:
          at: index of the choice.
          calls: calls of the choice so far.
          number: number of the call that the entry continues; None for another call.
          call: the entry.
        """
        function = call.get("function") or {}
        if number is None:
            name = _text(function["name"])
            number = calls.begin(call, name)
            made = f"call_{self._answer_id}_{at}_{number}"
            yield CallStart(at, number, _text(call.get("id") or made), name)
        if function.get("arguments"):
            arguments = _text(function["arguments"])
            calls.started[number].arguments.append(arguments)
            yield Arguments(at, number, arguments)


@dataclass(slots=True)
class _StartedCall:
    id: str | None
    name: str
    arguments: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments so far are a JSON object."""
        return parse_object("".join(self.arguments).encode()) is not None


@dataclass(slots=True)
class _Calls:
    """Tool calls of a choice, in the order in which they began.

    Engines are known to give every call the index 0, or no index: a call is told from another by
    its id and name as well.
    """

    started: list[_StartedCall] = field(default_factory=list)
    by_index: dict[int, int] = field(default_factory=dict)
    """number of the latest call with an index."""

    def begin(self, call: Mapping[str, Any], name: str) -> int:
        """Adds a call; returns its number."""
        number = len(self.started)
        self.started.append(_StartedCall(call.get("id") or None, name))
        if isinstance(index := call.get("index"), int):
            self.by_index[index] = number
        return number

    def known(self, call: Mapping[str, Any]) -> int | None:
        """Number of the call that an entry of a stream continues; None for another call."""
        index, own_id = call.get("index"), call.get("id") or None
        name = (call.get("function") or {}).get("name") or None
        if isinstance(index, int) and index >= 0:
            number = self.by_index.get(index)
        else:
            same = (n for n, each in enumerate(self.started) if own_id and each.id == own_id)
            number = next(same, len(self.started) - 1 if self.started else None)
        if number is None or name is None:
            return number
        begun = self.started[number]
        if own_id is not None and begun.id is not None:
            return number if own_id == begun.id else None
        # Without ids: some engines repeat the name in every event of a call.
        return None if name != begun.name or begun.is_complete else number


def engine_error(status: int, body: bytes, engine: str) -> RequestError:
    """An engine's error response as an error for the client.

    Args:
      status: status of the response, 400 or above.
      body: body of the response.
      engine: name of the engine, for a body without a message.
    """
    found = parse_object(body) or {}
    reason = "engine_429" if status == 429 else f"engine_{status // 100}xx"
    message = error_message(found) or f"engine {engine} answered with status {status}"
    return RequestError(status, reason, message, 1 if status == 429 else None)


def _counts(usage: Mapping[str, Any]) -> Counts:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    read = usage.get("prompt_tokens_details") or {}
    written = usage.get("completion_tokens_details") or {}
    reasoning = written.get("reasoning_tokens", usage.get("reasoning_tokens"))
    counts = (prompt, output, read.get("cached_tokens"), reasoning)
    return Counts(*(None if count is None else _whole(count) for count in counts))


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
