"""Keys of sessions that ended elsewhere than on their node, in the state's file: they stay open at
the gateway that the node used until somebody closes them."""

from __future__ import annotations

import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS open_keys (
  recorded TEXT NOT NULL,  -- the gateway's session
  control TEXT NOT NULL,   -- door of that gateway
  PRIMARY KEY (recorded, control)
)
"""
"""Beside the state's schema: files of before get it as well."""


class OpenKeys:
    """The table; a part of the transactions of its connection."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        """Begins it where there is none."""
        self._sql = sql
        sql.execute(_SCHEMA)

    def note(self, recorded: str, node: str) -> None:
        """The key of a gateway's session may be open at the gateway of a node."""
        self._sql.execute(
            "INSERT OR IGNORE INTO open_keys SELECT ?, json_extract(about, '$.control')"
            " FROM nodes WHERE id = ?",
            (recorded, node),
        )

    def all(self) -> list[tuple[str, str]]:
        """Gateways' sessions, and the doors to close them at."""
        return self._sql.execute("SELECT recorded, control FROM open_keys").fetchall()

    def closed(self, recorded: str, control: str) -> None:
        """One is."""
        self._sql.execute(
            "DELETE FROM open_keys WHERE recorded = ? AND control = ?", (recorded, control)
        )
