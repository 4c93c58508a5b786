"""All recorded sessions of a gateway, in a folder each.

Only the digest of a session's key is stored. A key is 256 random bits, so that its plain SHA-256 is
as hard to invert as the key is to guess.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.gateway.http.auth import request_keys
from jaxserve.gateway.http.headers import RawHeaders
from jaxserve.gateway.recording.group_commit import GroupCommit
from jaxserve.gateway.recording.records import sync
from jaxserve.gateway.recording.session import NotRecorded, RecordedSession, SessionInfo
from jaxserve.runtime.storage import lock_file

_LOG = logging.getLogger("jaxserve.gateway")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_INFO = "session.json"
_THREADS = 8


class SessionStore:
    """Folder of all sessions; one gateway at a time writes into it."""

    def __init__(self, folder: Path) -> None:
        """Reads the descriptions of all sessions.

        Raises:
          InputError: the folder cannot be used, or is in use.
        """
        self._folder = folder
        self._by_id: dict[str, RecordedSession] = {}
        self._by_key: dict[bytes, RecordedSession] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = lock_file(folder / ".lock")
            if lock is None:
                raise ValueError("another gateway has it")
            self._lock = lock
            for file in sorted(folder.glob(f"*/{_INFO}")):
                self._add(RecordedSession(_read_info(file), file.parent))
        except OSError as error:
            raise InputError(f"--sessions is {folder}: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"--sessions is {folder}: {error}") from None
        self._threads = ThreadPoolExecutor(_THREADS, "jaxserve-sessions")
        self._commits = GroupCommit(_THREADS)

    def __iter__(self) -> Iterator[RecordedSession]:
        """Iterates over the sessions, earlier gateways' first."""
        return iter(tuple(self._by_id.values()))

    def get(self, id: str) -> RecordedSession | None:
        """Session by its id; None for an unknown id."""
        return self._by_id.get(id)

    async def create(
        self, id: str | None, *, durable: bool, metadata: Mapping[str, Any]
    ) -> tuple[RecordedSession, str]:
        """Creates a session on the disk.

        Args:
          id: id of the session; None makes one.
          durable: whether a record is on the disk before the end of its response.
          metadata: values of the creator.

        Returns:
          the session, and its key, which is stored nowhere.

        Raises:
          InputError: the id is malformed, or taken.
        """
        id = secrets.token_hex(8) if id is None else id
        if not _NAME.fullmatch(id):
            raise InputError(
                f"id is {id[:80]!r}; it must be up to 128 letters, digits, dots, dashes and "
                "underscores, a letter or digit first"
            )
        try:
            (self._folder / id).mkdir(mode=0o700)
        except FileExistsError:
            message = f"id is {id!r}; it must be new, and there is such a session"
            raise InputError(message) from None
        key = f"sk-{secrets.token_urlsafe(32)}"  # never an option on a command line
        digest = hashlib.sha256(key.encode()).hexdigest()
        info = SessionInfo(id, time.time(), digest, durable, False, dict(metadata))
        session = RecordedSession(info, self._folder / id)
        await self._save(session)
        self._add(session)
        return session, key

    def of(self, headers: RawHeaders, query: bytes = b"") -> RecordedSession | None:
        """Session of a request by any of its keys; None without the key of an open session."""
        for key in request_keys(headers, query):
            digest = hashlib.sha256(key.encode()).digest()
            session = self._by_key.get(digest)
            if session is None or session.info.closed:
                continue
            if secrets.compare_digest(digest, bytes.fromhex(session.info.key_sha256)):
                return session
        return None

    async def described(self, session: RecordedSession) -> dict[str, Any]:
        """Description of a session for the control port, without its key.

        Raises:
          NotRecorded: the records cannot be read.
        """
        if not session.info.closed:
            await session.open(self._threads)
        return session.describe()

    @asynccontextmanager
    async def entered(self, session: RecordedSession) -> AsyncIterator[None]:
        """``async with sessions.entered(session):`` encloses a request that is recorded.

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
                await self._keep_counts(session)

    async def close(self, session: RecordedSession) -> None:
        """Closes a session: its key is refused from now on, its records stay.

        Raises:
          NotRecorded: the records cannot be read.
        """
        if not session.info.closed:
            await session.open(self._threads)
        session.info = replace(session.info, closed=True)
        await self._keep_counts(session)
        session.end(deleted=False)

    async def _keep_counts(self, session: RecordedSession) -> None:
        """Stores the counts of a closed session, so that its records need not be read again."""
        session.info = replace(session.info, counts=dict(session.counts))
        session.rest()
        await self._save(session)

    async def delete(self, session: RecordedSession) -> None:
        """Deletes a session with its records."""
        session.end(deleted=True)
        del self._by_id[session.info.id]
        self._by_key.pop(bytes.fromhex(session.info.key_sha256), None)
        async with session.keeping:
            # Rename first: a folder half deleted by a crash must not look like a session.
            gone = self._folder / f".{session.info.id}.{secrets.token_hex(4)}"
            session.folder.rename(gone)
        await self._in_thread(functools.partial(shutil.rmtree, gone, ignore_errors=True))

    async def synced(self, session: RecordedSession) -> None:
        """Waits until the records of a session are on the disk.

        Raises:
          NotRecorded: the disk failed.
        """
        try:
            await self._commits.synced(session.path)
        except OSError as error:
            if not session.deleted:
                _LOG.error("records of session %s are not on the disk: %s", session.info.id, error)
                raise NotRecorded from error

    def shut(self) -> None:
        """Releases the folder for another gateway."""
        for session in self:
            session.end(deleted=False)
        self._threads.shutdown()
        self._commits.close()
        self._lock.release()

    def _add(self, session: RecordedSession) -> None:
        self._by_id[session.info.id] = session
        self._by_key[bytes.fromhex(session.info.key_sha256)] = session

    async def _save(self, session: RecordedSession) -> None:
        """Waits until the description of a session is on the disk; a deleted one is left alone."""
        async with session.keeping:
            if not session.deleted:
                await self._in_thread(functools.partial(self._write, session))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs work in a thread: writing on the event loop would stall all other requests."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, session: RecordedSession) -> None:
        write_atomic(session.folder / _INFO, orjson.dumps(vars(session.info)))
        sync(session.folder)
        sync(self._folder)


def _read_info(file: Path) -> SessionInfo:
    info = JsonObject(read_json(file, f"session {file.parent.name}"), f"session {file.parent.name}")
    return SessionInfo(
        id=file.parent.name,
        created_unix_s=info.number("created_unix_s"),
        key_sha256=info.text("key_sha256"),
        durable=info.flag("durable"),
        closed=info.flag("closed"),
        metadata=info.inside("metadata"),
        counts=info.inside("counts"),
    )
