"""Server-sent events, read from chunks of bytes as the HTML standard frames them.

Lines end with CR, LF or CRLF, in any mixture. Engines and routers break the standard in two ways
that are read as well: they close a stream without its last blank line, and report errors in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import parse_object

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event of an engine."""

    raw: bytes
    """its bytes, with its blank line."""
    data: bytes
    """its ``data`` lines, joined; empty where it has none, as a comment."""
    content: dict[str, Any] | None = None
    """the JSON object in ``data``; None without one."""
    is_done: bool = False
    """whether ``data`` is ``[DONE]``."""
    failure: RequestError | None = None
    """error that the event reports under the name ``error``, or error of its framing: data that is
    no JSON object (``engine_garbage``), or that was cut off (``engine_broke``)."""


class EventReader:
    """Reads the events of one stream."""

    def __init__(self) -> None:
        self.rest = b""
        """bytes of the event that is not complete."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Adds a chunk; returns the events that are complete now."""
        data = self.rest + chunk if self.rest else chunk
        found, start = [], 0
        if b"\r" in data:
            for blank in _BLANK_LINE.finditer(data):
                found.append(_event(data[start : blank.end()]))
                start = blank.end()
        else:
            while stop := data.find(b"\n\n", start) + 2:
                if stop == 1:
                    break
                found.append(_event(data[start:stop]))
                start = stop
        self.rest = data[start:]
        return found

    def end(self) -> list[StreamEvent]:
        """The event that the engine left without its blank line, if any."""
        rest, self.rest = self.rest, b""
        return [_event(rest, is_last=True)] if rest else []


def error_message(content: Mapping[str, Any]) -> str:
    """Message of an error object; empty without one.

    vLLM has the message inside a field ``error``, SGLang at the top.
    """
    error = content.get("error", content)
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


def _event(raw: bytes, *, is_last: bool = False) -> StreamEvent:
    name, data = b"", raw[6:]
    is_plain = raw.startswith(b"data: {") and b"\n" not in data[:-2] and b"\r" not in data[:-2]
    if not is_plain:
        name, data = _name_and_data(raw)
    content = parse_object(data) if data else None
    text = data.strip()
    if name == b"error":
        message = error_message(content) if content else text.decode(errors="replace")
        error = RequestError(502, "engine_error", message[:_LONGEST_MESSAGE] or "the engine failed")
        return StreamEvent(raw, data, content, failure=error)
    if content is not None or text in (b"", b"[DONE]"):
        return StreamEvent(raw, data, content, is_done=text == b"[DONE]")
    # Events of other names, such as pings, may hold anything but a broken object.
    if name not in (b"", b"message") and not text.startswith(b"{"):
        return StreamEvent(raw, data)
    if is_last:
        error = RequestError(502, "engine_broke", "the engine broke its answer off in an event")
    else:
        error = RequestError(502, "engine_garbage", "an event of the engine is not a JSON object")
    return StreamEvent(raw, data, failure=error)


def _name_and_data(raw: bytes) -> tuple[bytes, bytes]:
    """The last ``event`` line of an event, and its ``data`` lines, joined."""
    name, parts = b"", []
    # Only the first event may begin with the mark; no other line does.
    for line in raw.removeprefix(_BYTE_ORDER_MARK).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            parts.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.strip()
    return name, b"\n".join(parts)
