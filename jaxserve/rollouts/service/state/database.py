"""Tasks, sessions, nodes and open keys in one SQLite file. Each session ends once, despite crashes.

A transaction that moves a session changes nothing where the session has ended. The transaction that
ends a session also writes its result.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from jaxserve.errors import InputError
from jaxserve.rollouts.service.state.lifecycle import (
    AFTER_RUN,
    BEFORE_RUN,
    ENDED,
    INITIALIZING,
    POST_RUN,
    REGISTERED,
    RUNNING,
    STATES,
    SessionRow,
    SessionSpan,
)
from jaxserve.rollouts.traces import ERROR
from jaxserve.runtime.storage import connect, lock_file

CANCELLED = "cancelled"

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
  id TEXT PRIMARY KEY,
  spec TEXT NOT NULL,
  submitted REAL NOT NULL,      -- s since 1970
  callback TEXT,                -- NULL, due, sent or given up
  pushes INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sessions (
  id TEXT PRIMARY KEY,
  task TEXT NOT NULL,
  sample INTEGER NOT NULL,
  node TEXT,                           -- NULL while it waits for one
  lease INTEGER NOT NULL DEFAULT 0,    -- times that a node was given the session
  attempt INTEGER NOT NULL DEFAULT 0,  -- times that the session began
  state TEXT NOT NULL,
  since REAL NOT NULL,                 -- last change of state
  reason TEXT NOT NULL DEFAULT '',
  episode TEXT,                        -- the environment's, JSON
  run TEXT,                            -- the agent's end, JSON
  result TEXT                          -- JSON, once the session has ended
);
CREATE INDEX IF NOT EXISTS sessions_of_task ON sessions (task, sample);
CREATE INDEX IF NOT EXISTS sessions_of_node ON sessions (node, state);
CREATE TABLE IF NOT EXISTS nodes (
  id TEXT PRIMARY KEY,
  start TEXT NOT NULL,          -- name of the node's process
  about TEXT NOT NULL,          -- its registration, JSON
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
_KEYS_SCHEMA = """
CREATE TABLE IF NOT EXISTS lost_keys (
  recorded TEXT NOT NULL,       -- the gateway's session
  control TEXT NOT NULL,        -- address of the gateway's control port
  made INTEGER NOT NULL,
  since REAL NOT NULL,
  PRIMARY KEY (recorded, control)
)
"""
"""Not part of the versioned schema: earlier files of version 2 lack the table."""


class OpenKey(NamedTuple):
    """A key that may be open at the gateway of a node that lost its session."""

    recorded: str
    """the gateway's session."""
    control: str
    """address of the gateway's control port."""
    made: bool
    """whether the key was certainly made; else its session was about to begin."""
    since: float
    """time of the note, s since 1970."""


class StateDatabase:
    """The database, for use by one thread."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
          InputError: the file cannot be used.
        """
        where = f"--save-dir is {path.parent}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = lock_file(path.parent / ".lock")
            if lock is None:
                raise InputError(f"{where}; it must be free, and another service has it")
            self._lock = lock
            self._sql = connect(path, _SCHEMA, _VERSION, "FULL", check=True)
            self._sql.execute(_KEYS_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{where}; its state cannot be used: {error}") from None

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._sql.close()
        self._lock.release()

    def submit(self, id: str, spec: Mapping[str, Any], samples: int, callback: bool) -> bool:
        """Adds a task with its sessions; False where the same task exists.

        Raises:
          InputError: another task has the name.
        """
        text = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS).decode()
        with self._transaction():
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
        """Moves a session to a state. Returns False, and changes nothing, where it has ended.

        Args:
          lease: lease of the node that moves the session; a void one changes nothing.
          values: other columns to set: ``attempt``, ``episode``, ``run``, ``result``.
        """
        with self._transaction():
            return self._move(session, state, reason, lease, values)

    def _move(
        self, session: str, state: str, reason: str, lease: int | None, values: Mapping[str, Any]
    ) -> bool:
        """``move`` inside a transaction."""
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
        """Whether a lease is valid: the session's last one, and the session has not ended."""
        where = f"id = ? AND lease = ? AND state NOT IN {ENDED}"
        return self._one(f"SELECT 1 FROM sessions WHERE {where}", (session, lease)) is not None

    def give(self, session: str, node: str) -> None:
        """Gives a waiting session to a node."""
        self._sql.execute(
            "UPDATE sessions SET node = ?, lease = lease + 1"
            f" WHERE id = ? AND node IS NULL AND state NOT IN {ENDED}",
            (node, session),
        )

    def take_back(self, node: str, attempts: int, *, resumes: bool) -> None:
        """Takes a lost node's sessions: each waits again, or ends after its last attempt.

        Args:
          attempts: number of times that a session may begin.
          resumes: whether the node is back, with the folders of agents that had ended.
        """
        later = "UPDATE sessions SET lease = lease + 1"
        for session in self.held_by(node):
            with self._transaction():
                if resumes and session.state in AFTER_RUN:
                    self._sql.execute(f"{later} WHERE id = ?", (session.id,))
                    continue
                self._note_session_key(session)
                if session.attempt >= attempts and session.state not in BEFORE_RUN:
                    reason = f"its node was lost in each of {session.attempt} attempts"
                    self._move(session.id, ERROR, reason, None, {"result": session.no_result})
                    continue
                if session.state != REGISTERED:
                    self._move(session.id, REGISTERED, f"node {node} was lost", None, {})
                self._sql.execute(f"{later}, node = NULL, run = NULL WHERE id = ?", (session.id,))

    def cancel(self, task: str) -> list[str]:
        """Ends a task's open sessions with the reason ``cancelled``; returns their names."""
        cancelled = []
        with self._transaction():
            for session in self.sessions(task):
                if self._move(session.id, ERROR, CANCELLED, None, {"result": session.no_result}):
                    # The node also closes the key, if it is alive.
                    self._note_session_key(session)
                    cancelled.append(session.id)
        return cancelled

    def _note_session_key(self, session: SessionRow) -> None:
        """Notes the key of a session that leaves its node; a registered session has none."""
        if session.state != REGISTERED and session.node is not None:
            made = session.state != INITIALIZING
            self.note_key(session.recorded, session.node, made=made)

    def note_key(self, recorded: str, node: str, *, made: bool) -> None:
        """Notes that the key of a gateway's session may be open at the gateway of a node.

        Args:
          made: whether the key was certainly made.
        """
        self._sql.execute(
            "INSERT OR IGNORE INTO lost_keys SELECT ?, json_extract(about, '$.control'), ?, ?"
            " FROM nodes WHERE id = ?",
            (recorded, made, time.time(), node),
        )

    def open_keys(self) -> list[OpenKey]:
        """Keys that may be open at gateways."""
        rows = self._sql.execute("SELECT recorded, control, made, since FROM lost_keys")
        return [OpenKey(recorded, at, bool(made), since) for recorded, at, made, since in rows]

    def forget_key(self, key: OpenKey) -> None:
        """Removes a key that is closed, or given up."""
        self._sql.execute(
            "DELETE FROM lost_keys WHERE recorded = ? AND control = ?", (key.recorded, key.control)
        )

    def held_by(self, node: str) -> list[SessionRow]:
        """Open sessions of a node."""
        return self._sessions(f"WHERE node = ? AND state NOT IN {ENDED} ORDER BY id", (node,))

    def waiting(self, most: int) -> list[tuple[str, str, float]]:
        """Sessions without a node, the oldest task first: name, model, start of the wait."""
        return self._sql.execute(
            "SELECT sessions.id, ifnull(json_extract(spec, '$.agent.model'), 'default'), since"
            " FROM sessions JOIN tasks ON tasks.id = task"
            f" WHERE node IS NULL AND state NOT IN {ENDED} ORDER BY submitted, sample LIMIT ?",
            (most,),
        ).fetchall()

    def loads(self) -> dict[str, dict[str, int]]:
        """Number of open sessions of each node, by state."""
        found: dict[str, dict[str, int]] = {}
        for node, state, count in self._sql.execute(
            "SELECT node, state, count(*) FROM sessions WHERE node IS NOT NULL"
            f" AND state NOT IN {ENDED} GROUP BY node, state"
        ):
            found.setdefault(node, {})[state] = count
        return found

    def start_of(self, node: str) -> str | None:
        """Name of the process with which a node registered; None for an unknown node."""
        held = self._one("SELECT start FROM nodes WHERE id = ?", (node,))
        return None if held is None else held[0]

    def put_node(self, id: str, start: str, about: Mapping[str, Any]) -> None:
        """Adds or replaces a node."""
        self._sql.execute(
            "INSERT INTO nodes (id, start, about) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET start = excluded.start, about = excluded.about",
            (id, start, orjson.dumps(about).decode()),
        )

    def drain(self, node: str, draining: bool) -> None:
        """Sets whether a node gets no more sessions."""
        self._sql.execute("UPDATE nodes SET draining = ? WHERE id = ?", (draining, node))

    def nodes(self) -> list[tuple[str, str, Any, bool]]:
        """All nodes: name, process, registration, whether it drains."""
        rows = self._sql.execute("SELECT id, start, about, draining FROM nodes ORDER BY id")
        return [(id, start, orjson.loads(about), bool(drains)) for id, start, about, drains in rows]

    def session(self, id: str) -> SessionRow:
        """A session, which must exist."""
        return self._sessions("WHERE id = ?", (id,))[0]

    def sessions(self, task: str) -> list[SessionRow]:
        """Sessions of a task, in the order of their samples."""
        return self._sessions("WHERE task = ? ORDER BY sample", (task,))

    def spec(self, task: str) -> Any:
        """A task as submitted; None for an unknown task."""
        row = self._one("SELECT spec FROM tasks WHERE id = ?", (task,))
        return None if row is None else orjson.loads(row[0])

    def tasks(self) -> list[dict[str, Any]]:
        """All tasks, the oldest first, with the number of sessions by state, and sums and means of
        the ended sessions' results."""
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
        """Number of sessions in each state."""
        rows = self._sql.execute("SELECT state, count(*) FROM sessions GROUP BY state").fetchall()
        return {**dict.fromkeys(STATES, 0), **dict(rows)}

    def events(self, after: int, limit: int, session: str | None = None) -> list[dict[str, Any]]:
        """Changes of state in order, after the event with a number; of one session or of all."""
        names = ("seq", "at_unix_s", "task_id", "session_id", "state", "reason")
        rows = self._sql.execute(
            "SELECT seq, at, task, session, state, reason FROM events WHERE seq > ?"
            " AND session = ifnull(?, session) ORDER BY seq LIMIT ?",
            (after, session, limit),
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def spans(self, task: str | None, most: int) -> list[SessionSpan]:
        """The sessions that changed last: of one task, or of all."""
        at = "(SELECT max(at) FROM events WHERE session = sessions.id AND state = ?)"
        dropped = "(SELECT total(value) FROM json_each(result, '$.dropped'))"
        rows = self._sql.execute(
            f"SELECT state, since, {at}, {at}, ifnull(json_extract(result, '$.trainable'), 0)"
            f" + {dropped}, json_extract(result, '$.reward') FROM sessions"
            " WHERE task = ifnull(?, task) ORDER BY since DESC LIMIT ?",
            (RUNNING, POST_RUN, task, most),
        )
        found = []
        for state, since, began, left, tokens, reward in rows:
            if began is not None and (left is None or left < began):
                left = None if state == RUNNING else since  # the node was lost, or cancelled
            found.append(SessionSpan(state in ENDED, since, began, left, int(tokens), reward))
        return found

    def due(self) -> list[tuple[str, int]]:
        """Ended tasks whose result is to be pushed, with the number of pushes so far."""
        return self._sql.execute(
            "SELECT id, pushes FROM tasks WHERE callback = 'due' AND NOT EXISTS"
            f" (SELECT 1 FROM sessions WHERE task = tasks.id AND state NOT IN {ENDED})"
        ).fetchall()

    def pushed(self, task: str, callback: str) -> None:
        """Notes a push: ``sent``, ``given up``, or ``due`` for another try."""
        self._sql.execute(
            "UPDATE tasks SET callback = ?, pushes = pushes + 1 WHERE id = ?", (callback, task)
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._sql.execute("ROLLBACK")
            raise
        self._sql.execute("COMMIT")

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
