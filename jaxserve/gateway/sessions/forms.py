"""How an agent's request becomes OpenAI chat, and the engine's chat answer becomes the agent's.

This is the one place where a dialect is plugged in: three pure functions each, in ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

Json = Mapping[str, Any]


class EventWriter(Protocol):
    """Makes the events of one stream."""

    def feed(self, event: Json) -> bytes:
        """What the agent gets for an event of the chat stream; empty where it gets nothing."""
        ...

    def end(self) -> bytes:
        """What comes last."""
        ...


@dataclass(frozen=True)
class Form:
    """One dialect."""

    chat: Callable[[Json], Json]
    """a request as a chat request; raises ``Problem`` for what chat cannot say."""
    answer: Callable[[Json, Json], Json]
    """a chat answer as an answer to the chat request."""
    events: Callable[[Json], EventWriter]
    """the writer of a stream that answers the chat request."""
    passes_refusals: bool = False
    """whether an engine's errors are in this dialect already."""


class _ChatEvents:
    """Passes events on, without those that only the gateway asked for."""

    def __init__(self, chat: Json) -> None:
        options = chat.get("stream_options")
        self._usage = isinstance(options, dict) and options.get("include_usage") is True

    def feed(self, event: Json) -> bytes:
        if event.get("choices") == [] and event.get("error") is None and not self._usage:
            return b""
        return b"data: %b\n\n" % orjson.dumps(event)

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


FORMS: Mapping[str, Form] = {
    "chat": Form(
        chat=lambda body: body,
        answer=lambda answer, chat: answer,
        events=_ChatEvents,
        passes_refusals=True,
    ),
}
"""By the name of the dialect. Others are refused in a session."""
