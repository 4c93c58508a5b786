"""Data of programs on disk: the state folder, locked files, SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

_BUSY_S = 10.0


def state_folder(variables: Mapping[str, str]) -> Path | None:
    """``jaxserve`` in the user's state directory; None where the user has no home.

    Args:
      variables: the environment; ``XDG_STATE_HOME`` names the directory where it is set.
    """
    named = variables.get("XDG_STATE_HOME")
    if named:
        return Path(named) / "jaxserve"
    try:
        folder = platformdirs.user_state_path("jaxserve", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # earlier platformdirs keep ~ without a home


def lock_file(path: Path) -> FileLock | None:
    """Locks a file against other processes until the lock is released, or the process ends.

    Returns:
      the lock, which a reference must keep alive; None where another process has it.

    Raises:
      OSError: the file cannot be opened.
    """
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def connect(
    path: Path | str,
    schema: str,
    version: int,
    synchronous: str,
    check: bool = False,
    upgrades: Mapping[int, str] | None = None,
) -> sqlite3.Connection:
    """Opens or creates a SQLite file in WAL mode, for several threads that take turns.

    Args:
      schema: statements that create the tables of a new file and leave an existing one alone.
      version: version of the schema.
      synchronous: SQLite's pragma: the writes that survive a power cut.
      check: whether SQLite's quick check of the file's structure runs.
      upgrades: statements by earlier version that make a file of it one of ``version``.

    Raises:
      sqlite3.Error: the file cannot be used, is damaged, or has another version.
    """
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        # Nothing is written, the mode included, before the file is known to be the program's own.
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        upgrades = {0: schema, **(upgrades or {})}
        if found != version and found not in upgrades:
            raise sqlite3.DatabaseError(f"it has schema version {found}, not {version}")
        if check:
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        # The version is written last: a file that has one has all tables, and can be read even
        # from a full disk.
        if found != version:
            connection.executescript(f"BEGIN IMMEDIATE; {upgrades[found]} COMMIT;")
            connection.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        connection.close()
        raise
    return connection
