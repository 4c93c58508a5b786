"""One session's episode: where it stands, and what may be said of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from server.sessions import programs
from server.sessions.episodes import Episode
from server.sessions.programs import Knobs, Window, WindowColumns


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
    driven: int = 0
    """windows that an agent of the server's own played."""
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

    def copy(self) -> Session:
        """Another that stands where this one does; ``dataclasses.replace`` takes ten times as
        long, and every step makes one."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def view(self) -> View:
        """What may leave the worker thread."""
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
        """Moves on by one window, which is entry ``place`` of ``windows``."""
        self.state, self.windows, self.place, self.knobs = state, windows, place, knobs
        self.steps += 1
        self.driven += driven
        self.reward += windows.reward[place]
        self.completed += windows.completed[place]
        self.failed += windows.failed[place]


class View(NamedTuple):
    """Where a session stands; never changes once made."""

    session_id: str
    episode_id: str
    episode_number: str
    """the log's own, which no client chooses; a text, because no float holds it."""
    episode: Episode
    steps: int
    driven: int
    """windows of these that an agent of the server's own played."""
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
    windows: WindowColumns


def new_session(session_id: str | None, name: str | None, episode: Episode) -> Session:
    """A session at the beginning of an episode, with what it lacks of names drawn at random."""
    number = secrets.randbelow(2**62) + 1
    chosen = session_id or secrets.token_urlsafe(18)
    return begin_session(chosen, number, name or secrets.token_hex(8), episode)


def begin_session(session_id: str, number: int, name: str, episode: Episode) -> Session:
    """A session at the beginning of an episode; ``server.sessions.replaying`` takes it further."""
    state, windows = programs.start(episode)
    simulator = programs.simulator(episode)
    mean_rate_rps = float(simulator.env.reward.expected_requests_per_s)
    return Session(session_id, number, name, episode, simulator, state, mean_rate_rps, windows)
