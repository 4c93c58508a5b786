"""Records of requests, one for each, in memory and in a file if one is configured."""

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
    """Record of one request, filled in while the request is served.

    Times ``*_s`` without ``unix`` are of the monotonic clock; None where the request ended before.
    On the wall clock a time is ``arrival_unix_s + (time - arrival_s)``, whatever that clock does
    meanwhile.
    """

    id: str
    """value of the response header ``x-gateway-request-id``."""
    dialect: str
    """chat, completions, messages, responses or google."""
    arrival_unix_s: float
    """arrival, when the headers had been read, s since 1970."""
    arrival_s: float
    """arrival, monotonic clock."""
    class_name: str = "default"
    """class of the request, which has the objectives."""
    priority: int = 0
    """priority; the lowest number is served first."""
    streamed: bool = False
    """whether the answer came as events."""
    parallel: bool = False
    """whether the request asked for several outputs: gaps between their events mean nothing."""
    pool: str = ""
    """pool in which the request waited and was admitted."""
    engine: str = ""
    """engine that served the request."""
    attempts: int = 0
    """engines tried; all but the last could not be reached."""
    admitted_s: float | None = None
    """time of admission to the engine."""
    first_byte_s: float | None = None
    """arrival of the first byte of the engine's body."""
    first_token_s: float | None = None
    """arrival of the first event with output; streams only."""
    last_token_s: float | None = None
    """arrival of the last event with output."""
    ended_s: float | None = None
    """end: the last byte was handed to the client's connection, or the request failed."""
    token_events: int = 0
    """events with output, of one token or more each."""
    prompt_tokens: int | None = None
    """tokens of the prompt, counted by the engine."""
    output_tokens: int | None = None
    """tokens of the output, counted by the engine."""
    cached_tokens: int | None = None
    """tokens of the prompt found in the engine's prefix cache; few engines report them unasked."""
    bytes_in: int = 0
    """size of the request body."""
    bytes_out: int = 0
    """size of the response body."""
    status: int = 0
    """status of the response; 499 where the client left, 200 where a started stream broke."""
    outcome: str = ""
    """``completed``, ``rejected``, ``cancelled`` or ``failed``."""
    reason: str = ""
    """reason why the request was not completed."""
    good: bool | None = None
    """whether the request was completed within its objectives, by its total time where nothing was
    streamed; False also where the client left after the limit for a first token. None where that
    cannot be told, and for rejected and failed requests."""

    def count(self, usage: Usage) -> None:
        """Notes the usage that an engine reported."""
        self.prompt_tokens, self.output_tokens, self.cached_tokens = usage

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, s."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, s; the number of tokens comes from the usage,
        since an event may have several."""
        if self.first_token_s is None or self.last_token_s is None or self.parallel:
            return None
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)


class Records:
    """Records of the last requests in memory, and of all requests in a file."""

    def __init__(self, kept: int, path: Path | None = None) -> None:
        """Args:
          kept: records in memory.
          path: file to which lines are appended; None for no file.

        Raises:
          InputError: the file cannot be written.
        """
        self.ring: deque[RequestRecord] = deque(maxlen=kept)
        self.lost = 0
        """records that could not be written to the file."""
        self._file: int | None = None
        self._torn = False
        if path is not None:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._file = os.open(path, flags, 0o600)
            except OSError as error:
                raise InputError(f"--records is {path}: {error.strerror}") from None

    def add(self, record: RequestRecord) -> None:
        """Adds a record; a failing file loses the record, never the request."""
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
        """Records of requests that ended in ``(since_s, until_s]``, the last one first, and whether
        these are all."""
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
