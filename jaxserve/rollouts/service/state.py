"""Tasks and sessions in one SQLite file. Whatever is killed when, each ends once.

A session is moved on by a transaction that does nothing to one that has ended, and its result is
written by the transaction that ends it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from jaxserve.errors import InputError
from jaxserve.rollouts.traces import COMPLETED, ERROR, TIMEOUT
from jaxserve.runtime.database import connect
from jaxserve.runtime.state import locked_file

REGISTERED = "REGISTERED"
INITIALIZING = "INITIALIZING"
READY = "READY"
RUNNING = "RUNNING"
POST_RUN = "POST_RUN"
BUILDING = "BUILDING"
EVALUATING = "EVALUATING"
ENDED = (COMPLETED, ERROR, TIMEOUT)
"""States that a session does not leave."""
AFTER_RUN = (POST_RUN, BUILDING, EVALUATING)
"""States in which all that the agent did is there."""
STATES = (REGISTERED, INITIALIZING, READY, RUNNING, *AFTER_RUN, *ENDED)
CANCELLED = "cancelled"

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
  id TEXT PRIMARY KEY,
  spec TEXT NOT NULL,
  submitted REAL NOT NULL,      -- s since 1970
  callback TEXT,                -- NULL: none; due, sent or given up
  pushes INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sessions (
  id TEXT PRIMARY KEY,
  task TEXT NOT NULL,
  sample INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0,  -- times that it began
  state TEXT NOT NULL,
  since REAL NOT NULL,                 -- when it came to be in this state
  reason TEXT NOT NULL DEFAULT '',
  episode TEXT,                        -- of the environment, JSON
  run TEXT,                            -- how the agent ended, JSON
  result TEXT                          -- JSON, of an ended one
);
CREATE INDEX IF NOT EXISTS sessions_of_task ON sessions (task, sample);
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  task TEXT NOT NULL,
  session TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class SessionRow:
    """Where a session stands."""

    id: str
    """``TASK.SAMPLE``."""
    task: str
    """its task's name."""
    sample: int
    """its number in the task, from 0."""
    attempt: int
    """how often it began."""
    state: str
    """one of ``STATES``."""
    since: float
    """when it came to be in this state, s since 1970."""
    reason: str
    """of an end that is not COMPLETED."""
    episode: Any
    """of the environment, as JSON; None where none was begun."""
    run: Any
    """how the agent ended, as JSON; None before."""
    result: Any
    """of an ended one, as JSON."""


class State:
    """The file, for use by one thread."""

    def __init__(self, path: Path) -> None:
        """Opens or begins it.

        Raises:
          InputError: it cannot be used.
        """
        where = f"--save-dir is {path.parent}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = locked_file(path.parent / ".lock")
            if lock is None:
                raise InputError(f"{where}; it must be free, and another service has it")
            self._lock = lock
            self._sql = connect(path, _SCHEMA, _VERSION, "FULL", check=True)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{where}; its state cannot be used: {error}") from None

    def close(self) -> None:
        """Lets go of the file."""
        self._sql.close()
        os.close(self._lock)

    def submit(self, id: str, spec: Mapping[str, Any], samples: int, callback: bool) -> bool:
        """Keeps a new task; False where this very task is there already.

        Raises:
          InputError: another task has the name.
        """
        text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS).decode()
        with _Transaction(self._sql):
            held = self._sql.execute("SELECT spec FROM tasks WHERE id = ?", (id,)).fetchone()
            if held is not None:
                if held[0] != text:
                    raise InputError(f"task_id is {id!r}; it must be new, and another task has it")
                return False
            now = time.time()
            self._sql.execute(
                "INSERT INTO tasks (id, spec, submitted, callback) VALUES (?, ?, ?, ?)",
                (id, text, now, "due" if callback else None),
            )
            for sample in range(samples):
                session = f"{id}.{sample}"
                self._sql.execute(
                    "INSERT INTO sessions (id, task, sample, state, since) VALUES (?, ?, ?, ?, ?)",
                    (session, id, sample, REGISTERED, now),
                )
                self._note(now, id, session, REGISTERED, "")
        return True

    def move(self, session: str, state: str, reason: str = "", **values: Any) -> bool:
        """Brings a session to a state; False where it has ended, and nothing is changed.

        Args:
          values: other columns to set: ``attempt``, ``episode``, ``run``, ``result``.
        """
        now = time.time()
        columns = {
            name: value if name == "attempt" else orjson.dumps(value).decode()
            for name, value in values.items()
        }
        sets = "".join(f", {name} = ?" for name in columns)
        with _Transaction(self._sql):
            moved = self._sql.execute(
                f"UPDATE sessions SET state = ?, since = ?, reason = ?{sets}"
                f" WHERE id = ? AND state NOT IN {ENDED} RETURNING task",
                (state, now, reason, *columns.values(), session),
            ).fetchone()
            if moved is not None:
                self._note(now, moved[0], session, state, reason)
        return moved is not None

    def session(self, id: str) -> SessionRow:
        """One of them, which must be there."""
        return self._sessions("WHERE id = ?", (id,))[0]

    def sessions(self, task: str) -> list[SessionRow]:
        """Those of a task, by their samples."""
        return self._sessions("WHERE task = ? ORDER BY sample", (task,))

    def unfinished(self) -> list[SessionRow]:
        """All that have not ended, the oldest task first."""
        return self._sessions(
            f"JOIN tasks ON tasks.id = task WHERE state NOT IN {ENDED} ORDER BY submitted, sample"
        )

    def spec(self, task: str) -> Any:
        """A task as it was submitted; None where there is none."""
        row = self._sql.execute("SELECT spec FROM tasks WHERE id = ?", (task,)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def tasks(self) -> list[dict[str, Any]]:
        """All tasks, the oldest first, with how many of their sessions are in which state."""
        found: dict[str, dict[str, Any]] = {
            id: {"task_id": id, "submitted_unix_s": at, "callback": callback, "states": {}}
            for id, at, callback in self._sql.execute(
                "SELECT id, submitted, callback FROM tasks ORDER BY submitted, id"
            )
        }
        for task, state, count in self._sql.execute(
            "SELECT task, state, count(*) FROM sessions GROUP BY task, state"
        ):
            found[task]["states"][state] = count
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """How many sessions are in which state."""
        rows = self._sql.execute("SELECT state, count(*) FROM sessions GROUP BY state").fetchall()
        return {**dict.fromkeys(STATES, 0), **dict(rows)}

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """What happened, in order, after the event of a number."""
        names = ("seq", "at_unix_s", "task_id", "session_id", "state", "reason")
        rows = self._sql.execute(
            "SELECT seq, at, task, session, state, reason FROM events WHERE seq > ?"
            " ORDER BY seq LIMIT ?",
            (after, limit),
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def due(self) -> list[tuple[str, int]]:
        """Tasks that have ended and whose result is to be pushed, and how often that was tried."""
        return self._sql.execute(
            "SELECT id, pushes FROM tasks WHERE callback = 'due' AND NOT EXISTS"
            f" (SELECT 1 FROM sessions WHERE task = tasks.id AND state NOT IN {ENDED})"
        ).fetchall()

    def pushed(self, task: str, callback: str) -> None:
        """Notes a push: ``sent``, ``given up``, or ``due`` to be tried again."""
        self._sql.execute(
            "UPDATE tasks SET callback = ?, pushes = pushes + 1 WHERE id = ?", (callback, task)
        )

    def _sessions(self, where: str, values: tuple[Any, ...] = ()) -> list[SessionRow]:
        rows = self._sql.execute(
            "SELECT sessions.id, task, sample, attempt, state, since, reason, episode, run, result"
            f" FROM sessions {where}",
            values,
        )
        return [SessionRow(*row[:7], *map(_json, row[7:])) for row in rows]

    def _note(self, at: float, task: str, session: str, state: str, reason: str) -> None:
        self._sql.execute(
            "INSERT INTO events (at, task, session, state, reason) VALUES (?, ?, ?, ?, ?)",
            (at, task, session, state, reason),
        )


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


class _Transaction:
    """All of a block, or nothing."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def __enter__(self) -> None:
        self._sql.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *rest: object) -> None:
        self._sql.execute("COMMIT" if kind is None else "ROLLBACK")
