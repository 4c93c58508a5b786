"""The service whose windows are simulated: a worker thread, the session log, agents."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.episode_log import read_log
from jaxserve.errors import InputError
from jaxserve.grading import Actions, Grade, grade_actions, grade_log, replay_actions
from jaxserve.types import TimeStep
from server.background import BackgroundExecutor, SharedResults, StopSignal
from server.players.agents import Agents, Driver
from server.players.comparison_agents import ComparisonAgents, check_unchanged
from server.players.model_budget import ModelBudget
from server.request_errors import EpisodeConflict
from server.server_settings import Settings
from server.service import History, SessionComparison, chosen_episode
from server.sessions import programs
from server.sessions.compiling import Compiler
from server.sessions.episodes import Episode, environment, parse_episode
from server.sessions.programs import Knobs, Window
from server.sessions.replaying import catch_up
from server.sessions.session import (
    BatchView,
    DefaultSession,
    Session,
    SessionName,
    View,
    begin_session,
    check_window,
    new_session,
)
from server.sessions.sessions import Sessions
from server.sessions.store import LoggedDecision, Store, open_store
from server.sessions.worker import Worker

_DRIVERS_KEPT, _LOADING_S = 128, 120.0
"""Agents of a task that are found without a thread, and seconds that loading one may take."""
_RESETS_QUEUED = 10_000
"""Resets that wait at most: as many WebSockets as there may be begin together."""


class SimulatedService:
    """See ``Service``, whose methods these are."""

    def __init__(self, settings: Settings) -> None:
        """Opens the log.

        Raises:
          InputError: several processes would each keep a log in memory.
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
        # Work of a tenth of a second does not wait for work of seconds.
        self._short = BackgroundExecutor(threads=1)
        self._resets = BackgroundExecutor(threads=1, queued=_RESETS_QUEUED)
        self._drivers: SharedResults[Driver] = SharedResults(_DRIVERS_KEPT)
        self.model_budget = ModelBudget(self, settings.model_tokens)
        self._comparison_agents = ComparisonAgents(self.agents, self.background)

    async def start(self, compiler: Compiler) -> None:
        """See ``Service.start``."""
        await asyncio.wrap_future(compiler.ready)
        self._compiler = compiler
        self._worker.start(compiler)

    async def stop(self) -> None:
        """See ``Service.stop``."""
        for executor in (self.background, self._short, self._resets):
            executor.close()
        await asyncio.to_thread(self._worker.stop)

    @property
    def live_sessions(self) -> int:
        """See ``Service.live_sessions``."""
        return len(self._sessions)

    @property
    def windows_played(self) -> int:
        """See ``Service.windows_played``."""
        return self._sessions.windows_played

    @property
    def live(self) -> dict[str, Any] | None:
        """See ``Service.live``."""
        return None

    async def fault(self) -> str | None:
        """See ``Service.fault``."""
        return await self._worker.run(lambda sessions: sessions.store.fault())

    @property
    def durable(self) -> bool:
        """See ``Service.durable``."""
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
        session: SessionName | None = None,
    ) -> View:
        """See ``Service.reset``."""
        chosen = chosen_episode(task, seed, split, index)
        default = session if isinstance(session, DefaultSession) else None
        own_id = session if isinstance(session, str) else None

        def begun() -> Session | programs.Simulator:
            """A new session; the simulator if its program is not compiled."""
            episode = parse_episode(*chosen, config)
            simulator = programs.simulator(episode)
            if not programs.is_compiled(simulator, together=False):
                return simulator
            return new_session(own_id, episode_id, episode)

        assert self._compiler is not None
        while not isinstance(made := await self._resets.run(begun), Session):
            await asyncio.wrap_future(self._compiler.compiled(made, together=False))
        is_new = own_id is None
        return await self._worker.run(
            lambda sessions: sessions.begin(made, is_new=is_new, default=default).view()
        )

    async def step(
        self,
        session: SessionName,
        knobs: Knobs,
        number: int | None = None,
        decision: LoggedDecision | None = None,
        *,
        request_id: str | None = None,
    ) -> View:
        """See ``Service.step``."""

        def task(sessions: Sessions) -> View:
            found = sessions.find(session)
            if request_id is not None and sessions.has_answered(found, request_id):
                return found.view()
            check_window(found, number)
            sessions.step(found, knobs, decision)
            if request_id is not None:
                sessions.remember_request(found, request_id)
            return found.view()

        return await self._worker.run(task)

    async def step_many(self, steps: Sequence[tuple[str, Knobs, int | None]]) -> BatchView:
        """See ``Service.step_many``."""

        names, knobs, numbers = zip(*steps, strict=True)

        def task(sessions: Sessions) -> BatchView:
            chosen = sessions.find_many(names)
            for session, number in zip(chosen, numbers, strict=True):
                check_window(session, number)
            return sessions.step_many(chosen, knobs)

        return await self._worker.run(task)

    async def view(self, session: SessionName) -> View:
        """See ``Service.view``."""
        return await self._worker.run(lambda sessions: sessions.find(session).view())

    async def drive(self, session: SessionName, agent: str, windows: int) -> list[View]:
        """See ``Service.drive``."""
        view = await self.view(session)
        driver = await self._driver(agent, view.episode.task)
        views = []
        for _ in range(windows):
            view = await self._worker.run(functools.partial(_drive, view.session_id, driver, agent))
            views.append(view)
            if view.window.done:
                break
        return views

    async def _driver(self, agent: str, task: str) -> Driver:
        """The agent, loaded once for all who ask at the same time."""

        async def load(watch: StopSignal) -> Driver:
            del watch  # compiling cannot be stopped
            return await self.background.run(self.agents.load, agent, task)

        return await self._drivers.get((agent, task), load, _LOADING_S)

    async def history(self, session: SessionName, *, watching: bool = False) -> History:
        """See ``Service.history``; simulated sessions have no id for others."""

        def task(sessions: Sessions) -> History:
            found = sessions.find(session)
            steps = tuple(sessions.steps(found))
            return History(found.view(), steps, sessions.decisions(found))

        return await self._worker.run(task)

    async def windows(self, history: History) -> list[Window]:
        """The reset and every window of a log, computed again."""
        return await self._short.run(_replayed, history)

    async def grade_session(self, session: SessionName) -> tuple[View, Grade]:
        """See ``Service.grade_session``."""
        history = await self.history(session)
        episode = history.view.episode
        if episode.overrides:
            raise EpisodeConflict(
                f"the episode changed {', '.join(sorted(episode.overrides))} of {episode.task}; "
                "only the task as it is has a score"
            )
        actions = _stacked([step.knobs for step in history.steps])
        grade = await self._short.run(
            grade_actions, episode.task, episode.seed, actions, episode.split, episode.weights
        )
        # The log is the server's own, so the grade is verified.
        return history.view, dataclasses.replace(grade, verified=True)

    async def grade_actions(self, episode: Episode, knobs: Sequence[Knobs]) -> Grade:
        """See ``Service.grade_actions``."""
        _check_windows(episode, len(knobs))
        actions = _stacked(knobs)
        return await self._short.run(
            grade_actions, episode.task, episode.seed, actions, episode.split
        )

    async def grade_log(self, episode: Episode, log: Sequence[Mapping[str, Any]]) -> Grade:
        """See ``Service.grade_log``."""
        _check_windows(episode, len(read_log(log)[0]))
        return await self._short.run(
            grade_log, episode.task, episode.seed, log, episode.split, episode.weights
        )

    async def compared(self, session: SessionName) -> SessionComparison:
        """See ``Service.compared``."""
        view = await self.view(session)
        played = await self._comparison_agents.of(view.episode)
        reward = environment(view.episode.task, view.episode.config).reward
        return SessionComparison(view, float(reward.expected_requests_per_s), played)

    async def replayed(self, session: SessionName) -> tuple[View, TimeStep]:
        """See ``Service.replayed``."""
        history = await self.history(session)
        episode = history.view.episode
        check_unchanged(episode)
        actions = _stacked([step.knobs for step in history.steps])
        timesteps = await self._short.run(
            replay_actions, episode.task, episode.seed, actions, episode.split
        )
        return history.view, timesteps

    async def note(self, key: str) -> str | None:
        """See ``Service.note``."""
        return await self._worker.run(lambda sessions: sessions.note(key))

    async def keep_note(self, key: str, text: str) -> None:
        """See ``Service.keep_note``."""
        await self._worker.run(lambda sessions: sessions.keep_note(key, text))


def _stacked(knobs: Sequence[Knobs]) -> Actions:
    return programs.stack_knobs(knobs) if knobs else []


def _check_windows(episode: Episode, windows: int) -> None:
    """Raises InputError if more windows are stated than an episode of the task has."""
    horizon = int(environment(episode.task, "{}").horizon)
    if windows > horizon:
        raise InputError(
            f"{windows} actions are given; an episode of {episode.task} has {horizon} windows"
        )


def _drive(session_id: str, driver: Driver, agent: str, sessions: Sessions) -> View:
    session = sessions.find(session_id)
    sessions.step(session, driver(session), LoggedDecision(agent))
    return session.view()


def _replayed(history: History) -> list[Window]:
    view = history.view
    session = begin_session(view.session_id, 0, view.episode_id, view.episode)
    return [session.window, *catch_up(session, history.steps)]
