"""Server-sent events, parsed while they pass.

Complete events pass byte for byte. An incomplete one waits for its end, so that an error event can
follow at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxserve.gateway.dialects.dialect import NO_USAGE, Dialect, Usage
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import parse_object

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")


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
    """events that have passed."""
    failed: bool = False
    """whether an event reported a failure of the engine."""
    _rest: bytes = b""
    _unparsed: bool = False

    def feed(self, chunk: bytes) -> tuple[bytes, int]:
        """Adds a chunk; returns the bytes that may pass now, and their number of output events."""
        if self._unparsed:
            return chunk, 0
        data = self._rest + chunk if self._rest else chunk
        end = _end_of_last_event(data)
        self._rest = data[end:]
        if len(self._rest) > self.max_event_bytes:
            self._unparsed, self._rest = True, b""
            return data, 0
        return self._parse(data[:end]) if end else (b"", 0)

    def end(self) -> bytes:
        """Rest at the end of the stream: an event without its blank line."""
        rest, self._rest = self._rest, b""
        return rest

    def _parse(self, data: bytes) -> tuple[bytes, int]:
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
    """Reads the events of a streamed answer that is translated."""

    def __init__(self, max_event_bytes: int) -> None:
        """Args: size of the largest event, bytes."""
        self._max_bytes = max_event_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> list[dict[str, Any] | None]:
        """Adds a chunk; returns the events that are complete now.

        Returns:
          JSON objects, and None for ``[DONE]``; other events are left out.

        Raises:
          RequestError: an event is too large.
        """
        data = self._rest + chunk
        end = _end_of_last_event(data)
        self._rest = data[end:]
        if len(self._rest) > self._max_bytes:
            raise RequestError(502, "answer_too_large", "an event of the engine is too large")
        found: list[dict[str, Any] | None] = []
        for start, stop in _events(data[:end]):
            event = data[start:stop]
            if (payload := _payload(event)) is not None:
                found.append(payload)
            elif event.strip() == b"data: [DONE]":
                found.append(None)
        return found


def _end_of_last_event(data: bytes) -> int:
    """End of the last complete event; 0 without one."""
    end = data.rfind(b"\n\n") + 2
    end = 0 if end == 1 else end
    if b"\r" in data:
        for found in _BLANK_LINE.finditer(data, end):
            end = found.end()
    return end


def _events(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every event in complete events."""
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
    """The JSON object in the ``data`` lines of an event; None for anything else."""
    text = event[6:]
    if not event.startswith(b"data: {") or b"\n" in text[:-2]:
        lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
        text = b"\n".join(lines)
    return parse_object(text)
