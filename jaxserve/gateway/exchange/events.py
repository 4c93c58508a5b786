"""Server-sent events, parsed while they pass.

Complete events pass byte for byte. An incomplete one waits for its end, so that an error event can
follow at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxserve.gateway.dialects.dialect import GIVEN_UP, NO_USAGE, Dialect, Usage
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import parse_object

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_NAMED_ERROR = re.compile(rb"^event: ?error\s*$", re.M)
_LONGEST_MESSAGE = 1000


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
    finish: str | None = None
    """reason for which the answer ended, as far as events were parsed."""
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
        if rest.strip():
            self._note(rest)
        return rest

    @property
    def failure(self) -> str:
        """Reason for which the answer is not whole; empty for a whole one, and for one that was not
        parsed to its end."""
        if self.failed or self.finish in GIVEN_UP:
            return "engine_error"
        return "" if self.finish is not None or self._unparsed else "engine_broke"

    def _parse(self, data: bytes) -> tuple[bytes, int]:
        tokens, dropped = 0, []
        for start, stop in _events(data):
            self.events += 1
            event = self._note(data[start:stop])
            if event is None:
                continue
            tokens += self.dialect.has_token(event)
            without_output = self.drops_usage and event.get("choices") == []
            if without_output and self.dialect.usage(event) is not NO_USAGE:
                dropped.append((start, stop))
        for start, stop in reversed(dropped):
            self.events -= 1
            data = data[:start] + data[stop:]
        return data, tokens

    def _note(self, data: bytes) -> dict[str, Any] | None:
        """Reads what an event says of the answer; returns its JSON object, if it has one."""
        event = parse_object(_data(data))
        if event is None:
            # Routers report errors in words.
            self.failed = self.failed or _NAMED_ERROR.search(data) is not None
            return None
        self.failed = self.failed or self.dialect.is_error(event)
        if self.finish not in GIVEN_UP:
            self.finish = self.dialect.finish(event) or self.finish
        usage = self.dialect.usage(event)
        if usage is not NO_USAGE:
            self.usage = self.usage.updated(usage)
        return event


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
        return _read([data[start:stop] for start, stop in _events(data[:end])])

    def end(self) -> list[dict[str, Any] | None]:
        """The event that the engine left without its blank line, as ``feed`` returns events."""
        rest, self._rest = self._rest, b""
        return _read([rest])


def _read(events: Iterable[bytes]) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    for event in events:
        text = _data(event)
        if (payload := parse_object(text)) is not None:
            found.append(payload)
        elif text.strip() == b"[DONE]":
            found.append(None)
        elif _NAMED_ERROR.search(event) is not None:
            message = text.decode(errors="replace").strip() or "the engine failed"
            found.append({"error": {"message": message[:_LONGEST_MESSAGE]}})
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


def _data(event: bytes) -> bytes:
    """The ``data`` lines of an event, joined as the standard for server-sent events says."""
    text = event[6:]
    if event.startswith(b"data: {") and b"\n" not in text[:-2] and b"\r" not in text[:-2]:
        return text
    lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(lines)
