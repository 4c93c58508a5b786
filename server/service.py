"""The service behind all routes and protocols: asynchronous functions on sessions.

``Service`` has two implementations: ``server.simulated_service`` computes windows,
``server.live.live_service`` plays them on a real engine.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxserve.grading import Grade
from jaxserve.seeds import MAX_SEED
from jaxserve.types import TimeStep
from server.background import BackgroundExecutor
from server.players.agents import Agents
from server.players.model_budget import ModelBudget
from server.server_settings import Settings
from server.sessions.compiling import Compiler
from server.sessions.episodes import Episode, listed_episode
from server.sessions.programs import Knobs, Window
from server.sessions.session import BatchView, SessionName, View
from server.sessions.store import LoggedDecision, LoggedStep

DEFAULT_TASK = "static_workload"
DEFAULT_SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class History:
    """The log of one episode."""

    view: View
    steps: tuple[LoggedStep, ...]
    decisions: Mapping[int, LoggedDecision]
    """of the server's agents, by the number of the window that each comes before."""

    def choosers(self) -> list[dict[str, str]]:
        """For each window ``driver``, the agent of the server that chose its knobs, and ``reason``
        where a decision began; neither where a client chose them."""
        found, last = [], None
        for number, step in enumerate(self.steps):
            decision = self.decisions.get(number)
            last = decision or last
            # Logs of earlier versions say only that an agent chose.
            driver = None if not step.driven else last.driver if last else "agent"
            reason = decision.reason if decision else None
            named = {"driver": driver, "reason": reason}
            found.append({name: text for name, text in named.items() if text is not None})
        return found


@dataclasses.dataclass(frozen=True)
class SessionComparison:
    """A session, and other agents on the same traffic."""

    view: View
    mean_arrival_rate_rps: float
    """mean arrival rate of the task."""
    agents: dict[str, bytes]
    """whole episodes by the agents' names, see ``ComparisonAgents.of``."""


@dataclasses.dataclass(frozen=True)
class LiveGrade:
    """Measured figures of a live episode. There is no score: a score is a place between simulated
    anchors, which a real engine does not share."""

    mean_reward: float
    """mean over the windows played."""
    windows: int
    requests_completed: float
    requests_good: float
    goodput_rps: float
    """requests inside their objectives, per second of the windows."""
    slo_attainment: float | None
    """share of ended requests inside their objectives; None if none ended."""
    tokens_booked: int
    """tokens in and out of the episode's windows."""
    feedback: str
    score: None = None
    mode: str = "live"


class Service(Protocol):
    """Sessions, for every protocol by which they are played.

    Methods that take the name of a session raise UnknownSession, and EpisodeConflict for a session
    of another version of its task. Long computations may raise Overloaded.
    """

    settings: Settings
    agents: Agents
    background: BackgroundExecutor
    model_budget: ModelBudget

    async def start(self, compiler: Compiler) -> None:
        """Waits for the programs of a first step, then begins to answer."""
        ...

    async def stop(self) -> None:
        """Finishes queued work and closes the logs."""
        ...

    @property
    def live_sessions(self) -> int:
        """Number of sessions in memory."""
        ...

    @property
    def windows_played(self) -> int:
        """Number of windows played by this process and acknowledged."""
        ...

    @property
    def live(self) -> dict[str, Any] | None:
        """Provider, model, limits and spending of a real engine; None without one."""
        ...

    @property
    def durable(self) -> bool:
        """Whether sessions outlive the process."""
        ...

    async def fault(self) -> str | None:
        """Why acknowledged windows would not outlive the server now; None if they would."""
        ...

    async def reset(
        self,
        *,
        task: str | int | None = None,
        seed: int | None = None,
        split: str | None = None,
        index: int | None = None,
        config: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
        session: SessionName | None = None,
    ) -> View:
        """Begins an episode.

        Args:
          session: the session, or the client whose default session a new one becomes; None: a new
            session that is nobody's default.
          index: entry of the split's list, for a task and a seed that are None.

        Raises:
          InputError, UnknownSession; on an engine SpendingLimit, EngineFailure, and EpisodeConflict
          while another session plays.
        """
        ...

    async def step(
        self,
        session: SessionName,
        knobs: Knobs,
        number: int | None = None,
        decision: LoggedDecision | None = None,
        *,
        request_id: str | None = None,
    ) -> View:
        """Plays one window.

        Args:
          number: number of the window, counted from 0; None: the next one.
          decision: the agent of the server that chose the knobs, if one did, and its reason, if it
            has just given one.
          request_id: a client's name for the request; a request that repeats the session's last one
            plays nothing, and has its view.

        Raises:
          StorageFailure; EpisodeConflict: the episode is over, or the next window has another
          number. On an engine SpendingLimit and EngineFailure.
        """
        ...

    async def step_many(self, steps: Sequence[tuple[str, Knobs, int | None]]) -> BatchView:
        """Plays one window of each session in one transaction: all windows or none.

        Args:
          steps: session, knobs and number, as ``step`` takes them; at least one.

        Raises:
          EpisodeConflict, StorageFailure.
        """
        ...

    async def view(self, session: SessionName) -> View:
        """A snapshot of a session."""
        ...

    async def drive(self, session: SessionName, agent: str, windows: int) -> list[View]:
        """Lets an agent play up to ``windows`` windows, and stops at the end of the episode.

        Raises:
          InputError: no such agent. Further as ``step``.
        """
        ...

    async def history(self, session: SessionName, *, watching: bool = False) -> History:
        """The log of a session's current episode.

        Args:
          watching: whether the id may also be the one by which others follow a live session.
        """
        ...

    async def windows(self, history: History) -> list[Window]:
        """The reset and every window of a log."""
        ...

    async def grade_session(self, session: SessionName) -> tuple[View, Grade | LiveGrade]:
        """The grade of a session's episode so far, by its log.

        Raises:
          EpisodeConflict: the episode overrides parts of the task.
        """
        ...

    async def grade_actions(self, episode: Episode, knobs: Sequence[Knobs]) -> Grade:
        """The grade of a list of actions.

        Raises:
          InputError: more actions than windows; further as ``jaxserve.grading.grade_actions``.
        """
        ...

    async def grade_log(self, episode: Episode, log: Sequence[Mapping[str, Any]]) -> Grade:
        """The grade of a client's log, and whether its figures are true.

        Raises:
          InputError: more windows than the task has; further as ``jaxserve.grading.grade_log``.
        """
        ...

    async def compared(self, session: SessionName) -> SessionComparison:
        """A session's traffic played by the comparison agents.

        Raises:
          InputError: the episode changed the task. EpisodeConflict: a real engine plays it.
        """
        ...

    async def replayed(self, session: SessionName) -> tuple[View, TimeStep]:
        """Every window of a session by traffic class, as NumPy leaves [T, ...].

        Raises:
          As ``compared``.
        """
        ...

    async def note(self, key: str) -> str | None:
        """The text kept under a key; None if there is none."""
        ...

    async def keep_note(self, key: str, text: str) -> None:
        """Keeps a text as long as the log.

        Raises:
          StorageFailure.
        """
        ...


def chosen_episode(
    task: str | int | None, seed: int | None, split: str | None, index: int | None
) -> tuple[str | int, int, str]:
    """Task, seed and split of a reset. Absent ones are those of the list's entry; without an index,
    the default task and a random seed.

    Raises:
      InputError: unknown split, or no such entry.
    """
    split = DEFAULT_SPLIT if split is None else split
    if index is not None:
        listed = listed_episode(split, index)
        task = listed[0] if task is None else task
        seed = listed[1] if seed is None else seed
    seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    return DEFAULT_TASK if task is None else task, seed, split
