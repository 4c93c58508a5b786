"""The SQLite file of the session log: its tables, connections to it, and harm done to it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
from pathlib import Path

from jaxserve.runtime.storage import connect
from jaxserve.spaces import KNOBS

_LOG = logging.getLogger("jaxserve.server")
_SCHEMA_VERSION = 3
_UPGRADES = {2: "ALTER TABLE steps ADD COLUMN replicas REAL NOT NULL DEFAULT 0;"}
"""Statements by earlier version of a log; until version 2 there were no replicas to want."""
BUSY_MS = 2000
"""Milliseconds that a commit waits for other processes."""
_MARK_AT, _MARK_BYTES = 68, 4
"""Place of ``application_id`` in the header of a SQLite file."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sessions (
  id TEXT PRIMARY KEY,
  episode INTEGER NOT NULL,  -- its current one; 0 once the session has expired
  steps INTEGER NOT NULL,    -- windows of that episode
  touched REAL NOT NULL,     -- when it was last written to, on the log's own clock
  last INTEGER NOT NULL      -- its newest row of steps, of whichever episode; 0: none
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
  id INTEGER PRIMARY KEY,
  session TEXT NOT NULL,
  name TEXT NOT NULL,        -- the client's episode_id
  spec TEXT NOT NULL         -- Episode.to_json()
);
CREATE INDEX IF NOT EXISTS episodes_of_session ON episodes (session);
-- Only ever added to at its end, so that windows of many sessions are few pages to write: an index
-- by session would have one for each. A session's rows are found from its last one backwards.
CREATE TABLE IF NOT EXISTS steps (
  id INTEGER PRIMARY KEY,
  previous INTEGER NOT NULL, -- the session's row before this one; 0: none
  episode INTEGER NOT NULL,
  number INTEGER NOT NULL,
  batched INTEGER NOT NULL,  -- 1: together with others, by advance_together; logs keep the name
                             -- 2: by an agent of the server's own; 3: both
  reward REAL NOT NULL,
  {", ".join(f"{knob} REAL NOT NULL" for knob in KNOBS)}
);
CREATE TABLE IF NOT EXISTS notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def open_or_set_aside(path: str) -> sqlite3.Connection:
    """A connection to a log that can be written; a file that is no log is set aside first.

    Raises:
      sqlite3.OperationalError: the file is busy or cannot be written.
    """
    try:
        return connect_to_write(path)
    except sqlite3.OperationalError:
        # Busy or not writable, not damaged.
        raise
    except sqlite3.DatabaseError as error:
        _set_aside(Path(path), str(error))
        return connect_to_write(path)


def connect_to_write(path: str) -> sqlite3.Connection:
    """A connection to a log, which is created if there is none.

    Raises:
      sqlite3.Error: the file cannot be written, or is no log.
    """
    connection = connect(
        path, _SCHEMA, _SCHEMA_VERSION, synchronous="NORMAL", check=True, upgrades=_UPGRADES
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    give_mark(connection)
    return connection


def connect_to_read(path: str) -> sqlite3.Connection:
    """A connection to a log in a folder where no file can be created.

    Raises:
      sqlite3.Error: the file cannot be read either.
    """
    # The -wal file is read without its shared index, for which there is no room. Without a -wal
    # file nobody writes, and the log is read as it is.
    waiting = Path(f"{path}-wal")
    written = waiting.is_file() and waiting.stat().st_size > 0
    mode = "mode=rw" if written else "immutable=1"
    connection = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    if written:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("SELECT count(*) FROM sessions").fetchone()
    return connection


def _set_aside(file: Path, reason: str) -> None:
    number = 1
    while (kept := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    os.replace(file, kept)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{file}{suffix}", f"{kept}{suffix}")
    _LOG.warning(
        "session log %s cannot be used (%s): it is kept as %s and a new one begins",
        file,
        reason,
        kept,
    )


def give_mark(connection: sqlite3.Connection) -> None:
    """Gives a database a random ``application_id``, unless it has one: a copy of another database
    in its place has another. A file that cannot be written now gets its mark at a later start."""
    with contextlib.suppress(sqlite3.OperationalError):
        if _mark(connection):
            return
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have been first.
            if not _mark(connection):
                mark = 1 + secrets.randbelow(2**31 - 1)
                connection.execute(f"PRAGMA application_id = {mark}")
        # Writes the mark into the file itself, and frees the -wal file.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _mark(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA application_id").fetchone()[0]


class FileWatch:
    """Notices that the files of an open SQLite database were removed, replaced, truncated or
    written over. SQLite itself does not, and goes on writing to a file that is lost.

    A file is known by device and inode. The database never shrinks, since freed pages are kept. Its
    -wal file shrinks only in a checkpoint, which changes ``PRAGMA data_version`` of all other
    connections. Another database that was copied into the file has another mark, see ``give_mark``.

    Begin the watch while the database is open, and close it later than the database: closing any
    descriptor of a file drops all locks of the process on it.
    """

    def __init__(
        self, path: str, connection: sqlite3.Connection, name: str = "the session log"
    ) -> None:
        """Args: path, open connection and name of the database."""
        self._name, self._connection = name, connection
        self._paths = {name: path, f"{name}'s -wal file": f"{path}-wal"}
        self._files = {
            each: _identity(os.stat(file))
            for each, file in self._paths.items()
            if os.path.exists(file)
        }
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if self._files else -1
        self._mark = self._read_mark()
        self._sizes = dict.fromkeys(self._files, 0)
        self._version = 0
        self._written_over = False

    def note_sizes(self) -> None:
        """Remembers how large the files are. Call it while the database is locked for writing: no
        other process is then between changing the data version and truncating the -wal file."""
        for name in self._files:
            with contextlib.suppress(OSError):
                self._sizes[name] = os.stat(self._paths[name]).st_size
        self._version = data_version(self._connection)

    def fault(self) -> str | None:
        """The fault, as a sentence without its full stop; None if there is none. Takes
        microseconds."""
        found = {}
        for name, identity in self._files.items():
            try:
                found[name] = os.stat(self._paths[name])
            except OSError:
                return f"{name} was removed while the server ran"
            if _identity(found[name]) != identity:
                return f"{name} was replaced by another file while the server ran"
        mark = self._read_mark()
        # A log of an earlier version has no mark before its first checkpoint.
        self._mark = self._mark if any(self._mark) else mark
        for name, now in found.items():
            own = name == self._name
            if now.st_size < self._sizes[name] and (own or not self._others_wrote()):
                return f"{name} was truncated while the server ran"
        self._written_over |= mark != self._mark
        return f"{self._name} was written over while the server ran" if self._written_over else None

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._files, self._descriptor = {}, -1

    def _read_mark(self) -> bytes:
        return os.pread(self._descriptor, _MARK_BYTES, _MARK_AT) if self._descriptor >= 0 else b""

    def _others_wrote(self) -> bool:
        """Whether another connection has written since ``note_sizes``."""
        try:
            return data_version(self._connection) != self._version
        except sqlite3.Error:
            return False


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection writes to the database."""
    return connection.execute("PRAGMA data_version").fetchone()[0]
