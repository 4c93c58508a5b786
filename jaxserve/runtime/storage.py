"""Data of programs on disk: the state folder, locked files, SQLite files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

_BUSY_S = 10.0


def state_folder(variables: Mapping[str, str]) -> Path | None:
    """``jaxserve`` in the user's state directory; None if the user has no home.

    Args:
      variables: the environment; ``XDG_STATE_HOME`` names the directory if it is set.
    """
    base = variables.get("XDG_STATE_HOME")
    try:
        state = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "jaxserve"


def locked_file(path: Path) -> int | None:
    """Locks a file until its descriptor is closed or this process ends.

    Returns:
      The descriptor; None if another process holds the lock.

    Raises:
      OSError: the file cannot be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl
    except ImportError:  # Windows has no flock: the file stays unlocked
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def connect(
    path: Path | str, schema: str, version: int, synchronous: str, check: bool = False
) -> sqlite3.Connection:
    """Opens or creates a SQLite file in WAL mode, for several threads that take turns.

    Args:
      schema: statements that create the tables of a new file and leave an existing one alone.
      version: version of the schema.
      synchronous: SQLite's pragma: the writes that survive a power cut.
      check: whether SQLite's quick check of the file's structure runs.

    Raises:
      sqlite3.Error: the file cannot be used, is damaged, or has another version.
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
        # The version is written last: a file that has one has all tables, and can be read even
        # from a full disk.
        if found != version:
            connection.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")
            connection.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        connection.close()
        raise
    return connection
