"""What an engine has answered so far, for the agent and for the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from jaxserve.gateway.dialects import canonical
from jaxserve.gateway.dialects.deltas import Delta, Folding
from jaxserve.gateway.dialects.engine_reader import EngineReader
from jaxserve.gateway.dialects.request_fields import assistant, function_call
from jaxserve.gateway.recording.records import Choice
from jaxserve.gateway.recording.token_ids import Tokens, bare

_HEAD = ("id", "created", "model", "system_fingerprint")


class Answered:
    """One answer, whole or in events."""

    def __init__(self, kind: str, answer_id: str) -> None:
        """Args: kind of the engine, and the id of the answer."""
        self._reader = EngineReader(answer_id)
        self._tokens = Tokens(kind)
        self._folding = Folding()
        self._whole: canonical.Completion | None = None
        self._answer: dict[str, Any] = {}

    def event(self, event: Mapping[str, Any]) -> Sequence[Delta]:
        """One more event, as deltas.

        Raises:
          Problem: it says that the engine failed, or has not the shape of one.
        """
        deltas = self._reader.feed(event)
        self._tokens.add(event)
        self._folding.add(deltas)
        for name in (*_HEAD, "usage"):
            if event.get(name) is not None:
                self._answer[name] = event[name]
        return deltas

    def whole(self, answer: Mapping[str, Any]) -> canonical.Completion:
        """All of it.

        Raises:
          Problem: it is none.
        """
        self._whole = self._reader.whole(answer)
        self._tokens.add(answer)
        self._answer = bare(answer)
        return self._whole

    @property
    def begun(self) -> bool:
        """Whether anything of it has come."""
        return bool(self._answer)

    @property
    def finished(self) -> bool:
        """Whether every choice has said why it ended."""
        choices = self._folded().choices
        return bool(choices) and all(choice.finish is not None for choice in choices)

    @property
    def prompt_ids(self) -> np.ndarray | None:
        """Of the prompt, int32 ``[P]``; None where the engine did not tell it."""
        return self._tokens.prompt_ids

    @property
    def choices(self) -> tuple[Choice, ...]:
        """As they are recorded."""
        found = []
        for choice in self._folded().choices:
            ids, logprobs = self._tokens.of(choice.index)
            message = _message(choice)
            texts = None if ids is None else self._tokens.texts(choice.index)
            found.append(Choice(choice.index, message, choice.finish, ids, logprobs, texts))
        return tuple(found)

    @property
    def body(self) -> bytes:
        """As OpenAI chat: the engine's own where it came whole, else put together."""
        if "choices" in self._answer:
            return orjson.dumps(self._answer)
        choices = [
            {
                "index": choice.index,
                "message": _message(choice),
                "finish_reason": choice.finish,
                "stop_reason": choice.stop,
            }
            for choice in self._folded().choices
        ]
        return orjson.dumps({**self._answer, "object": "chat.completion", "choices": choices})

    def _folded(self) -> canonical.Completion:
        return self._folding.completion if self._whole is None else self._whole


def _message(choice: canonical.Choice) -> dict[str, Any]:
    """What the model said, as its dialect brings it back in the next request."""
    calls = [function_call(call.id, call.name, call.arguments) for call in choice.calls]
    return assistant(choice.text, choice.reasoning, calls, choice.refusal)
