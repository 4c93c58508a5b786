"""The file of the session log: its tables, and connections to a file in whatever state it is."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path

from jaxserve.runtime.storage import connect
from jaxserve.spaces import KNOBS
from server.sessions.file_watch import give_mark

_LOG = logging.getLogger("jaxserve.server")
_SCHEMA_VERSION = 2
BUSY_MS = 2000
"""How long a commit waits for other processes."""
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
    """A connection to a log that can be written, an empty one if what is there is no log.

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
    """A connection to a log, which is begun where there is none.

    Raises:
      sqlite3.Error: it cannot be written, or is none.
    """
    connection = connect(path, _SCHEMA, _SCHEMA_VERSION, synchronous="NORMAL", check=True)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    give_mark(connection)
    return connection


def connect_to_read(path: str) -> sqlite3.Connection:
    """A connection to a log beside which no file can be begun.

    Raises:
      sqlite3.Error: it cannot be read either.
    """
    # What the -wal file has is read without the shared index of it, for which there is no room;
    # where there is no -wal file nobody writes, and the log is read as it is.
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
