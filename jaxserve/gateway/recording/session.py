"""One recorded session: its description, its records, and its listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from jaxserve.gateway.recording.linking import Linker
from jaxserve.gateway.recording.records import (
    CompletionRecord,
    Link,
    RecordFile,
    decode,
    encode,
    lines,
)

_LOG = logging.getLogger("jaxserve.gateway")
_MAX_UNREAD = 10_000
"""Unread events after which a listener is dropped."""
_MAX_UNSENT = 1000
"""Most records of requests that no engine received: such requests cost a client nothing."""
_UNSENT_BYTES = 16_384
"""Most bytes kept of the body of such a request."""

Listener = asyncio.Queue[tuple[int, bytes] | None]
"""Queue of numbers of records and their events; None is the end."""


class NotRecorded(Exception):
    """A record could not be read or written, so its completion must not be answered."""


@dataclass(frozen=True)
class SessionInfo:
    """Description of a session."""

    id: str
    """id of the session, the name of its folder."""
    created_unix_s: float
    """creation, s since 1970."""
    key_sha256: str = field(repr=False)
    """SHA-256 of the session's key, hexadecimal."""
    durable: bool = False
    """whether a record is on the disk before the end of its response."""
    closed: bool = False
    """whether the key is refused."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """values of the creator."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """counts of a closed session, as ``RecordedSession.counts``."""


class RecordedSession:
    """One session; its records are read when they are needed first."""

    def __init__(self, info: SessionInfo, folder: Path) -> None:
        """Args: the description, and the folder of the session."""
        self.info = info
        self.folder = folder
        self.path = folder / "records.jsonl"
        """the file of records."""
        self.inside = 0
        """requests of the session in flight."""
        self.keeping = asyncio.Lock()
        """lock for writing the description, and for deleting the session."""
        self._opening = asyncio.Lock()
        self.deleted = False
        """whether the session has been deleted, with its records."""
        self._listeners: set[Listener] = set()
        self._records: _OpenRecords | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of completed requests, sampled tokens and failed requests; requires a closed
        session, or ``open``."""
        if self.info.closed and self._records is None:
            return self.info.counts
        return self._opened().counts

    async def open(self, reader: Executor) -> None:
        """Reads the records of an earlier gateway, in a thread, since there may be many.

        Raises:
          NotRecorded: the records cannot be read.
        """
        async with self._opening:
            if self._records is not None:
                return
            loop = asyncio.get_running_loop()
            try:
                self._records = await loop.run_in_executor(reader, _OpenRecords, self.path)
            except (OSError, ValueError) as error:
                _LOG.error("records of session %s cannot be read: %s", self.info.id, error)
                raise NotRecorded from error

    def add(self, draft: CompletionRecord) -> CompletionRecord:
        """Numbers, links and writes a record; requires ``open``.

        A record of a deleted session is dropped, and so are the records of requests that no engine
        received, beyond the first ones.

        Raises:
          NotRecorded: the record cannot be written; the session is unchanged.
        """
        if self.deleted:
            return draft
        records, unsent = self._opened(), draft.sent is None
        if unsent and records.unsent >= _MAX_UNSENT:
            return draft
        if unsent:
            draft = replace(draft, received=_beginning(draft.received))
        try:
            record = records.add(draft)
        except (OSError, ValueError) as error:
            _LOG.error("a record of session %s is lost: %s", self.info.id, error)
            raise NotRecorded from error
        if unsent and records.unsent == _MAX_UNSENT:
            _LOG.warning(
                "session %s has records of %d requests that no engine got; no more are kept",
                self.info.id,
                _MAX_UNSENT,
            )
        for listener in tuple(self._listeners):
            self._notify(listener, (record.seq, completion_event(record)))
        return record

    def listen(self) -> Listener:
        """Queue of the next records' events; None is its end."""
        queue: Listener = asyncio.Queue()
        self._listeners.add(queue)
        if self.info.closed or self.deleted:
            queue.put_nowait(None)
        return queue

    def rest(self) -> None:
        """Frees the memory for the records, unless a request is in flight."""
        if self.inside == 0:
            self._records = None

    def leave(self, queue: Listener) -> None:
        """Removes a listener."""
        self._listeners.discard(queue)

    def end(self, *, deleted: bool) -> None:
        """Ends all listeners; a deleted session also drops further records."""
        self.deleted = deleted
        self.rest()
        for listener in tuple(self._listeners):
            listener.put_nowait(None)

    def describe(self) -> dict[str, Any]:
        """Description for the control port, without the key."""
        shown = {name: value for name, value in vars(self.info).items() if name != "key_sha256"}
        return {**shown, "counts": self.counts}

    def _opened(self) -> _OpenRecords:
        assert self._records is not None, "the session must be open"
        return self._records

    def _notify(self, listener: Listener, event: tuple[int, bytes]) -> None:
        if listener.qsize() < _MAX_UNREAD:
            listener.put_nowait(event)
        else:
            listener.put_nowait(None)
            self._listeners.discard(listener)


class _OpenRecords:
    """Records of a session in use."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError: the file cannot be read or written.
        ValueError: a line is not a record.
        """
        self.counts = {"completions": 0, "sampled": 0, "failures": 0}
        self._last = 0
        """number of the last record."""
        self.unsent = 0
        """records of requests that no engine received."""
        self._linker = Linker()
        self._file = RecordFile(path)
        for line in lines(path):
            record = decode(line)
            self._take(record, len(record.messages))

    def add(self, draft: CompletionRecord) -> CompletionRecord:
        """Numbers, links and writes a record."""
        messages = draft.messages
        link = Link()
        if draft.prompt_ids is not None:
            link = self._linker.link(draft.prompt_ids, messages)
            link = link if draft.usable else replace(link, in_line=False)
        record = replace(draft, seq=self._last + 1, link=link)
        self._file.add(encode(record))
        self._take(record, len(messages))
        return record

    def _take(self, record: CompletionRecord, turn: int) -> None:
        if record.seq != self._last + 1:
            raise ValueError(f"record {record.seq} follows record {self._last}")
        self._last = record.seq
        self.counts["completions" if record.outcome == "completed" else "failures"] += 1
        self.counts["sampled"] += record.sampled
        self.unsent += record.sent is None
        self._linker.add(record, turn)


def _beginning(body: bytes) -> bytes:
    """Kept part of a body that no engine received; bytes that are not UTF-8 are replaced."""
    return body[:_UNSENT_BYTES].decode(errors="replace").encode()


def completion_event(record: CompletionRecord) -> bytes:
    """Summary of a record, as a server-sent event."""
    parent = record.link.parent
    summary = {
        "seq": record.seq,
        "request_id": record.request_id,
        "ended_unix_s": record.ended_unix_s,
        "outcome": record.outcome,
        "reason": record.reason,
        "prompt": None if record.prompt_ids is None else len(record.prompt_ids),
        "sampled": record.sampled,
        "parent": parent,
        "how": record.link.how,
        "in_line": record.link.in_line,
    }
    return b"id: %d\nevent: completion\ndata: %b\n\n" % (record.seq, orjson.dumps(summary))
