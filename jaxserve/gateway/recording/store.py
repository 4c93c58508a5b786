"""All sessions of a gateway, in a folder each: who may speak in them, and what was said.

Only the digest of a session's key is kept. A key is 256 random bits, so that its plain SHA-256 is
as hard to turn back as the key is to guess.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
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
from jaxserve.gateway.http.auth import keys
from jaxserve.gateway.http.headers import RawHeaders
from jaxserve.gateway.recording.files import sync
from jaxserve.gateway.recording.group_commit import GroupCommit
from jaxserve.gateway.recording.session import NotRecorded, Session, SessionInfo
from jaxserve.runtime.state import locked_file

_LOG = logging.getLogger("jaxserve.gateway")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HELD = "session.json"
_THREADS = 8


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
            lock = locked_file(folder / ".lock")
            if lock is None:
                raise ValueError("another gateway has it")
            self._lock = lock
            for file in sorted(folder.glob(f"*/{_HELD}")):
                self._take(Session(_read_info(file), file.parent))
        except OSError as error:
            raise InputError(f"--sessions is {folder}: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"--sessions is {folder}: {error}") from None
        self._threads = ThreadPoolExecutor(_THREADS, "jaxserve-sessions")
        self._commits = GroupCommit(_THREADS)

    def __iter__(self) -> Iterator[Session]:
        """In the order in which they were made."""
        return iter(tuple(self._by_id.values()))

    def get(self, id: str) -> Session | None:
        """One by its name."""
        return self._by_id.get(id)

    async def create(
        self, id: str | None, *, durable: bool, metadata: Mapping[str, Any]
    ) -> tuple[Session, str]:
        """A new session, which is on the disk, and its key, which is told only here.

        Raises:
          InputError: the name cannot be one, or is taken.
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
        session = Session(info, self._folder / id)
        await self._kept(session)
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
                await self._keep_counts(session)

    async def close(self, session: Session) -> None:
        """Refuses its key from now on; what was said stays.

        Raises:
          NotRecorded: its records cannot be read.
        """
        if not session.info.closed:
            await session.open(self._threads)
        session.info = replace(session.info, closed=True)
        await self._keep_counts(session)
        session.end(deleted=False)

    async def _keep_counts(self, session: Session) -> None:
        """What a closed session has come to; its records are not read for that again."""
        session.info = replace(session.info, counts=dict(session.counts))
        session.rest()
        await self._kept(session)

    async def delete(self, session: Session) -> None:
        """Forgets it, with all that was said."""
        session.end(deleted=True)
        del self._by_id[session.info.id]
        self._by_key.pop(bytes.fromhex(session.info.key_sha256), None)
        async with session.keeping:
            # Renamed first: what a kill leaves of it is no session.
            gone = self._folder / f".{session.info.id}.{secrets.token_hex(4)}"
            session.folder.rename(gone)
        await self._off_the_loop(functools.partial(shutil.rmtree, gone, ignore_errors=True))

    async def synced(self, session: Session) -> None:
        """Returns when the session's records are on the disk.

        Raises:
          NotRecorded: they cannot be brought there.
        """
        try:
            await self._commits.synced(session.path)
        except OSError as error:
            if not session.deleted:
                _LOG.error("records of session %s are not on the disk: %s", session.info.id, error)
                raise NotRecorded from error

    def shut(self) -> None:
        """Lets another gateway have the folder."""
        for session in self:
            session.end(deleted=False)
        self._threads.shutdown()
        self._commits.close()
        os.close(self._lock)

    def _take(self, session: Session) -> None:
        self._by_id[session.info.id] = session
        self._by_key[bytes.fromhex(session.info.key_sha256)] = session

    async def _kept(self, session: Session) -> None:
        """Returns when what is held of it is on the disk, unless it was deleted."""
        async with session.keeping:
            if not session.deleted:
                await self._off_the_loop(functools.partial(self._keep, session))

    async def _off_the_loop(self, work: Callable[[], None]) -> None:
        """Writes take as long as the disk does, and all other requests would wait for it."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

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
