"""Sessions in memory, and how they come back from the log. For use by the worker thread only."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from server.problems import EpisodeConflict, UnknownSession
from server.sessions import engine
from server.sessions.engine import Knobs, Window, Windows
from server.sessions.episodes import Episode, built_in_task
from server.sessions.store import (
    Head,
    LoggedStep,
    NewDefault,
    NewEpisode,
    NewStep,
    Record,
    Store,
)

_REWARD_TOLERANCE = 1e-3
"""Relative to the reward, or to 1 if that is more: another machine may round differently."""


@dataclass
class Session:
    """One session's current episode."""

    id: str
    number: int
    """the log's number of the episode."""
    name: str
    """the client's episode_id."""
    episode: Episode
    simulator: engine.Simulator
    state: engine.State
    mean_rate_rps: float
    """mean arrival rate of the task's traffic."""
    windows: Windows
    """of the sessions that were last advanced with it."""
    place: int = 0
    """its entry in ``windows``."""
    knobs: Knobs | None = None
    """the last action, None before the first."""
    steps: int = 0
    reward: float = 0.0
    """sum over the episode."""
    completed: float = 0.0
    failed: float = 0.0
    agent: Any = None
    """what an agent that drives this session remembers, see ``server.players.agents``."""

    @property
    def window(self) -> Window:
        """The last one, or the reset's."""
        return self.windows.of(self.place)

    @property
    def over(self) -> bool:
        """Whether the last window was the episode's last."""
        return self.windows.done[self.place]

    def view(self) -> View:
        """What may leave the worker thread."""
        window = self.window
        return View(
            session_id=self.id,
            episode_id=self.name,
            episode=self.episode,
            steps=self.steps,
            window=window,
            knobs=self.knobs,
            cumulative_reward=self.reward,
            completed=self.completed,
            failed=self.failed,
            window_s=self.simulator.env.window_s,
            load=window.observation["request_arrival_rate"] / self.mean_rate_rps,
        )

    def append(self, state: engine.State, windows: Windows, place: int, knobs: Knobs) -> None:
        """Moves on by one window, which is entry ``place`` of ``windows``."""
        self.state, self.windows, self.place, self.knobs = state, windows, place, knobs
        self.steps += 1
        self.reward += windows.reward[place]
        self.completed += windows.completed[place]
        self.failed += windows.failed[place]


class View(NamedTuple):
    """Where a session stands; never changes once made."""

    session_id: str
    episode_id: str
    episode: Episode
    steps: int
    window: Window
    knobs: Knobs | None
    cumulative_reward: float
    completed: float
    failed: float
    window_s: float
    load: float
    """the last window's arrivals, relative to the task's mean."""
    live: Mapping[str, Any] | None = None
    """of an episode on a real engine: what was sent in the last window, and its knobs."""


class BatchView(NamedTuple):
    """Where sessions that were advanced together stand: an entry of each field for each."""

    session_ids: Sequence[str]
    steps: Sequence[int]
    windows: Windows


class Sessions:
    """Changes are kept back as records until ``commit`` has written them."""

    def __init__(self, store: Store, live: int, idle_s: float, default_session: bool) -> None:
        """Args: the log, sessions kept in memory, seconds of life unused, and whether requests
        without a session id mean the last one that was begun without one."""
        self._store, self._limit, self._idle_s = store, live, idle_s
        self._has_default = default_session
        self._live: OrderedDict[str, Session] = OrderedDict()
        self._records: list[Record] = []
        self._changed: set[str] = set()
        self._default: str | None = None

    @property
    def store(self) -> Store:
        """The log."""
        return self._store

    @property
    def uncommitted(self) -> int:
        """Records that wait for ``commit``."""
        return len(self._records)

    def begin(self, session_id: str | None, name: str | None, episode: Episode) -> Session:
        """Begins an episode, in a new session if ``session_id`` is None.

        Raises:
          UnknownSession: no such session.
        """
        if session_id is not None and session_id not in self._changed:
            self._existing(session_id, self._store.heads([session_id]).get(session_id))
        chosen = session_id or secrets.token_urlsafe(18)
        session = begin_session(
            chosen, secrets.randbelow(2**62) + 1, name or secrets.token_hex(8), episode
        )
        self._keep(session)
        self._record(NewEpisode(session.id, session.number, session.name, episode.to_json()))
        if session_id is None and self._has_default:
            self._default = session.id
            self._record(NewDefault(session.id))
        return session

    def find(self, session_id: str | None) -> Session:
        """The session, up to date with the log; None means the default one.

        Raises:
          UnknownSession: no such session, an expired one, or no default session.
          EpisodeConflict: it was played on another version of the simulator.
        """
        return self.find_many([session_id or self._default_id()])[0]

    def find_many(self, session_ids: Sequence[str]) -> list[Session]:
        """The sessions, as ``find``.

        Raises:
          UnknownSession, EpisodeConflict: for the first of them that it applies to.
        """
        heads = self._store.heads([known for known in session_ids if known not in self._changed])
        return [self._found(known, heads.get(known)) for known in session_ids]

    def _found(self, session_id: str, head: Head | None) -> Session:
        """The session at the place where the log has it."""
        if session_id in self._changed:
            return self._live[session_id]
        session = self._live.get(session_id)
        head = self._existing(session_id, head)
        if session is None or session.number != head.episode or session.steps > head.steps:
            session = self._reopen(session_id, head)
        if session.steps < head.steps:
            catch_up(session, self._store.steps(session_id, head.episode, session.steps))
            if session.steps < head.steps:
                # Another process has just forgotten it.
                raise self._expired(session_id)
        self._keep(session)
        return session

    def steps(self, session: Session) -> list[LoggedStep]:
        """All windows of a session's episode, with those that wait for ``commit``."""
        waiting = [
            record.step
            for record in self._records
            if isinstance(record, NewStep) and record.episode == session.number
        ]
        written = session.steps - len(waiting)
        logged = self._store.steps(session.id, session.number) if written else []
        # Another process may have gone on since.
        return logged[:written] + waiting

    def step(self, session: Session, knobs: Knobs) -> None:
        """One window.

        Raises:
          EpisodeConflict: the episode is over.
        """
        _check_running(session)
        state, outcome = engine.advance(session.simulator, session.state, knobs)
        self._append(session, state, engine.read_windows(outcome), 0, knobs, batched=False)

    def step_many(self, sessions: Sequence[Session], knobs: Sequence[Knobs]) -> BatchView:
        """One window of each of at least one session, those of one environment together.

        Returns:
          where they stand, in the order of ``sessions``.

        Raises:
          EpisodeConflict: a session comes twice, or its episode is over; nothing has changed.
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
            _check_running(session)
            by_environment.setdefault(id(session.simulator), []).append(index)
        shown: list[Windows] = []
        order: list[int] = []
        for group in by_environment.values():
            for first in range(0, len(group), engine.BATCH_SIZE):
                together = group[first : first + engine.BATCH_SIZE]
                shown.append(self._step_together(sessions, knobs, together))
                order += together
        # Undoes the grouping by environment.
        windows = engine.concatenated(shown, np.argsort(order).tolist())
        ids, steps = [session.id for session in sessions], [session.steps for session in sessions]
        return BatchView(ids, steps, windows)

    def commit(self) -> None:
        """Writes what has changed. On failure the changes are taken back.

        Raises:
          MovedSession, StorageFailure: see ``Store.commit``.
        """
        try:
            self._store.commit(self._records)
        except BaseException:
            self.discard()
            raise
        self._settle()

    def discard(self) -> None:
        """Takes back what was not committed."""
        for session_id in self._changed:
            self._live.pop(session_id, None)
        self._settle()

    def expire(self) -> None:
        """Forgets sessions that nobody has used for too long."""
        self._store.expire(self._idle_s)

    def __len__(self) -> int:
        return len(self._live)

    def _append(
        self,
        session: Session,
        state: engine.State,
        windows: Windows,
        place: int,
        knobs: Knobs,
        *,
        batched: bool,
    ) -> None:
        step = LoggedStep(batched, windows.reward[place], knobs)
        self._record(NewStep(session.id, session.number, session.steps, step))
        session.append(state, windows, place, knobs)
        # Others of the same request may have taken its place in memory.
        self._keep(session)

    def _step_together(
        self, sessions: Sequence[Session], knobs: Sequence[Knobs], indices: Sequence[int]
    ) -> Windows:
        simulator = sessions[indices[0]].simulator
        states = [sessions[index].state for index in indices]
        lanes, outcome = engine.advance_many(simulator, states, [knobs[i] for i in indices])
        windows = engine.read_windows(outcome)
        for place, (index, lane) in enumerate(zip(indices, lanes, strict=True)):
            self._append(sessions[index], lane, windows, place, knobs[index], batched=True)
        return windows

    def _record(self, record: Record) -> None:
        self._records.append(record)
        self._changed.add(record.session)

    def _settle(self) -> None:
        self._records, self._default = [], None
        self._changed.clear()
        self._evict()

    def _default_id(self) -> str:
        if not self._has_default:
            raise UnknownSession(
                "session_id is missing; this server asks for a token and has no default session"
            )
        found = self._default or self._store.default_session()
        if found is None:
            raise UnknownSession("no episode has been started; call reset first")
        return found

    def _existing(self, session_id: str, head: Head | None) -> Head:
        if head is None:
            raise UnknownSession(f"session {session_id!r} does not exist")
        if head.episode == 0 or self._store.now() - head.touched > self._idle_s:
            raise self._expired(session_id)
        return head

    def _expired(self, session_id: str) -> UnknownSession:
        return UnknownSession(
            f"session {session_id!r} has expired after {self._idle_s:g} seconds without use"
        )

    def _reopen(self, session_id: str, head: Head) -> Session:
        name, spec = self._store.episode(head.episode)
        episode = Episode.from_json(spec)
        version = built_in_task(episode.task).version
        if version != episode.task_version:
            raise EpisodeConflict(
                f"session {session_id!r} was played on version {episode.task_version} of "
                f"{episode.task}, which is now at version {version}; reset it to go on"
            )
        return begin_session(session_id, head.episode, name, episode)

    def _keep(self, session: Session) -> None:
        self._live[session.id] = session
        self._live.move_to_end(session.id)
        self._evict()

    def _evict(self) -> None:
        while len(self._live) > self._limit:
            oldest = next(iter(self._live))
            if oldest in self._changed:
                return
            del self._live[oldest]


def catch_up(session: Session, steps: Sequence[LoggedStep]) -> list[Window]:
    """Replays logged windows, each by the program that first computed it; returns them.

    Raises:
      EpisodeConflict: the replay's rewards are not those that were acknowledged.
    """
    state, outcomes = session.state, []
    for step in steps:
        if step.batched:
            (state,), outcome = engine.advance_many(session.simulator, [state], [step.knobs])
        else:
            state, outcome = engine.advance(session.simulator, state, step.knobs)
        outcomes.append((outcome, step))
    windows = []
    for outcome, step in outcomes:
        shown = engine.read_windows(outcome)
        if abs(shown.reward[0] - step.reward) > _REWARD_TOLERANCE * max(1.0, abs(step.reward)):
            raise EpisodeConflict(
                f"session {session.id!r} was played on another version of the simulator; "
                "reset it to go on"
            )
        session.append(state, shown, 0, step.knobs)
        windows.append(shown.of(0))
    return windows


def begin_session(session_id: str, number: int, name: str, episode: Episode) -> Session:
    """A session at the beginning of an episode; ``catch_up`` takes it further."""
    state, windows = engine.start(episode)
    simulator = engine.simulator(episode)
    mean_rate_rps = float(simulator.env.reward.expected_requests_per_s)
    return Session(session_id, number, name, episode, simulator, state, mean_rate_rps, windows)


def _check_running(session: Session) -> None:
    if session.over:
        raise EpisodeConflict(
            f"the episode of session {session.id!r} is over after {session.steps} windows; "
            "reset starts another"
        )
