"""Keys of sessions that ended elsewhere than on their node, in the state's file: they stay open at
the gateway that the node used until somebody closes them."""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lost_keys (
  recorded TEXT NOT NULL,
  control TEXT NOT NULL,
  made INTEGER NOT NULL,
  since REAL NOT NULL,
  PRIMARY KEY (recorded, control)
)
"""
"""Beside the state's schema: files of before get it as well."""


class OpenKey(NamedTuple):
    """One that may be open."""

    recorded: str
    """the gateway's session that it is of."""
    control: str
    """door of that gateway."""
    made: bool
    """whether there was one for certain; else its session was only about to begin."""
    since: float
    """when it was noted, s since 1970."""


class OpenKeys:
    """The table; a part of the transactions of its connection."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        """Begins it where there is none."""
        self._sql = sql
        sql.execute(_SCHEMA)

    def note(self, recorded: str, node: str, *, made: bool) -> None:
        """The key of a gateway's session may be open at the gateway of a node.

        Args:
          made: whether there was one for certain.
        """
        self._sql.execute(
            "INSERT OR IGNORE INTO lost_keys SELECT ?, json_extract(about, '$.control'), ?, ?"
            " FROM nodes WHERE id = ?",
            (recorded, made, time.time(), node),
        )

    def all(self) -> list[OpenKey]:
        """Every one."""
        rows = self._sql.execute("SELECT recorded, control, made, since FROM lost_keys")
        return [OpenKey(recorded, at, bool(made), since) for recorded, at, made, since in rows]

    def forget(self, key: OpenKey) -> None:
        """One is closed, or given up."""
        self._sql.execute(
            "DELETE FROM lost_keys WHERE recorded = ? AND control = ?", (key.recorded, key.control)
        )
