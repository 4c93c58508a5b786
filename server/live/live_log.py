"""The log of live episodes and spent tokens: a SQLite file beside the session log.

A log that cannot be read keeps the server from starting: a new one would forget the spending.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from jaxserve.errors import InputError
from jaxserve.runtime.storage import connect
from server.request_errors import SpendingLimit, StorageFailure
from server.sessions.log_file import FileWatch, give_mark
from server.sessions.programs import Knobs, Window

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS spending (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  tokens INTEGER NOT NULL
);
INSERT OR IGNORE INTO spending VALUES (1, 0);
CREATE TABLE IF NOT EXISTS episodes (
  id INTEGER PRIMARY KEY,
  session TEXT NOT NULL,
  name TEXT NOT NULL,         -- the client's episode_id
  spec TEXT NOT NULL,         -- Episode.to_json()
  is_default INTEGER NOT NULL -- 0; in earlier versions 1 for a session begun without an id
);
CREATE INDEX IF NOT EXISTS episodes_of_session ON episodes (session);
CREATE TABLE IF NOT EXISTS windows (
  episode INTEGER NOT NULL,
  number INTEGER NOT NULL,
  knobs TEXT NOT NULL,        -- JSON list
  shown TEXT NOT NULL,        -- JSON of what was measured
  about TEXT NOT NULL,        -- JSON of what was sent, and what became of the knobs
  PRIMARY KEY (episode, number)
) WITHOUT ROWID;
"""


class LiveStep(NamedTuple):
    """An acknowledged window."""

    knobs: Knobs
    window: Window
    about: dict[str, Any]


class LoggedEpisode(NamedTuple):
    """An episode of the log."""

    number: int
    session: str
    name: str
    spec: str


class LiveLog:
    """The log, for one thread of one process."""

    def __init__(self, database: Path, token_limit: int) -> None:
        """Opens or creates the log.

        Args:
          database: path of the session log, whose folder also holds this log.
          token_limit: tokens that may ever be spent.

        Raises:
          InputError: the file cannot be used, or another server uses it.
        """
        self.path = database.with_name(f"{database.name}.live")
        self.token_limit = token_limit
        self._lock = FileLock(f"{self.path}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            # A booking must survive a power cut: the tokens are spent right after.
            self._connection = connect(self.path, _SCHEMA, _SCHEMA_VERSION, synchronous="FULL")
            give_mark(self._connection)
        except Timeout:
            raise InputError(
                f"the live log {self.path} is in use; one server at a time plays live"
            ) from None
        except (OSError, sqlite3.Error) as error:
            self._lock.release()
            raise InputError(
                f"the live log {self.path} cannot be used ({error}); it says what was spent, so no "
                "new one is begun"
            ) from None
        self._watch = FileWatch(str(self.path), self._connection, "the live log")
        self.spent: int = self._read_spent()
        """tokens spent by this start and all earlier ones."""

    def fault(self) -> str | None:
        """Why writes would be lost now; None if they would not."""
        return self._watch.fault()

    def spend(self, tokens: int) -> None:
        """Books tokens before they are sent.

        Raises:
          SpendingLimit: too few tokens are left; nothing is booked.
          StorageFailure: the log cannot be written.
        """
        with self._written():
            booked = self._connection.execute(
                "UPDATE spending SET tokens = tokens + ? WHERE tokens + ? <= ?",
                (tokens, tokens, self.token_limit),
            ).rowcount
        self.spent = self._read_spent()
        if not booked:
            raise SpendingLimit(
                f"up to {tokens:,} tokens would be spent, and {self.spent:,} of at most "
                f"{self.token_limit:,} are; nothing was sent"
            )

    def adjust(self, tokens: int) -> None:
        """Adds tokens that an engine counted beyond the booked ones; a negative number gives booked
        ones back that were not used.

        Raises:
          StorageFailure: the log cannot be written.
        """
        with self._written():
            self._connection.execute("UPDATE spending SET tokens = tokens + ?", (tokens,))
        self.spent = self._read_spent()

    def begin(self, session: str, name: str, spec: str) -> LoggedEpisode:
        """Adds an episode.

        Raises:
          StorageFailure: the log cannot be written.
        """
        with self._written():
            cursor = self._connection.execute(
                "INSERT INTO episodes (session, name, spec, is_default) VALUES (?, ?, ?, 0)",
                (session, name, spec),
            )
        assert cursor.lastrowid is not None
        return LoggedEpisode(cursor.lastrowid, session, name, spec)

    def add(self, episode: int, number: int, step: LiveStep) -> None:
        """Adds a window.

        Raises:
          StorageFailure: the log cannot be written.
        """
        row = (
            episode,
            number,
            json.dumps(step.knobs),
            json.dumps(step.window._asdict(), allow_nan=False),
            json.dumps(step.about, allow_nan=False),
        )
        with self._written():
            self._connection.execute("INSERT INTO windows VALUES (?, ?, ?, ?, ?)", row)

    def episode(self, session: str) -> LoggedEpisode | None:
        """The last episode of a session."""
        with _usable():
            row = self._connection.execute(
                "SELECT id, session, name, spec FROM episodes WHERE session = ? ORDER BY id DESC",
                (session,),
            ).fetchone()
        return None if row is None else LoggedEpisode(*row)

    def windows(self, episode: int) -> list[LiveStep]:
        """All windows of an episode."""
        with _usable():
            rows = self._connection.execute(
                "SELECT knobs, shown, about FROM windows WHERE episode = ? ORDER BY number",
                (episode,),
            ).fetchall()
        return [
            LiveStep(tuple(json.loads(knobs)), Window(**json.loads(shown)), json.loads(about))
            for knobs, shown, about in rows
        ]

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Checks the file before a write, and notes its size afterwards."""
        if gone := self._watch.fault():
            raise StorageFailure(f"the live log cannot be used: {gone}")
        with _usable():
            yield
        self._watch.note_sizes()

    def _read_spent(self) -> int:
        with _usable():
            return self._connection.execute("SELECT tokens FROM spending").fetchone()[0]

    def close(self) -> None:
        """Closes the log, which another server may open then."""
        self._connection.close()
        self._watch.close()
        self._lock.release()


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        raise StorageFailure(f"the live log cannot be used ({error})") from None
