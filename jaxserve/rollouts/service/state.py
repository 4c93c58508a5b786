"""Tasks and sessions in one SQLite file. Whatever is killed when, each ends once.

A session is moved on by a transaction that does nothing to one that has ended, and its result is
written by the transaction that ends it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from jaxserve.errors import InputError
from jaxserve.rollouts.service.lifecycle import (
    AFTER_RUN,
    BEFORE_RUN,
    ENDED,
    INITIALIZING,
    REGISTERED,
    STATES,
    SessionRow,
)
from jaxserve.rollouts.service.open_keys import OpenKeys
from jaxserve.rollouts.traces import ERROR
from jaxserve.runtime.storage import connect, locked_file

CANCELLED = "cancelled"

_VERSION = 2
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
  node TEXT,                           -- that has it; NULL waits for one
  lease INTEGER NOT NULL DEFAULT 0,    -- times that a node was given it
  attempt INTEGER NOT NULL DEFAULT 0,  -- times that it began
  state TEXT NOT NULL,
  since REAL NOT NULL,                 -- when it came to be in this state
  reason TEXT NOT NULL DEFAULT '',
  episode TEXT,                        -- of the environment, JSON
  run TEXT,                            -- how the agent ended, JSON
  result TEXT                          -- JSON, of an ended one
);
CREATE INDEX IF NOT EXISTS sessions_of_task ON sessions (task, sample);
CREATE INDEX IF NOT EXISTS sessions_of_node ON sessions (node, state);
CREATE TABLE IF NOT EXISTS nodes (
  id TEXT PRIMARY KEY,
  start TEXT NOT NULL,          -- of its process
  about TEXT NOT NULL,          -- JSON, as it registered
  draining INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  task TEXT NOT NULL,
  session TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of_session ON events (session, seq);
"""


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
            self.keys = OpenKeys(self._sql)
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

    def move(
        self, session: str, state: str, reason: str = "", lease: int | None = None, **values: Any
    ) -> bool:
        """Brings a session to a state; False where it has ended, and nothing is changed.

        Args:
          lease: of the node that does it; False also where the session has another.
          values: other columns to set: ``attempt``, ``episode``, ``run``, ``result``.
        """
        with _Transaction(self._sql):
            return self._move(session, state, reason, lease, values)

    def _move(
        self, session: str, state: str, reason: str, lease: int | None, values: Mapping[str, Any]
    ) -> bool:
        """Inside a transaction."""
        now = time.time()
        columns = {
            name: value if name == "attempt" else orjson.dumps(value).decode()
            for name, value in values.items()
        }
        sets = "".join(f", {name} = ?" for name in columns)
        moved = self._sql.execute(
            f"UPDATE sessions SET state = ?, since = ?, reason = ?{sets}"
            f" WHERE id = ? AND state NOT IN {ENDED} AND lease = ifnull(?, lease)"
            " RETURNING task",
            (state, now, reason, *columns.values(), session, lease),
        ).fetchone()
        if moved is not None:
            self._note(now, moved[0], session, state, reason)
        return moved is not None

    def holds(self, session: str, lease: int) -> bool:
        """Whether a lease of a session that has not ended is the last one."""
        where = f"id = ? AND lease = ? AND state NOT IN {ENDED}"
        return self._one(f"SELECT 1 FROM sessions WHERE {where}", (session, lease)) is not None

    def give(self, session: str, node: str) -> None:
        """Gives a session that waits to a node."""
        self._sql.execute(
            "UPDATE sessions SET node = ?, lease = lease + 1"
            f" WHERE id = ? AND node IS NULL AND state NOT IN {ENDED}",
            (node, session),
        )

    def take_back(self, node: str, attempts: int, *, resumes: bool) -> None:
        """What a node had when it was lost: waits for another, or has begun often enough.

        Args:
          attempts: times that a session may begin.
          resumes: whether the node is there again, with the folders of agents that had ended.
        """
        later = "UPDATE sessions SET lease = lease + 1"
        for session in self.held_by(node):
            with _Transaction(self._sql):
                if resumes and session.state in AFTER_RUN:
                    self._sql.execute(f"{later} WHERE id = ?", (session.id,))
                    continue
                self._note_key(session)
                if session.attempt >= attempts and session.state not in BEFORE_RUN:
                    reason = f"its node was lost in each of {session.attempt} attempts"
                    self._move(session.id, ERROR, reason, None, {"result": session.no_result})
                    continue
                if session.state != REGISTERED:
                    self._move(session.id, REGISTERED, f"node {node} was lost", None, {})
                self._sql.execute(f"{later}, node = NULL, run = NULL WHERE id = ?", (session.id,))

    def cancel(self, task: str) -> list[str]:
        """Ends a task's sessions that have not ended, with the reason ``cancelled``; gives them."""
        cancelled = []
        with _Transaction(self._sql):
            for session in self.sessions(task):
                if self._move(session.id, ERROR, CANCELLED, None, {"result": session.no_result}):
                    # Its node closes it too, if that is alive.
                    self._note_key(session)
                    cancelled.append(session.id)
        return cancelled

    def _note_key(self, session: SessionRow) -> None:
        """Of a session that is not on its node any more; one that waits to begin has none."""
        if session.state != REGISTERED and session.node is not None:
            made = session.state != INITIALIZING
            self.keys.note(session.recorded, session.node, made=made)

    def held_by(self, node: str) -> list[SessionRow]:
        """Those of a node that have not ended."""
        return self._sessions(f"WHERE node = ? AND state NOT IN {ENDED} ORDER BY id", (node,))

    def waiting(self, most: int) -> list[tuple[str, str, float]]:
        """Sessions without a node, the oldest task first: their names, models, and since when."""
        return self._sql.execute(
            "SELECT sessions.id, ifnull(json_extract(spec, '$.agent.model'), 'default'), since"
            " FROM sessions JOIN tasks ON tasks.id = task"
            f" WHERE node IS NULL AND state NOT IN {ENDED} ORDER BY submitted, sample LIMIT ?",
            (most,),
        ).fetchall()

    def loads(self) -> dict[str, dict[str, int]]:
        """Sessions of each node that have not ended, by state."""
        found: dict[str, dict[str, int]] = {}
        for node, state, count in self._sql.execute(
            "SELECT node, state, count(*) FROM sessions WHERE node IS NOT NULL"
            f" AND state NOT IN {ENDED} GROUP BY node, state"
        ):
            found.setdefault(node, {})[state] = count
        return found

    def start_of(self, node: str) -> str | None:
        """The start that a node registered with; None where there is none of the name."""
        held = self._one("SELECT start FROM nodes WHERE id = ?", (node,))
        return None if held is None else held[0]

    def put_node(self, id: str, start: str, about: Mapping[str, Any]) -> None:
        """Keeps a node as it is now."""
        self._sql.execute(
            "INSERT INTO nodes (id, start, about) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET start = excluded.start, about = excluded.about",
            (id, start, orjson.dumps(about).decode()),
        )

    def drain(self, node: str, draining: bool) -> None:
        """Whether it gets no more sessions."""
        self._sql.execute("UPDATE nodes SET draining = ? WHERE id = ?", (draining, node))

    def nodes(self) -> list[tuple[str, str, Any, bool]]:
        """All of them: name, start, what is known of it, whether it drains."""
        rows = self._sql.execute("SELECT id, start, about, draining FROM nodes ORDER BY id")
        return [(id, start, orjson.loads(about), bool(drains)) for id, start, about, drains in rows]

    def session(self, id: str) -> SessionRow:
        """One of them, which must be there."""
        return self._sessions("WHERE id = ?", (id,))[0]

    def sessions(self, task: str) -> list[SessionRow]:
        """Those of a task, by their samples."""
        return self._sessions("WHERE task = ? ORDER BY sample", (task,))

    def spec(self, task: str) -> Any:
        """A task as it was submitted; None where there is none."""
        row = self._one("SELECT spec FROM tasks WHERE id = ?", (task,))
        return None if row is None else orjson.loads(row[0])

    def tasks(self) -> list[dict[str, Any]]:
        """All tasks, the oldest first, with how many of their sessions are in which state, and
        what those that ended have come to."""
        names = ("task_id", "submitted_unix_s", "callback", "agent", "model")
        found: dict[str, dict[str, Any]] = {
            row[0]: {**dict(zip(names, row, strict=True)), "states": {}}
            for row in self._sql.execute(
                "SELECT id, submitted, callback,"
                " ifnull(json_extract(spec, '$.agent.preset'), 'shell'),"
                " ifnull(json_extract(spec, '$.agent.model'), 'default')"
                " FROM tasks ORDER BY submitted, id"
            )
        }
        for task, state, count in self._sql.execute(
            "SELECT task, state, count(*) FROM sessions GROUP BY task, state"
        ):
            found[task]["states"][state] = count
        sums = ("mean_reward", "traces", "completions")
        for task, *values in self._sql.execute(
            "SELECT task, avg(json_extract(result, '$.reward')),"
            " sum(json_extract(result, '$.traces')), sum(json_extract(result, '$.completions'))"
            " FROM sessions GROUP BY task"
        ):
            found[task].update(zip(sums, values, strict=True))
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """How many sessions are in which state."""
        rows = self._sql.execute("SELECT state, count(*) FROM sessions GROUP BY state").fetchall()
        return {**dict.fromkeys(STATES, 0), **dict(rows)}

    def events(self, after: int, limit: int, session: str | None = None) -> list[dict[str, Any]]:
        """What happened, in order, after the event of a number; of one session or of all."""
        names = ("seq", "at_unix_s", "task_id", "session_id", "state", "reason")
        rows = self._sql.execute(
            "SELECT seq, at, task, session, state, reason FROM events WHERE seq > ?"
            " AND session = ifnull(?, session) ORDER BY seq LIMIT ?",
            (after, session, limit),
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

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        return self._sql.execute(query, values).fetchone()

    def _sessions(self, where: str, values: tuple[Any, ...] = ()) -> list[SessionRow]:
        rows = self._sql.execute(
            "SELECT id, task, sample, node, lease, attempt, state, since, reason, episode, run,"
            f" result FROM sessions {where}",
            values,
        )
        return [SessionRow(*row[:9], *map(_json, row[9:])) for row in rows]

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
