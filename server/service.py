"""What every door of the server shares: asynchronous functions on sessions."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.episode_log import read_log
from jaxserve.errors import InputError
from jaxserve.grading import Actions, Grade, grade_actions, grade_log, replay_actions
from jaxserve.seeds import MAX_SEED
from jaxserve.types import TimeStep
from server.background import BackgroundExecutor
from server.players.agents import Agents, Driver
from server.players.comparison_agents import ComparisonAgents, PlayedEpisode, check_unchanged
from server.players.model_budget import ModelBudget
from server.request_errors import EpisodeConflict
from server.server_settings import Settings
from server.sessions import programs
from server.sessions.compiling import Compiler
from server.sessions.episodes import Episode, environment, listed_episode, parse_episode
from server.sessions.programs import Knobs, Window
from server.sessions.replaying import catch_up
from server.sessions.session import (
    BatchView,
    Session,
    View,
    begin_session,
    check_window,
    new_session,
)
from server.sessions.sessions import Sessions
from server.sessions.store import LoggedStep, Store, open_store
from server.sessions.worker import Worker

DEFAULT_TASK = "static_workload"
DEFAULT_SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class History:
    """The log of one episode."""

    view: View
    steps: tuple[LoggedStep, ...]


@dataclasses.dataclass(frozen=True)
class SessionComparison:
    """A session beside others who had the same traffic."""

    view: View
    mean_arrival_rate_rps: float
    """of the task."""
    agents: dict[str, PlayedEpisode]
    """whole episodes by the agents' names."""


@dataclasses.dataclass(frozen=True)
class LiveGrade:
    """What was measured of a live episode. It has no score: that is a place between simulated
    anchors, on which no real engine lies."""

    mean_reward: float
    """over the windows that were played."""
    windows: int
    requests_completed: float
    requests_good: float
    goodput_rps: float
    """requests inside their objectives, per second of the windows."""
    slo_attainment: float | None
    """share of the requests that ended; None where none did."""
    tokens_booked: int
    """in and out, for the episode's windows."""
    feedback: str
    score: None = None
    mode: str = "live"


class Service:
    """Sessions, by whatever protocol they are played."""

    def __init__(self, settings: Settings) -> None:
        """Opens the log; ``start`` begins to answer.

        Raises:
          InputError: several processes would each keep a log of their own.
        """
        store: Store = open_store(settings.database)
        if settings.workers > 1 and store.in_memory:
            raise InputError(
                f"{settings.workers} server processes cannot share sessions kept in memory; "
                "set JAXSERVE_DATABASE to a file that can be written, or start one process"
            )
        self.settings = settings
        self.agents = Agents()
        self._sessions = Sessions(
            store,
            live=settings.live_sessions,
            idle_s=settings.session_idle_s,
            default_session=settings.token is None,
        )
        self._worker = Worker(self._sessions)
        self._compiler: Compiler | None = None
        self.background = BackgroundExecutor()
        self.model_budget = ModelBudget(self, settings.model_tokens)
        self._comparison_agents = ComparisonAgents(self.agents, self.background)

    async def start(self, compiler: Compiler) -> None:
        """Waits for the programs of a first step, then begins to answer."""
        await asyncio.wrap_future(compiler.ready)
        self._compiler = compiler
        self._worker.start(compiler)

    async def stop(self) -> None:
        """Finishes what is queued and closes the log."""
        self.background.close()
        await asyncio.to_thread(self._worker.stop)

    @property
    def live_sessions(self) -> int:
        """Sessions in memory."""
        return len(self._sessions)

    @property
    def live(self) -> dict[str, Any] | None:
        """What plays on a real engine, and what it has spent; None where nothing does."""
        return None

    async def fault(self) -> str | None:
        """Why what is acknowledged now would not outlive the server; None if it would."""
        return await self._worker.run(lambda sessions: sessions.store.fault())

    @property
    def durable(self) -> bool:
        """Whether sessions outlive the process."""
        return not self._sessions.store.in_memory

    async def reset(
        self,
        *,
        task: str | int | None = None,
        seed: int | None = None,
        split: str | None = None,
        index: int | None = None,
        config: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
        session_id: str | None = None,
    ) -> View:
        """Begins an episode, in a new session if ``session_id`` is None.

        Args:
          index: entry of the split's list; it decides task and seed where those are None.

        Raises:
          InputError, UnknownSession.
        """
        chosen = chosen_episode(task, seed, split, index)

        def begun() -> Session | programs.Simulator:
            """Away from all who step; a program that is missing is compiled further away still."""
            episode = parse_episode(*chosen, config)
            simulator = programs.simulator(episode)
            if not programs.is_compiled(simulator, together=False):
                return simulator
            return new_session(session_id, episode_id, episode)

        assert self._compiler is not None
        while not isinstance(session := await asyncio.to_thread(begun), Session):
            await asyncio.wrap_future(self._compiler.compiled(session, together=False))
        is_new = session_id is None
        return await self._worker.run(lambda s: s.begin(session, is_new=is_new).view())

    async def step(
        self,
        session_id: str | None,
        knobs: Knobs,
        number: int | None = None,
        *,
        driven: bool = False,
    ) -> View:
        """One window.

        Args:
          number: the window it is meant to be, counted from 0; None: whichever comes next.
          driven: whether an agent of the server's own chose the knobs.

        Raises:
          UnknownSession, StorageFailure; EpisodeConflict: the episode is over, or elsewhere.
        """

        def task(sessions: Sessions) -> View:
            session = sessions.find(session_id)
            check_window(session, number)
            sessions.step(session, knobs, driven=driven)
            return session.view()

        return await self._worker.run(task)

    async def step_many(self, steps: Sequence[tuple[str, Knobs, int | None]]) -> BatchView:
        """One window of each session, all in one transaction; all of them or none.

        Args:
          steps: session, knobs and number, as ``step`` takes them; at least one.

        Raises:
          UnknownSession, EpisodeConflict, StorageFailure.
        """

        names, knobs, numbers = zip(*steps, strict=True)

        def task(sessions: Sessions) -> BatchView:
            chosen = sessions.find_many(names)
            for session, number in zip(chosen, numbers, strict=True):
                check_window(session, number)
            return sessions.step_many(chosen, knobs)

        return await self._worker.run(task)

    async def view(self, session_id: str | None) -> View:
        """Where a session stands.

        Raises:
          UnknownSession, EpisodeConflict.
        """
        return await self._worker.run(lambda sessions: sessions.find(session_id).view())

    async def drive(self, session_id: str | None, agent: str, windows: int) -> list[View]:
        """Lets an agent play up to ``windows`` windows, and stops at the end of the episode.

        Raises:
          InputError: no such agent. Overloaded, UnknownSession, EpisodeConflict, StorageFailure.
        """
        view = await self.view(session_id)
        driver = await self.background.run(self.agents.load, agent, view.episode.task)
        views = []
        for _ in range(windows):
            view = await self._worker.run(functools.partial(_drive, view.session_id, driver))
            views.append(view)
            if view.window.done:
                break
        return views

    async def history(self, session_id: str | None) -> History:
        """The log of a session's current episode.

        Raises:
          UnknownSession, EpisodeConflict.
        """

        def task(sessions: Sessions) -> History:
            session = sessions.find(session_id)
            return History(session.view(), tuple(sessions.steps(session)))

        return await self._worker.run(task)

    async def windows(self, history: History) -> list[Window]:
        """The reset and every window of a log, computed again."""
        return await self.background.run(_replayed, history)

    async def grade_session(self, session_id: str | None) -> tuple[View, Grade | LiveGrade]:
        """What a session's episode is worth so far, by its log.

        Raises:
          UnknownSession; EpisodeConflict: it was not played on the task as it is.
        """
        history = await self.history(session_id)
        episode = history.view.episode
        if episode.overrides:
            raise EpisodeConflict(
                f"the episode changed {', '.join(sorted(episode.overrides))} of {episode.task}; "
                "only the task as it is has a score"
            )
        actions = _stacked([step.knobs for step in history.steps])
        grade = await self.background.run(
            grade_actions, episode.task, episode.seed, actions, episode.split, episode.weights
        )
        # The log is this server's own: nobody else could have written it.
        return history.view, dataclasses.replace(grade, verified=True)

    async def grade_actions(self, episode: Episode, knobs: Sequence[Knobs]) -> Grade:
        """What a list of actions is worth.

        Raises:
          InputError: as ``jaxserve.grading.grade_actions``.
        """
        actions = _stacked(knobs)
        return await self.background.run(
            grade_actions, episode.task, episode.seed, actions, episode.split
        )

    async def grade_log(self, episode: Episode, log: Sequence[Mapping[str, Any]]) -> Grade:
        """What a log is worth, and whether its figures are true.

        Raises:
          InputError: as ``jaxserve.grading.grade_log``.
        """
        read_log(log)
        return await self.background.run(
            grade_log, episode.task, episode.seed, log, episode.split, episode.weights
        )

    async def compared(self, session_id: str | None) -> SessionComparison:
        """A session's traffic in the hands of the agents that it is compared with.

        Raises:
          UnknownSession, EpisodeConflict, Overloaded; InputError: the episode changed the task.
        """
        view = await self._simulated(session_id)
        played = await self._comparison_agents.of(view.episode)
        reward = environment(view.episode.task, view.episode.config).reward
        return SessionComparison(view, float(reward.expected_requests_per_s), played)

    async def replayed(self, session_id: str | None) -> tuple[View, TimeStep]:
        """What happened in every window of a session, by traffic class; NumPy leaves [T, ...].

        Raises:
          UnknownSession, EpisodeConflict, Overloaded; InputError: the episode changed the task.
        """
        await self._simulated(session_id)
        history = await self.history(session_id)
        episode = history.view.episode
        check_unchanged(episode)
        actions = _stacked([step.knobs for step in history.steps])
        timesteps = await self.background.run(
            replay_actions, episode.task, episode.seed, actions, episode.split
        )
        return history.view, timesteps

    async def _simulated(self, session_id: str | None) -> View:
        """The session, if simulated figures say something of it."""
        view = await self.view(session_id)
        if view.live is not None:
            raise EpisodeConflict(
                f"session {view.session_id!r} plays on a real engine; only simulated episodes can "
                "be computed again"
            )
        return view

    async def note(self, key: str) -> str | None:
        """What was kept under that name."""
        return await self._worker.run(lambda sessions: sessions.store.note(key))

    async def keep_note(self, key: str, text: str) -> None:
        """Keeps a text as long as the log.

        Raises:
          StorageFailure.
        """
        await self._worker.run(lambda sessions: sessions.keep_note(key, text))


def chosen_episode(
    task: str | int | None, seed: int | None, split: str | None, index: int | None
) -> tuple[str | int, int, str]:
    """Task, seed and split of a reset; what is left out is the entry's, the default or random.

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


def _stacked(knobs: Sequence[Knobs]) -> Actions:
    return programs.stack_knobs(knobs) if knobs else []


def _drive(session_id: str, driver: Driver, sessions: Sessions) -> View:
    session = sessions.find(session_id)
    sessions.step(session, driver(session), driven=True)
    return session.view()


def _replayed(history: History) -> list[Window]:
    view = history.view
    session = begin_session(view.session_id, 0, view.episode_id, view.episode)
    return [session.window, *catch_up(session, history.steps)]
