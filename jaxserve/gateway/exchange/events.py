"""Server-sent events, looked at while they pass.

Whole events leave as they arrived, byte for byte; only the rest of an unfinished one waits for its
end, so that an error can follow at any time without being glued to half an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxserve.gateway.dialects.dialect import NO_USAGE, Dialect, Usage
from jaxserve.gateway.dialects.request_fields import object_in
from jaxserve.gateway.http.errors import Problem

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")


@dataclass(slots=True)
class EventStream:
    """One streamed answer."""

    dialect: Dialect
    drops_usage: bool
    """whether the event that only brings usage is kept from the client, who did not ask for it."""
    max_event_bytes: int
    """longer ones are no events: the rest of the stream passes unseen."""
    usage: Usage = NO_USAGE
    events: int = 0
    """that have passed."""
    failed: bool = False
    """whether the engine has said that it failed."""
    _rest: bytes = b""
    _unseen: bool = False

    def feed(self, chunk: bytes) -> tuple[bytes, int]:
        """What may leave now, and how many of its events bring output."""
        if self._unseen:
            return chunk, 0
        data = self._rest + chunk if self._rest else chunk
        end = _end_of_last_event(data)
        self._rest = data[end:]
        if len(self._rest) > self.max_event_bytes:
            self._unseen, self._rest = True, b""
            return data, 0
        return self._look_at(data[:end]) if end else (b"", 0)

    def end(self) -> bytes:
        """What is left when the engine has finished: an event whose blank line is missing."""
        rest, self._rest = self._rest, b""
        return rest

    def _look_at(self, data: bytes) -> tuple[bytes, int]:
        tokens, dropped = 0, []
        for start, stop in _events(data):
            self.events += 1
            event = _payload(data[start:stop])
            if event is None:
                continue
            if self.dialect.has_token(event):
                tokens += 1
            if self.dialect.is_error(event):
                self.failed = True
            usage = self.dialect.usage(event)
            if usage is not NO_USAGE:
                self.usage = self.usage.updated(usage)
                if self.drops_usage and event.get("choices") == []:
                    dropped.append((start, stop))
        for start, stop in reversed(dropped):
            self.events -= 1
            data = data[:start] + data[stop:]
        return data, tokens


class EventReader:
    """A streamed answer of which no byte passes as it is."""

    def __init__(self, max_event_bytes: int) -> None:
        """Args: the largest event there may be."""
        self._most = max_event_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any] | None]:
        """The events that are whole now; None is ``[DONE]``. What is no JSON object is left out.

        Raises:
          Problem: an event is too large.
        """
        data = self._rest + chunk
        end = _end_of_last_event(data)
        self._rest = data[end:]
        if len(self._rest) > self._most:
            raise Problem(502, "answer_too_large", "an event of the engine is too large")
        found: list[dict[str, Any] | None] = []
        for start, stop in _events(data[:end]):
            event = data[start:stop]
            if (payload := _payload(event)) is not None:
                found.append(payload)
            elif event.strip() == b"data: [DONE]":
                found.append(None)
        return found


def _end_of_last_event(data: bytes) -> int:
    """Where the last whole event ends, 0 if there is none."""
    end = data.rfind(b"\n\n") + 2
    end = 0 if end == 1 else end
    if b"\r" in data:
        for found in _BLANK_LINE.finditer(data, end):
            end = found.end()
    return end


def _events(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every event of some whole ones."""
    start = 0
    if b"\r" in data:
        for found in _BLANK_LINE.finditer(data):
            yield start, found.end()
            start = found.end()
    while stop := data.find(b"\n\n", start) + 2:
        if stop == 1:
            return
        yield start, stop
        start = stop


def _payload(event: bytes) -> dict[str, Any] | None:
    """The JSON object of an event's ``data`` lines, None for anything else."""
    text = event[6:]
    if not event.startswith(b"data: {") or b"\n" in text[:-2]:
        lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
        text = b"\n".join(lines)
    return object_in(text)
