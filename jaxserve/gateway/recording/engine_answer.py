"""An engine's answer as it arrives: deltas for the agent, tokens and a body for the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice
from jaxserve.gateway.dialects.deltas import CompletionAccumulator, Delta
from jaxserve.gateway.dialects.engine_reader import EngineReader
from jaxserve.gateway.dialects.request_fields import assistant_message, function_call
from jaxserve.gateway.recording.records import RecordedChoice
from jaxserve.gateway.recording.token_ids import TokenCollector, without_tokens

_HEAD = ("id", "created", "model", "system_fingerprint")


class EngineAnswer:
    """One answer, whole or in events."""

    def __init__(self, kind: str, answer_id: str) -> None:
        """Args: kind of the engine, and id of the answer."""
        self._reader = EngineReader(answer_id)
        self._tokens = TokenCollector(kind)
        self._accumulator = CompletionAccumulator()
        self._whole: Completion | None = None
        self._body: dict[str, Any] = {}

    def event(self, event: Mapping[str, Any]) -> Sequence[Delta]:
        """Adds an event; returns its deltas.

        Raises:
          RequestError: the event reports a failure of the engine, or is malformed.
        """
        deltas = self._reader.feed(event)
        self._tokens.add(event)
        self._accumulator.add(deltas)
        for name in (*_HEAD, "usage"):
            if event.get(name) is not None:
                self._body[name] = event[name]
        return deltas

    def whole(self, answer: Mapping[str, Any]) -> Completion:
        """Adds a whole answer; returns its completion.

        Raises:
          RequestError: the answer reports a failure of the engine, or is malformed.
        """
        self._whole = self._reader.whole(answer)
        self._tokens.add(answer)
        self._body = without_tokens(answer)
        return self._whole

    @property
    def begun(self) -> bool:
        """Whether any part of the answer has arrived."""
        return bool(self._body)

    @property
    def finished(self) -> bool:
        """Whether every choice has a finish reason."""
        choices = self._completion().choices
        return bool(choices) and all(choice.finish is not None for choice in choices)

    @property
    def prompt_ids(self) -> np.ndarray | None:
        """Token ids of the prompt, int32 ``[P]``; None where the engine sent none."""
        return self._tokens.prompt_ids

    @property
    def choices(self) -> tuple[RecordedChoice, ...]:
        """Choices for the record."""
        found = []
        for choice in self._completion().choices:
            ids, logprobs = self._tokens.of(choice.index)
            message = _message(choice)
            texts = None if ids is None else self._tokens.texts(choice.index)
            found.append(RecordedChoice(choice.index, message, choice.finish, ids, logprobs, texts))
        return tuple(found)

    @property
    def body(self) -> bytes:
        """Body in OpenAI chat format: the engine's own, or one assembled from its events."""
        if "choices" in self._body:
            return orjson.dumps(self._body)
        choices = [
            {
                "index": choice.index,
                "message": _message(choice),
                "finish_reason": choice.finish,
                "stop_reason": choice.stop,
            }
            for choice in self._completion().choices
        ]
        return orjson.dumps({**self._body, "object": "chat.completion", "choices": choices})

    def _completion(self) -> Completion:
        return self._accumulator.completion if self._whole is None else self._whole


def _message(choice: CompletionChoice) -> dict[str, Any]:
    """Message of a choice, as the agent's next request has it."""
    calls = [function_call(call.id, call.name, call.arguments) for call in choice.calls]
    return assistant_message(choice.text, choice.reasoning, calls, choice.refusal)
