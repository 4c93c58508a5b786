"""What happened to each request: one record each, in memory and, if asked for, in a file."""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import orjson

from jaxserve.errors import InputError
from jaxserve.gateway.dialects.dialect import Usage

_LOG = logging.getLogger("jaxserve.gateway")


@dataclass(slots=True)
class RequestRecord:
    """One request, filled in while it is served.

    Times ``*_s`` without ``unix`` are of the monotonic clock; None where it did not come to that.
    On the wall clock any of them is ``arrival_unix_s + (time - arrival_s)``, whatever happens to
    that clock meanwhile.
    """

    id: str
    """the answer's header ``x-gateway-request-id``."""
    dialect: str
    """chat, completions, messages, responses or google."""
    arrival_unix_s: float
    """when its headers had been read, s since 1970."""
    arrival_s: float
    """the same."""
    class_name: str = "default"
    """whose objectives it has."""
    priority: int = 0
    """lower is served first."""
    streamed: bool = False
    """whether its answer came as events."""
    parallel: bool = False
    """whether it asked for several outputs at a time: gaps between their events say nothing."""
    pool: str = ""
    """where it was admitted, or waited."""
    engine: str = ""
    """which replica served it."""
    attempts: int = 0
    """engines that were tried; those before the last did not begin."""
    admitted_s: float | None = None
    """when it got a place at its engine."""
    first_byte_s: float | None = None
    """when the engine's first byte of the body arrived."""
    first_token_s: float | None = None
    """when the first event with output arrived; only of streams."""
    last_token_s: float | None = None
    """when the last one did."""
    ended_s: float | None = None
    """when its last byte was handed to the client's connection, or it failed."""
    token_events: int = 0
    """events with output, each of one token or more."""
    prompt_tokens: int | None = None
    """as the engine counted them."""
    output_tokens: int | None = None
    """as the engine counted them."""
    cached_tokens: int | None = None
    """of those of the prompt, found in the engine's prefix cache; few engines say so unasked."""
    bytes_in: int = 0
    """of the request's body."""
    bytes_out: int = 0
    """of the answer's body."""
    status: int = 0
    """of the answer; 499 where the client left, and 200 where a stream broke after its start."""
    outcome: str = ""
    """completed, rejected, cancelled or failed."""
    reason: str = ""
    """why it was not completed."""
    good: bool | None = None
    """whether it was completed inside its objectives; None where nothing was streamed."""

    def count(self, usage: Usage) -> None:
        """Notes the tokens that an engine counted."""
        self.prompt_tokens, self.output_tokens, self.cached_tokens = usage

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, s."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, s: events are not tokens, so usage says how many
        there were."""
        if self.first_token_s is None or self.last_token_s is None or self.parallel:
            return None
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


class Records:
    """The last requests that ended, and the file of all of them."""

    def __init__(self, kept: int, path: Path | None = None) -> None:
        """Args:
          kept: in memory.
          path: file to add lines to.

        Raises:
          InputError: the file cannot be written.
        """
        self.ring: deque[RequestRecord] = deque(maxlen=kept)
        self.lost = 0
        """records that the file did not take."""
        self._file: int | None = None
        self._torn = False
        if path is not None:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._file = os.open(path, flags, 0o600)
            except OSError as error:
                raise InputError(f"--records is {path}: {error.strerror}") from None

    def add(self, record: RequestRecord) -> None:
        """Keeps a record; a file that cannot take it costs the record, never the request."""
        self.ring.append(record)
        if self._file is None:
            return
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._lose(error.strerror or "unknown")
        else:
            self._torn = written < len(line)
            if self._torn:
                self._lose("the disk is full")

    def ended_between(self, since_s: float, until_s: float) -> tuple[list[RequestRecord], bool]:
        """Requests that ended in ``(since_s, until_s]``, the last one first, and whether these are
        all that did."""
        found: list[RequestRecord] = []
        for record in reversed(self.ring):
            ended_s = record.ended_s or 0.0
            if ended_s <= since_s:
                return found, True
            if ended_s <= until_s:
                found.append(record)
        return found, len(self.ring) < (self.ring.maxlen or 0)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lose(self, why: str) -> None:
        if self.lost == 0:
            _LOG.error("records cannot be written any more: %s", why)
        self.lost += 1
