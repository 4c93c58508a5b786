"""One session's current episode, its snapshot for other threads, and checks of requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from server.request_errors import EpisodeConflict, UnknownSession
from server.sessions import programs
from server.sessions.episodes import Episode
from server.sessions.programs import Knobs, Window, WindowColumns

NO_DEFAULT = "session_id is missing; this server asks for a token and has no default session"
NOT_BEGUN = "no episode has been started; call reset first"


@dataclass(frozen=True)
class DefaultSession:
    """The session that a client began last over HTTP without naming one."""

    client: str
    """address of the client."""

    @property
    def key(self) -> str:
        """Key of the note that holds the session's id."""
        return f"default_session of {self.client}"


SessionName = str | DefaultSession
"""A session as a request names it: its id, or the client's default session."""


@dataclass
class Session:
    """One session's current episode."""

    id: str
    number: int
    """the log's number of the episode."""
    name: str
    """the client's episode_id."""
    episode: Episode
    simulator: programs.Simulator
    state: programs.State
    mean_rate_rps: float
    """mean arrival rate of the task's traffic."""
    windows: WindowColumns
    """last windows of the sessions that were advanced together with this one."""
    place: int = 0
    """entry of this session in ``windows``."""
    knobs: Knobs | None = None
    """the last action, None before the first."""
    steps: int = 0
    reward: float = 0.0
    """sum over the episode."""
    completed: float = 0.0
    failed: float = 0.0
    driven: int = 0
    """windows played by agents of the server."""
    driver: str | None = None
    """agent of the server that chose the last knobs, if this process has seen it do so."""
    agent: Any = None
    """memory of the agent that drives this session, see ``server.players.agents``."""

    @property
    def window(self) -> Window:
        """The last window, or the reset's."""
        return self.windows.of(self.place)

    @property
    def over(self) -> bool:
        """Whether the last window was the episode's last."""
        return self.windows.done[self.place]

    def copy(self) -> Session:
        """A copy for every step; ``dataclasses.replace`` takes ten times as long."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def view(self) -> View:
        """A snapshot, which may leave the worker thread."""
        window = self.window
        return View(
            session_id=self.id,
            episode_id=self.name,
            episode_number=str(self.number),
            episode=self.episode,
            steps=self.steps,
            driven=self.driven,
            window=window,
            knobs=self.knobs,
            cumulative_reward=self.reward,
            completed=self.completed,
            failed=self.failed,
            window_s=self.simulator.env.window_s,
            load=window.observation["request_arrival_rate"] / self.mean_rate_rps,
        )

    def append(
        self,
        state: programs.State,
        windows: WindowColumns,
        place: int,
        knobs: Knobs,
        driven: bool = False,
    ) -> None:
        """Adds one window, entry ``place`` of ``windows``."""
        self.state, self.windows, self.place, self.knobs = state, windows, place, knobs
        self.driver = None
        self.steps += 1
        self.driven += driven
        self.reward += windows.reward[place]
        self.completed += windows.completed[place]
        self.failed += windows.failed[place]


class View(NamedTuple):
    """An immutable snapshot of a session."""

    session_id: str
    episode_id: str
    episode_number: str
    """the log's number of the episode, as text: JavaScript's floats cannot hold it."""
    episode: Episode
    steps: int
    driven: int
    """windows of these played by agents of the server."""
    window: Window
    knobs: Knobs | None
    cumulative_reward: float
    completed: float
    failed: float
    window_s: float
    load: float
    """the last window's arrivals, relative to the task's mean."""
    live: Mapping[str, Any] | None = None
    """on a real engine: requests sent in the last window, and the state of its knobs."""


class BatchView(NamedTuple):
    """Snapshots of sessions that were advanced together: one entry of each list per session."""

    session_ids: Sequence[str]
    steps: Sequence[int]
    windows: WindowColumns


def new_session(session_id: str | None, name: str | None, episode: Episode) -> Session:
    """A session at the beginning of an episode; names that are None are drawn at random."""
    number = secrets.randbelow(2**62) + 1
    chosen = session_id or secrets.token_urlsafe(18)
    return begin_session(chosen, number, name or secrets.token_hex(8), episode)


def begin_session(session_id: str, number: int, name: str, episode: Episode) -> Session:
    """A session at the beginning of an episode; ``server.sessions.replaying`` advances it."""
    state, windows = programs.start(episode)
    simulator = programs.simulator(episode)
    mean_rate_rps = float(simulator.env.reward.expected_requests_per_s)
    return Session(session_id, number, name, episode, simulator, state, mean_rate_rps, windows)


def unknown_session(session_id: str | None) -> UnknownSession:
    """The error of a session that does not exist."""
    return UnknownSession(f"session {session_id!r} does not exist")


def check_running(session_id: str, steps: int, over: bool) -> None:
    """Raises EpisodeConflict if the episode is over."""
    if over:
        raise EpisodeConflict(
            f"the episode of session {session_id!r} is over after {steps} windows; "
            "reset starts another"
        )


def check_window(session: Session, number: int | None) -> None:
    """Raises EpisodeConflict if a step names another window than the next one."""
    if number is not None and number != session.steps:
        raise EpisodeConflict(
            f"metadata.step is {number}; session {session.id!r} is at window {session.steps}"
        )
