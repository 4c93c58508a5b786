"""One session: who may speak in it, what was said, and who listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from jaxserve.gateway.recording.files import RecordFile
from jaxserve.gateway.recording.linking import Linker
from jaxserve.gateway.recording.records import CompletionRecord, Link, decode, encode, lines

_LOG = logging.getLogger("jaxserve.gateway")
_MOST_UNREAD = 10_000
"""Events that a listener may leave unread until it is let go."""
_MOST_UNSENT = 1000
"""Records of requests that no engine got: a client makes them at no cost, and without end."""
_UNSENT_BYTES = 16_384
"""Of the body of such a request, which may be anything."""

Listener = asyncio.Queue[tuple[int, bytes] | None]
"""Numbers of records and their events; None is the end."""


class NotRecorded(Exception):
    """A record could not be written, so its completion must not count as answered."""


@dataclass(frozen=True)
class SessionInfo:
    """What is known of a session beside its records."""

    id: str
    """its name, which is that of its folder."""
    created_unix_s: float
    """s since 1970."""
    key_sha256: str = field(repr=False)
    """of its key, hexadecimal."""
    durable: bool = False
    """whether a record is on the disk before its answer ends."""
    closed: bool = False
    """whether its key is refused."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """the maker's own."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """of a closed one, as ``Session.counts``."""


class Session:
    """One session."""

    def __init__(self, info: SessionInfo, folder: Path) -> None:
        """Args: its description, and where its records are. They are read when that is needed."""
        self.info = info
        self.folder = folder
        self.path = folder / "records.jsonl"
        """the file of records."""
        self.inside = 0
        """requests of it that are on their way."""
        self.keeping = asyncio.Lock()
        """held while its description is written, or it is taken away."""
        self._opening = asyncio.Lock()
        self.deleted = False
        """whether it is gone, with its records."""
        self._listeners: set[Listener] = set()
        self._said: _Said | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Requests that were completed, tokens sampled, and requests that were not; the session is
        closed, or ``open``."""
        if self.info.closed and self._said is None:
            return self.info.counts
        return self._opened().counts

    async def open(self, reader: Executor) -> None:
        """Reads the records of an earlier gateway, in a thread: they may be many.

        Raises:
          NotRecorded: they cannot be read.
        """
        async with self._opening:
            if self._said is not None:
                return
            loop = asyncio.get_running_loop()
            try:
                self._said = await loop.run_in_executor(reader, _Said, self.path)
            except (OSError, ValueError) as error:
                _LOG.error("records of session %s cannot be read: %s", self.info.id, error)
                raise NotRecorded from error

    def add(self, draft: CompletionRecord) -> CompletionRecord:
        """Numbers, links and writes a record; one of a session that is gone goes nowhere, and of
        requests that no engine got only the first are kept. The session is ``open``.

        Raises:
          NotRecorded: it cannot be written; it is as if it had never been.
        """
        if self.deleted:
            return draft
        said, unsent = self._opened(), draft.sent is None
        if unsent and said.unsent >= _MOST_UNSENT:
            return draft
        if unsent:
            draft = replace(draft, received=_beginning(draft.received))
        try:
            record = said.add(draft)
        except (OSError, ValueError) as error:
            _LOG.error("a record of session %s is lost: %s", self.info.id, error)
            raise NotRecorded from error
        if unsent and said.unsent == _MOST_UNSENT:
            _LOG.warning(
                "session %s has records of %d requests that no engine got; no more are kept",
                self.info.id,
                _MOST_UNSENT,
            )
        for listener in tuple(self._listeners):
            self._tell(listener, (record.seq, event_of(record)))
        return record

    def listen(self) -> Listener:
        """A queue of what happens from now on; None is its end."""
        queue: Listener = asyncio.Queue()
        self._listeners.add(queue)
        if self.info.closed or self.deleted:
            queue.put_nowait(None)
        return queue

    def rest(self) -> None:
        """Takes no memory any more, unless a request is still on its way."""
        if self.inside == 0:
            self._said = None

    def leave(self, queue: Listener) -> None:
        """Its listener is gone."""
        self._listeners.discard(queue)

    def end(self, *, deleted: bool) -> None:
        """Nothing more is told; of a deleted one nothing is written either."""
        self.deleted = deleted
        self.rest()
        for listener in tuple(self._listeners):
            listener.put_nowait(None)

    def describe(self) -> dict[str, Any]:
        """For the control door; without its key."""
        shown = {name: value for name, value in vars(self.info).items() if name != "key_sha256"}
        return {**shown, "counts": self.counts}

    def _opened(self) -> _Said:
        assert self._said is not None, "the session must be open"
        return self._said

    def _tell(self, listener: Listener, event: tuple[int, bytes]) -> None:
        if listener.qsize() < _MOST_UNREAD:
            listener.put_nowait(event)
        else:
            listener.put_nowait(None)
            self._listeners.discard(listener)


class _Said:
    """The records of a session that is spoken in."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError: the file cannot be read or written.
        ValueError: a line of it is no record.
        """
        self.counts = {"completions": 0, "sampled": 0, "failures": 0}
        self._last = 0
        """number of the last record."""
        self.unsent = 0
        """records of requests that no engine got."""
        self._linker = Linker()
        self._file = RecordFile(path)
        for line in lines(path):
            record = decode(line)
            self._take(record, len(record.messages))

    def add(self, draft: CompletionRecord) -> CompletionRecord:
        """Numbers, links and writes one."""
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
    """As much of a body as is kept where no engine got it; bytes that are no text are replaced."""
    return body[:_UNSENT_BYTES].decode(errors="replace").encode()


def event_of(record: CompletionRecord) -> bytes:
    """A record in a few words, as a server-sent event."""
    parent = record.link.parent
    said = {
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
    return b"id: %d\nevent: completion\ndata: %b\n\n" % (record.seq, orjson.dumps(said))
