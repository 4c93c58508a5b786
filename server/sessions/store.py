"""The session log: one SQLite file that only grows, except for expired sessions.

WAL mode with ``synchronous=NORMAL``: committed windows survive a killed process. After a power cut
the file is consistent and may lack the last moments. Several processes may share a file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from jaxserve.errors import InputError
from jaxserve.spaces import KNOBS
from server.request_errors import StorageFailure
from server.server_settings import IN_MEMORY
from server.sessions.log_file import (
    BUSY_MS,
    FileWatch,
    connect_to_read,
    connect_to_write,
    data_version,
    open_or_set_aside,
)
from server.sessions.programs import Knobs

_LOG = logging.getLogger("jaxserve.server")
_BUSY_AGAIN_MS = 50
"""Milliseconds that a commit waits after another one has waited in vain."""
_PROBE_S = 1.0
_NOTE_CLOCK = "INSERT OR REPLACE INTO notes VALUES ('clock', ?)"
_NEWEST_STEP = "SELECT coalesce(max(id), 0) FROM steps"
_NEW_EPISODE = "INSERT INTO episodes VALUES (?, ?, ?, ?)"
_NEW_STEP = f"INSERT INTO steps VALUES ({', '.join('?' * (6 + len(KNOBS)))})"
_MOVE_SESSION = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)"
REQUEST_OF = "request of "
"""Key, before a session's id, of the note about the request that played its last window."""
_DECISIONS = "decision"
_KEEP_NOTE = "INSERT OR REPLACE INTO notes VALUES (?, ?)"
_ASKED_AT_ONCE = 256
_KNOWN = 100_000
"""Heads that are cached."""
# Follows the session's rows from the newest back to window ``first`` of the episode.
_EPISODE_STEPS = f"""
WITH RECURSIVE
  asked(session, episode, first) AS (VALUES (?, ?, ?)),
  chain(id, previous, episode, number) AS (
    SELECT steps.id, previous, steps.episode, number
      FROM asked JOIN sessions ON sessions.id = session JOIN steps ON steps.id = last
    UNION ALL
    SELECT steps.id, steps.previous, steps.episode, steps.number
      FROM chain JOIN asked JOIN steps ON steps.id = chain.previous
      WHERE NOT (chain.episode = asked.episode AND chain.number <= first)
  )
SELECT batched, reward, {", ".join(KNOBS)}
  FROM chain JOIN asked ON chain.episode = asked.episode AND chain.number >= first
  JOIN steps ON steps.id = chain.id
  ORDER BY chain.number
"""
_DELETE_CHAINS = """
DELETE FROM steps WHERE id IN (
  WITH RECURSIVE chain(id) AS (
    SELECT last FROM sessions WHERE id IN ({old})
    UNION ALL
    SELECT previous FROM chain JOIN steps ON steps.id = chain.id
  )
  SELECT id FROM chain
)
"""


class Head(NamedTuple):
    """The row of a session in the log: its episode, windows, time and newest step."""

    episode: int
    steps: int
    touched: float
    last: int
    """the session's newest row of the table steps"""


class LoggedStep(NamedTuple):
    """An acknowledged window."""

    together: bool
    """whether ``advance_together`` computed it; first bit of the log's column batched."""
    reward: float
    knobs: Knobs
    driven: bool = False
    """whether an agent of the server chose the knobs; second bit of that column."""


class NewEpisode(NamedTuple):
    """Record: a session begins an episode; a new session is created."""

    session: str
    episode: int
    name: str
    spec: str


class NewStep(NamedTuple):
    """Record: window ``number`` of a session's current episode."""

    session: str
    episode: int
    number: int
    step: LoggedStep


class NewNote(NamedTuple):
    """Record: a text under a key; ``clock`` is the log's own key."""

    key: str
    text: str


Record = NewEpisode | NewStep | NewNote


class LoggedDecision(NamedTuple):
    """An agent of the server takes the knobs over, or gives its reason for them."""

    driver: str
    """name of the agent, or ``language_model``."""
    reason: str | None = None


def decision_key(episode: int, number: int) -> str:
    """Key of the note that holds the decision before window ``number``; keys sort by window."""
    return f"{_DECISIONS} {episode:020d} {number:06d}"


def read_decisions(episode: int, notes: Iterable[tuple[str, str]]) -> dict[int, LoggedDecision]:
    """The decisions of an episode among notes, by the number of the window that each precedes."""
    own = decision_key(episode, 0)[:-6]
    return {
        int(key[-6:]): LoggedDecision(**json.loads(text))
        for key, text in notes
        if key.startswith(own)
    }


class MovedSession(Exception):
    """Another process has moved a session since it was read; nothing was written."""


class Store:
    """The log, for use by one thread."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, problem: str | None = None
    ) -> None:
        """Use ``open_store``. ``problem`` says why the log cannot be written, or is in memory."""
        self.path = path
        self._connection = connection
        self._problem = problem
        self._only_read = problem is not None and not self.in_memory
        self._watch = FileWatch(path, connection)
        self._tried = time.monotonic()
        # The log's clock continues from its last entry or note. Changes of the wall clock do not
        # move it, and it stands still while no server runs.
        (latest,) = connection.execute(
            "SELECT max(touched) FROM (SELECT touched FROM sessions"
            " UNION ALL SELECT CAST(value AS REAL) FROM notes WHERE key = 'clock')"
        ).fetchone()
        self._clock_offset = (latest or 0.0) - time.monotonic()
        # Heads that this process has written or read; valid until another process writes.
        self._known: dict[str, Head] = {}
        self._newest: int | None = None
        """Row of the newest step; None if it has to be read."""
        self._known_at = data_version(self._connection)

    @property
    def in_memory(self) -> bool:
        """Whether the log ends with the process."""
        return self.path == IN_MEMORY

    def now(self) -> float:
        """Seconds on the log's own clock."""
        return self._clock_offset + time.monotonic()

    def heads(self, sessions: Sequence[str]) -> dict[str, Head]:
        """Heads of the sessions that exist."""
        with _readable():
            version = data_version(self._connection)
            if version != self._known_at or len(self._known) > _KNOWN:
                self._forget()
                self._known_at = version
            known = self._known
            unknown = [session for session in sessions if session not in known]
            for first in range(0, len(unknown), _ASKED_AT_ONCE):
                asked = unknown[first : first + _ASKED_AT_ONCE]
                marks = ", ".join("?" * len(asked))
                rows = self._connection.execute(
                    f"SELECT id, episode, steps, touched, last FROM sessions WHERE id IN ({marks})",
                    asked,
                )
                known.update((session, Head(*rest)) for session, *rest in rows)
        return {session: known[session] for session in sessions if session in known}

    def note(self, key: str) -> str | None:
        """The text kept under a key."""
        with _readable():
            row = self._connection.execute(
                "SELECT value FROM notes WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else row[0]

    def episode(self, episode: int) -> tuple[str, str]:
        """An episode's name, which its client chose, and its specification."""
        with _readable():
            row = self._connection.execute(
                "SELECT name, spec FROM episodes WHERE id = ?", (episode,)
            ).fetchone()
        if row is None:
            raise StorageFailure(f"the session log has lost episode {episode}")
        return row

    def steps(self, session: str, episode: int, first: int = 0) -> list[LoggedStep]:
        """The windows of a session's episode from number ``first`` on."""
        with _readable():
            rows = self._connection.execute(_EPISODE_STEPS, (session, episode, first)).fetchall()
        return [
            LoggedStep(bool(how & 1), reward, tuple(knobs), bool(how & 2))
            for how, reward, *knobs in rows
        ]

    def decisions(self, episode: int) -> dict[int, LoggedDecision]:
        """See ``read_decisions``; of the notes in the log."""
        span = (decision_key(episode, 0), decision_key(episode + 1, 0))
        with _readable():
            rows = self._connection.execute(
                "SELECT key, value FROM notes WHERE key >= ? AND key < ?", span
            ).fetchall()
        return read_decisions(episode, rows)

    def commit(self, records: Sequence[Record]) -> None:
        """Writes all records or none.

        Raises:
          MovedSession: a session has other windows than its record says.
          StorageFailure: the file cannot be written.
        """
        if not records:
            return
        now = self.now()
        try:
            self._open_for_writing()
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._watch.note_sizes()
                heads, newest = self._write(records, now)
        except (sqlite3.Error, OSError) as error:
            self._fails(str(error))
            raise StorageFailure(
                f"the session log cannot be written ({error}); nothing was changed"
            ) from None
        self._works()
        self._known.update(heads)
        self._newest = newest

    def fault(self) -> str | None:
        """Why acknowledged windows would not outlive the process; None if they would, or if the log
        is in memory by choice. Tries to write, at most once a second."""
        gone = self._watch.fault()
        if gone is not None or self.in_memory:
            return gone or self._problem
        if time.monotonic() - self._tried >= _PROBE_S:
            self.try_writing()
        return self._problem

    def try_writing(self) -> None:
        """Writes a note, to find out whether the log can be written."""
        try:
            self._open_for_writing()
            self._tried = time.monotonic()
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._watch.note_sizes()
                self._connection.execute(_NOTE_CLOCK, (self.now(),))
        except (sqlite3.Error, OSError) as error:
            self._fails(str(error))
        else:
            self._works()

    def _open_for_writing(self) -> None:
        """Raises OSError if the file is no longer the log, or has no room."""
        if gone := self._watch.fault():
            # A file that is back is tried at once: the check costs microseconds.
            self._tried = -math.inf
            raise OSError(gone)
        if not self._only_read:
            return
        if time.monotonic() - self._tried < _PROBE_S:
            raise OSError(self._problem)
        self._tried = time.monotonic()
        # An open reader may block the writer.
        self.close()
        try:
            self._connection, self._only_read = connect_to_write(self.path), False
        except sqlite3.Error:
            self._connection = connect_to_read(self.path)
            raise
        finally:
            self._watch = FileWatch(self.path, self._connection)
            self._forget()
        self._known_at = data_version(self._connection)

    def _works(self) -> None:
        if self._problem is not None and not self.in_memory:
            _LOG.warning("session log %s can be written again", self.path)
            self._problem = None
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _fails(self, problem: str) -> None:
        if self._problem is None:
            _LOG.warning("session log %s cannot be written (%s)", self.path, problem)
            # All requests wait meanwhile, so only one commit waits that long.
            self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_AGAIN_MS}")
        self._problem = problem

    def _write(self, records: Sequence[Record], now: float) -> tuple[dict[str, Head], int]:
        """Writes within a transaction; returns new heads, and the row of the newest step."""
        notes = [record for record in records if isinstance(record, NewNote)]
        moves = [record for record in records if not isinstance(record, NewNote)]
        heads = self.heads([*{record.session: None for record in moves}])
        newest = self._newest
        if newest is None:
            (newest,) = self._connection.execute(_NEWEST_STEP).fetchone()
        episodes, steps = [], []
        for record in moves:
            session = record.session
            head = heads.get(session)
            if isinstance(record, NewStep):
                if head is None or head[:2] != (record.episode, record.number):
                    raise MovedSession(f"window {record.number} of session {session!r}")
                newest += 1
                together, reward, knobs, driven = record.step
                how = together | driven << 1
                steps.append(
                    (newest, head.last, record.episode, record.number, how, reward, *knobs)
                )
                heads[session] = Head(record.episode, record.number + 1, now, newest)
            else:
                episodes.append((record.episode, session, record.name, record.spec))
                heads[session] = Head(record.episode, 0, now, 0 if head is None else head.last)
        moved = [(session, *head) for session, head in heads.items()]
        for statement, rows in (
            (_NEW_EPISODE, episodes),
            (_NEW_STEP, steps),
            (_MOVE_SESSION, moved),
            (_KEEP_NOTE, notes),
        ):
            if rows:
                self._connection.executemany(statement, rows)
        return heads, newest

    def expire(self, idle_s: float) -> int:
        """Deletes the episodes of sessions unused for ``idle_s``; returns the number of sessions.

        Also writes the clock's note, from which a later process sets its clock.
        """
        now = self.now()
        before = now - idle_s
        old = "SELECT id FROM sessions WHERE episode != 0 AND touched < ?"
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._watch.note_sizes()
            self._forget()
            self._connection.execute(_NOTE_CLOCK, (now,))
            self._connection.execute(_DELETE_CHAINS.format(old=old), (before,))
            # Before the episodes, by which they are found.
            self._connection.execute(
                f"DELETE FROM notes WHERE key GLOB '{_DECISIONS} *'"
                " AND CAST(substr(key, ?, 20) AS INTEGER)"
                f" IN (SELECT id FROM episodes WHERE session IN ({old}))",
                (len(_DECISIONS) + 2, before),
            )
            self._connection.execute(f"DELETE FROM episodes WHERE session IN ({old})", (before,))
            self._connection.execute(
                f"DELETE FROM notes WHERE key LIKE 'default_session%' AND value IN ({old})",
                (before,),
            )
            self._connection.execute(
                f"DELETE FROM notes WHERE key IN (SELECT '{REQUEST_OF}' || id FROM ({old}))",
                (before,),
            )
            expired = self._connection.execute(
                f"UPDATE sessions SET episode = 0, steps = 0, last = 0 WHERE id IN ({old})",
                (before,),
            ).rowcount
        return expired

    def _forget(self) -> None:
        """Drops the cache of heads."""
        self._known.clear()
        self._newest = None

    def close(self) -> None:
        """Folds the write-ahead log into the file."""
        self._connection.close()
        self._watch.close()


def open_store(path: str) -> Store:
    """Opens or creates a log.

    A file that is no session log, is damaged or has another schema version is renamed, and a new
    log begins. A log that cannot be written is read until it can. If there is no file and none can
    be created, the log is in memory. A warning is logged in each case.

    Raises:
      InputError: the file can be neither written nor read.
    """
    if path == IN_MEMORY:
        return Store(path, connect_to_write(path))
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # No process may rename a log that another has just created.
        with FileLock(f"{path}.lock"):
            store = Store(path, open_or_set_aside(path))
        store.try_writing()
        return store
    except sqlite3.Error as error:
        reason = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    if Path(path).is_file() and Path(path).stat().st_size:
        _LOG.warning(
            "session log %s cannot be written (%s): sessions can be read, and steps are refused "
            "until it can",
            path,
            reason,
        )
        try:
            return Store(path, connect_to_read(path), reason)
        except sqlite3.Error as error:
            raise InputError(
                f"the session log {path} can be neither written ({reason}) nor read ({error}); "
                "make room for it, or name another file by JAXSERVE_DATABASE"
            ) from None
    _LOG.warning(
        "session log %s cannot be written (%s): sessions are in memory and end with the server",
        path,
        reason,
    )
    why = f"the session log cannot be written ({reason}), so that sessions are in memory"
    return Store(IN_MEMORY, connect_to_write(IN_MEMORY), why)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageFailure(f"the session log cannot be read ({error})") from None
