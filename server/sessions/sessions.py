"""Sessions in memory, for the worker thread only."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from server.request_errors import EpisodeConflict, UnknownSession
from server.sessions import programs
from server.sessions.programs import Knobs, WindowColumns
from server.sessions.replaying import catch_up
from server.sessions.session import (
    NO_DEFAULT,
    NOT_BEGUN,
    BatchView,
    DefaultSession,
    Session,
    SessionName,
    check_running,
    unknown_session,
)
from server.sessions.store import (
    REQUEST_OF,
    Head,
    LoggedDecision,
    LoggedStep,
    NewEpisode,
    NewNote,
    NewStep,
    Record,
    Store,
    decision_key,
    read_decisions,
)

_AT_ONCE = 8
"""Windows of another process that are replayed at most while others wait."""


class Elsewhere(Exception):
    """A task needs a computation that would stall the worker thread. Nothing has changed; the task
    can run again after the computation, which another thread does."""


class Absent(Elsewhere):
    """Sessions have to be rebuilt from the log."""

    def __init__(self, sessions: Mapping[str, Head]) -> None:
        """Args: heads of the sessions in the log."""
        super().__init__(*sessions)
        self.sessions = sessions


class Uncompiled(Elsewhere):
    """The program that advances many sessions of a structure is not compiled."""

    def __init__(self, simulator: programs.Simulator) -> None:
        """Args: simulator of the sessions."""
        super().__init__()
        self.simulator = simulator


class Sessions:
    """Sessions in memory, and records of their changes until ``commit`` writes them."""

    def __init__(self, store: Store, live: int, idle_s: float, default_session: bool) -> None:
        """Args: the log, sessions kept in memory, seconds until an unused session expires, and
        whether clients have a default session."""
        self._store, self._limit, self._idle_s = store, live, idle_s
        self._has_default = default_session
        self._live: OrderedDict[str, Session] = OrderedDict()
        self.windows_played = 0
        """windows that ``commit`` has written."""
        self._records: list[Record] = []
        # Each changed session as it was before; None if it was not in memory.
        self._changed: dict[str, Session | None] = {}
        self._notes: dict[str, str] = {}
        """texts that wait for ``commit``, by key."""

    @property
    def store(self) -> Store:
        """The log."""
        return self._store

    @property
    def uncommitted(self) -> int:
        """Records that wait for ``commit``."""
        return len(self._records)

    def begin(
        self, session: Session, *, is_new: bool, default: DefaultSession | None = None
    ) -> Session:
        """Begins an episode.

        Args:
          session: from ``new_session``.
          is_new: whether the session is new.
          default: the client whose default session it becomes; None: nobody's.

        Raises:
          UnknownSession: the session is not new and does not exist.
        """
        if not is_new and session.id not in self._changed:
            self._existing(session.id, self._store.heads([session.id]).get(session.id))
        self._changed.setdefault(session.id, self._live.get(session.id))
        self._keep(session)
        self._evict()
        episode = session.episode.to_json()
        self._records.append(NewEpisode(session.id, session.number, session.name, episode))
        if default is not None and self._has_default:
            self.keep_note(default.key, session.id)
        return session

    def adopt(self, sessions: Sequence[Session]) -> None:
        """Adds rebuilt sessions, even beyond the limit until the next commit. A session in memory
        that has more windows stays."""
        for session in sessions:
            known = self._live.get(session.id)
            if known is None or known.number != session.number or known.steps < session.steps:
                self._keep(session)

    def find(self, name: SessionName) -> Session:
        """A session, up to date with the log.

        Raises:
          UnknownSession: no such session, an expired one, or no default session.
          EpisodeConflict: the session was played on another version of the simulator.
          Absent: the session has to be rebuilt.
        """
        return self.find_many([name if isinstance(name, str) else self._default_id(name)])[0]

    def find_many(self, session_ids: Sequence[str]) -> list[Session]:
        """The sessions, as ``find``.

        Raises:
          UnknownSession, EpisodeConflict: as ``find``, of the first such session.
          Absent: all sessions that have to be rebuilt.
        """
        heads = self._store.heads([known for known in session_ids if known not in self._changed])
        found: list[Session] = []
        absent: dict[str, Head] = {}
        for known in session_ids:
            head = heads.get(known)
            session = self._found(known, head)
            if session is not None:
                found.append(session)
            elif head is not None:
                absent[known] = head
        if absent:
            raise Absent(absent)
        self._evict()
        return found

    def _found(self, session_id: str, head: Head | None) -> Session | None:
        """The session as the log has it; None if it has to be rebuilt."""
        if session_id in self._changed:
            return self._live[session_id]
        session = self._live.get(session_id)
        head = self._existing(session_id, head)
        if session is None or session.number != head.episode or session.steps > head.steps:
            return None
        behind = head.steps - session.steps
        if behind > _AT_ONCE:
            return None
        if behind:
            missed = self._store.steps(session_id, head.episode, session.steps)
            if len(missed) < behind:
                # Another process has just expired it.
                raise self.expired(session_id)
            if any(step.together for step in missed) and not programs.is_compiled(
                session.simulator, together=True
            ):
                return None
            catch_up(session, missed)
        self._keep(session)
        return session

    def steps(self, session: Session) -> list[LoggedStep]:
        """All windows of a session's episode, uncommitted ones included."""
        waiting = [
            record.step
            for record in self._records
            if isinstance(record, NewStep) and record.episode == session.number
        ]
        written = session.steps - len(waiting)
        logged = self._store.steps(session.id, session.number) if written else []
        # Another process may have added more.
        return logged[:written] + waiting

    def decisions(self, session: Session) -> dict[int, LoggedDecision]:
        """Decisions of the server's agents in a session's episode by window, uncommitted ones
        included."""
        waiting = [record for record in self._records if isinstance(record, NewNote)]
        logged = self._store.decisions(session.number)
        return logged | read_decisions(session.number, waiting)

    def step(self, session: Session, knobs: Knobs, decision: LoggedDecision | None = None) -> None:
        """Plays one window.

        Args:
          decision: the agent of the server that chose the knobs, if one did, and its reason, if it
            has just given one.

        Raises:
          EpisodeConflict: the episode is over.
        """
        check_running(session.id, session.steps, session.over)
        state, outcome = programs.advance(session.simulator, session.state, knobs)
        windows = programs.read_windows(outcome)
        number, before, driven = session.steps, session.driver, decision is not None
        self._append(session, state, windows, 0, knobs, together=False, driven=driven)
        if decision is not None:
            session.driver = decision.driver
            if decision.reason or decision.driver != before:
                text = json.dumps(decision._asdict())
                self.keep_note(decision_key(session.number, number), text)

    def step_many(self, sessions: Sequence[Session], knobs: Sequence[Knobs]) -> BatchView:
        """Plays one window of each session, at least one; sessions of one environment together.

        Returns:
          Snapshots in the order of ``sessions``.

        Raises:
          EpisodeConflict: a session comes twice, or its episode is over; nothing has changed.
          Uncompiled: the program is not compiled; nothing has changed.
        """
        seen: set[str] = set()
        for session in sessions:
            if session.id in seen:
                raise EpisodeConflict(
                    f"session {session.id!r} comes twice; each may be advanced once at a time"
                )
            seen.add(session.id)
        by_environment: dict[int, list[int]] = {}
        for index, session in enumerate(sessions):
            check_running(session.id, session.steps, session.over)
            if not programs.is_compiled(session.simulator, together=True):
                raise Uncompiled(session.simulator)
            by_environment.setdefault(id(session.simulator), []).append(index)
        groups = [
            group[first : first + programs.BATCH_SIZE]
            for group in by_environment.values()
            for first in range(0, len(group), programs.BATCH_SIZE)
        ]
        # All groups are begun before the first is read: they are computed side by side.
        begun = [_advanced(sessions, knobs, indices) for indices in groups]
        shown = []
        for indices, (lanes, outcome) in zip(groups, begun, strict=True):
            windows = programs.read_windows(outcome)
            for place, (index, lane) in enumerate(zip(indices, lanes, strict=True)):
                self._append(sessions[index], lane, windows, place, knobs[index], together=True)
            shown.append(windows)
        order = [index for indices in groups for index in indices]
        # Undoes the grouping by environment.
        windows = programs.concatenated(shown, np.argsort(order).tolist())
        ids, steps = [session.id for session in sessions], [session.steps for session in sessions]
        return BatchView(ids, steps, windows)

    def has_answered(self, session: Session, request_id: str) -> bool:
        """Whether the request with this id played the session's last window."""
        return self.note(f"{REQUEST_OF}{session.id}") == _request_note(session, request_id)

    def remember_request(self, session: Session, request_id: str) -> None:
        """Keeps the id of the request that has just played a window."""
        self.keep_note(f"{REQUEST_OF}{session.id}", _request_note(session, request_id))

    def note(self, key: str) -> str | None:
        """The text kept under a key."""
        return self._notes.get(key) or self._store.note(key)

    def keep_note(self, key: str, text: str) -> None:
        """Keeps a text under a key as long as the log."""
        self._records.append(NewNote(key, text))
        self._notes[key] = text

    def commit(self) -> None:
        """Writes all changes; on failure they are undone.

        Raises:
          MovedSession, StorageFailure: see ``Store.commit``.
        """
        try:
            self._store.commit(self._records)
        except BaseException:
            self.discard()
            raise
        self.windows_played += sum(isinstance(record, NewStep) for record in self._records)
        self._settle()

    def discard(self) -> None:
        """Undoes uncommitted changes."""
        for session_id, before in self._changed.items():
            self._live.pop(session_id, None)
            if before is not None:
                self._keep(before)
        self._settle()

    def expire(self) -> None:
        """Expires sessions that were unused for too long."""
        self._store.expire(self._idle_s)

    def __len__(self) -> int:
        return len(self._live)

    def _append(
        self,
        session: Session,
        state: programs.State,
        windows: WindowColumns,
        place: int,
        knobs: Knobs,
        *,
        together: bool,
        driven: bool = False,
    ) -> None:
        step = LoggedStep(together, windows.reward[place], knobs, driven)
        self._records.append(NewStep(session.id, session.number, session.steps, step))
        if session.id not in self._changed:
            self._changed[session.id] = session.copy()
        session.append(state, windows, place, knobs, driven)
        # Other sessions of the same request may have evicted it.
        self._keep(session)
        self._evict()

    def _settle(self) -> None:
        self._records = []
        self._notes.clear()
        self._changed.clear()
        self._evict()

    def _default_id(self, default: DefaultSession) -> str:
        if not self._has_default:
            raise UnknownSession(NO_DEFAULT)
        found = self.note(default.key)
        if found is None:
            raise UnknownSession(NOT_BEGUN)
        return found

    def _existing(self, session_id: str, head: Head | None) -> Head:
        if head is None:
            raise unknown_session(session_id)
        if head.episode == 0 or self._store.now() - head.touched > self._idle_s:
            raise self.expired(session_id)
        return head

    def expired(self, session_id: str) -> UnknownSession:
        """The error of an expired session."""
        return UnknownSession(
            f"session {session_id!r} has expired after {self._idle_s:g} seconds without use"
        )

    def _keep(self, session: Session) -> None:
        self._live[session.id] = session
        self._live.move_to_end(session.id)

    def _evict(self) -> None:
        while len(self._live) > self._limit:
            oldest = next(iter(self._live))
            if oldest in self._changed:
                return
            del self._live[oldest]


def _advanced(
    sessions: Sequence[Session], knobs: Sequence[Knobs], indices: Sequence[int]
) -> tuple[list[programs.Lane], programs.ProgramOutput]:
    """One window of each of the indexed sessions, which share an environment."""
    states = [sessions[index].state for index in indices]
    simulator = sessions[indices[0]].simulator
    return programs.advance_together(simulator, states, [knobs[index] for index in indices])


def _request_note(session: Session, request_id: str) -> str:
    """The text that stands for a window and the request that played it."""
    return f"{session.number} {session.steps} {request_id}"
