"""The streamed answer of an engine, read while its events pass to the client.

Complete events pass byte for byte. An incomplete one waits for its end, so that an error event can
follow at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jaxserve.gateway.dialects.dialect import GIVEN_UP, NO_USAGE, Dialect, Usage
from jaxserve.gateway.http.events import EventReader, StreamEvent


@dataclass(slots=True)
class EventStream:
    """Streamed answer whose events pass to the client."""

    dialect: Dialect
    """dialect of the events."""
    drops_usage: bool
    """whether to drop the event with nothing but usage, which the client did not ask for."""
    max_event_bytes: int
    """size up to which events are parsed; after a larger one the rest of the stream passes
    unparsed."""
    usage: Usage = NO_USAGE
    """usage in the events so far."""
    events: int = 0
    """events with data that have passed."""
    is_done: bool = False
    """whether the engine has sent all of a whole answer, ``[DONE]`` included."""
    _reason: str = ""
    _finishes: dict[int, str | None] = field(default_factory=dict)
    """reason for which each choice ended; None while it goes on."""
    _reader: EventReader = field(default_factory=EventReader)
    _unparsed: bool = False

    def feed(self, chunk: bytes) -> tuple[bytes, int]:
        """Adds a chunk; returns the bytes that may pass now, and their number of output events."""
        if self._unparsed:
            return chunk, 0
        data, tokens = self._pass(self._reader.feed(chunk))
        if len(self._reader.rest) > self.max_event_bytes:
            self._unparsed = True
            data += self._reader.rest
        return data, tokens

    def end(self) -> tuple[bytes, int]:
        """The event that the engine left without its blank line, as ``feed`` returns events."""
        return (b"", 0) if self._unparsed else self._pass(self._reader.end())

    @property
    def failure(self) -> str:
        """Reason for which the answer is not whole; empty for a whole one, and for one that was not
        parsed to its end."""
        if self._reason or self._unparsed:
            return self._reason
        ended = self._finishes and all(self._finishes.values())
        return "" if ended else "engine_broke"

    def _pass(self, events: Iterable[StreamEvent]) -> tuple[bytes, int]:
        tokens, passed = 0, []
        for event in events:
            content = event.content
            if content is not None:
                tokens += self.dialect.has_token(content)
            usage = self._note(event)
            if (
                self.drops_usage
                and usage is not NO_USAGE
                and content is not None
                and content.get("choices") == []
            ):
                continue
            self.events += bool(event.data)
            passed.append(event.raw)
        return b"".join(passed), tokens

    def _note(self, event: StreamEvent) -> Usage:
        """Notes what an event says of the answer; returns the event's usage."""
        if event.is_done:
            self.is_done = self.failure == ""
        if event.failure is not None and not self.is_done:
            self._reason = self._reason or event.failure.reason
        if event.content is None:
            return NO_USAGE
        if self.dialect.is_error(event.content):
            self._reason = self._reason or "engine_error"
        for choice, reason in self.dialect.finishes(event.content).items():
            ended = self._finishes.get(choice)
            if reason in GIVEN_UP:
                self._reason = self._reason or "engine_error"
            elif ended and reason and reason != ended:
                self._reason = self._reason or "engine_garbage"
            self._finishes[choice] = ended or reason
        usage = self.dialect.usage(event.content)
        self.usage = self.usage if usage is NO_USAGE else self.usage.updated(usage)
        return usage
