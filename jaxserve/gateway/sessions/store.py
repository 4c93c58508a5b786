"""All sessions of a gateway, in a folder each: who may speak in them, and what was said.

Only the digest of a session's key is kept. A key is 256 random bits, so that its plain SHA-256 is
as hard to turn back as the key is to guess.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.gateway.auth import keys
from jaxserve.gateway.headers import RawHeaders
from jaxserve.gateway.sessions.files import RecordFile, sync
from jaxserve.gateway.sessions.linking import Linker
from jaxserve.gateway.sessions.records import (
    CompletionRecord,
    Link,
    decode,
    encode,
    lines,
)

_LOG = logging.getLogger("jaxserve.gateway")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HELD, _SAID = "session.json", "records.jsonl"
_THREADS = 8
_MOST_UNREAD = 10_000
"""Events that a listener may leave unread until it is let go."""


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
    """of a closed one: completions, tokens sampled, failures."""


class Session:
    """One session."""

    def __init__(self, info: SessionInfo, folder: Path) -> None:
        """Args: its description, and where its records are. They are read when that is needed."""
        self.info = info
        self.folder = folder
        self.path = folder / _SAID
        """the file of records."""
        self.inside = 0
        """requests of it that are on their way."""
        self._opening = asyncio.Lock()
        self.deleted = False
        """whether it is gone, with its records."""
        self._listeners: set[Listener] = set()
        self._said: _Said | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Completions, tokens sampled, and failures; the session is closed, or ``open``."""
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
        """Numbers, links and writes a record; one of a session that is gone goes nowhere. The
        session is ``open``.

        Raises:
          NotRecorded: it cannot be written; it is as if it had never been.
        """
        if self.deleted:
            return draft
        try:
            record = self._opened().add(replace(draft, session=self.info.id))
        except (OSError, ValueError) as error:
            _LOG.error("a record of session %s is lost: %s", self.info.id, error)
            raise NotRecorded from error
        for listener in tuple(self._listeners):
            self._tell(listener, (record.seq, event_of(record)))
        return record

    def sync(self) -> None:
        """Returns when all records are on the disk; may be called from any thread.

        Raises:
          NotRecorded: they are not.
        """
        try:
            sync(self.path)
        except OSError as error:
            if self.deleted:
                return
            _LOG.error("records of session %s are not on the disk: %s", self.info.id, error)
            raise NotRecorded from error

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
        record = replace(draft, seq=self.counts["completions"] + 1, link=link)
        self._file.add(encode(record))
        self._take(record, len(messages))
        return record

    def _take(self, record: CompletionRecord, turn: int) -> None:
        if record.seq != self.counts["completions"] + 1:
            raise ValueError(f"record {record.seq} follows record {self.counts['completions']}")
        self.counts["completions"] += 1
        self.counts["sampled"] += record.sampled
        self.counts["failures"] += record.outcome != "completed"
        self._linker.add(record, turn)


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


class Sessions:
    """The folder of all of them. One gateway at a time writes into it."""

    def __init__(self, folder: Path) -> None:
        """Reads the sessions of earlier gateways.

        Raises:
          InputError: the folder cannot be used, or is in use.
        """
        self._folder = folder
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock(folder / ".lock")
            for file in sorted(folder.glob(f"*/{_HELD}")):
                self._take(Session(_read_info(file), file.parent))
        except OSError as error:
            raise InputError(f"--sessions is {folder}: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"--sessions is {folder}: {error}") from None
        self._threads = ThreadPoolExecutor(_THREADS, "jaxserve-sessions")

    def __iter__(self) -> Iterator[Session]:
        """In the order in which they were made."""
        return iter(tuple(self._by_id.values()))

    def get(self, id: str) -> Session | None:
        """One by its name."""
        return self._by_id.get(id)

    def create(
        self, id: str | None, *, durable: bool, metadata: Mapping[str, Any]
    ) -> tuple[Session, str]:
        """A new session and its key, which is told only here.

        Raises:
          InputError: the name cannot be one, or is taken.
        """
        id = secrets.token_hex(8) if id is None else id
        if not _NAME.fullmatch(id):
            raise InputError(
                f"id is {id[:80]!r}; it must be up to 128 letters, digits, dots, dashes and "
                "underscores, a letter or digit first"
            )
        if (self._folder / id).exists():
            raise InputError(f"id is {id!r}; it must be new, and there is such a session")
        key = secrets.token_urlsafe(32)
        digest = hashlib.sha256(key.encode()).hexdigest()
        info = SessionInfo(id, time.time(), digest, durable, False, dict(metadata))
        (self._folder / id).mkdir(mode=0o700)
        session = Session(info, self._folder / id)
        self._keep(session)
        self._take(session)
        return session, key

    def of(self, headers: RawHeaders, query: bytes = b"") -> Session | None:
        """The session whose key a request shows, wherever clients put it, unless it is closed."""
        for key in keys(headers, query):
            digest = hashlib.sha256(key.encode()).digest()
            session = self._by_key.get(digest)
            if session is None or session.info.closed:
                continue
            if secrets.compare_digest(digest, bytes.fromhex(session.info.key_sha256)):
                return session
        return None

    async def described(self, session: Session) -> dict[str, Any]:
        """A session for the control door, without its key.

        Raises:
          NotRecorded: its records cannot be read.
        """
        if not session.info.closed:
            await session.open(self._threads)
        return session.describe()

    @asynccontextmanager
    async def entered(self, session: Session) -> AsyncIterator[None]:
        """``async with sessions.entered(session):`` around a request that is to be recorded.

        Raises:
          NotRecorded: the session's records cannot be read.
        """
        session.inside += 1
        try:
            await session.open(self._threads)
            yield
        finally:
            session.inside -= 1
            if session.info.closed and session.inside == 0 and not session.deleted:
                self._keep_counts(session)

    async def close(self, session: Session) -> None:
        """Refuses its key from now on; what was said stays.

        Raises:
          NotRecorded: its records cannot be read.
        """
        if not session.info.closed:
            await session.open(self._threads)
        session.info = replace(session.info, closed=True)
        self._keep_counts(session)
        session.end(deleted=False)

    def _keep_counts(self, session: Session) -> None:
        """What a closed session has come to; its records are not read for that again."""
        session.info = replace(session.info, counts=dict(session.counts))
        self._keep(session)
        session.rest()

    def delete(self, session: Session) -> None:
        """Forgets it, with all that was said."""
        session.end(deleted=True)
        del self._by_id[session.info.id]
        self._by_key.pop(bytes.fromhex(session.info.key_sha256), None)
        # Renamed first: what a kill leaves of it is no session.
        gone = self._folder / f".{session.info.id}.{secrets.token_hex(4)}"
        session.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    async def synced(self, session: Session) -> None:
        """Returns when the session's records are on the disk.

        Raises:
          NotRecorded: they cannot be brought there.
        """
        await asyncio.get_running_loop().run_in_executor(self._threads, session.sync)

    def shut(self) -> None:
        """Lets another gateway have the folder."""
        for session in self:
            session.end(deleted=False)
        self._threads.shutdown()
        os.close(self._lock)

    def _take(self, session: Session) -> None:
        self._by_id[session.info.id] = session
        self._by_key[bytes.fromhex(session.info.key_sha256)] = session

    def _keep(self, session: Session) -> None:
        write_atomic(session.folder / _HELD, orjson.dumps(vars(session.info)))
        sync(session.folder)
        sync(self._folder)


def _read_info(file: Path) -> SessionInfo:
    held = JsonObject(read_json(file, f"session {file.parent.name}"), f"session {file.parent.name}")
    return SessionInfo(
        id=file.parent.name,
        created_unix_s=held.number("created_unix_s"),
        key_sha256=held.text("key_sha256"),
        durable=held.flag("durable"),
        closed=held.flag("closed"),
        metadata=held.inside("metadata"),
        counts=held.inside("counts"),
    )


def _lock(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl
    except ImportError:  # Windows: nobody keeps a second gateway out
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ValueError("another gateway has it") from None
    return file
