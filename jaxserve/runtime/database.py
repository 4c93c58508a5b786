"""A SQLite file with a schema of its own, opened or begun."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_BUSY_S = 10.0


def connect(
    path: Path | str, schema: str, version: int, synchronous: str, check: bool = False
) -> sqlite3.Connection:
    """Opens a file in WAL mode, for several threads that take turns.

    Args:
      schema: statements that begin a new file and change nothing in one that is there.
      version: of the schema.
      synchronous: SQLite's pragma: what outlives a power cut.
      check: whether the file's structure is looked through.

    Raises:
      sqlite3.Error: it cannot be used, is damaged, or has another version.
    """
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, version):
            raise sqlite3.DatabaseError(f"it has schema version {found}, not {version}")
        if check:
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
        # The version is written last: where it is, all is, and a full disk can still be read.
        if found != version:
            connection.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")
            connection.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        connection.close()
        raise
    return connection
