"""The service that plays episodes on a real engine, one at a time."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxserve.errors import InputError
from jaxserve.grading import Grade
from jaxserve.types import TimeStep
from server.live.live_episode import Connection, EngineEpisode
from server.live.live_log import LiveLog, LiveStep, LoggedEpisode
from server.players.agents import Driver
from server.request_errors import EpisodeConflict, StorageFailure, UnknownSession
from server.server_settings import Settings
from server.service import History, LiveGrade, SessionComparison, chosen_episode
from server.sessions.compiling import Compiler
from server.sessions.episodes import Episode, parse_episode
from server.sessions.programs import Knobs, Window, WindowColumns
from server.sessions.session import (
    NO_DEFAULT,
    NOT_BEGUN,
    BatchView,
    DefaultSession,
    Session,
    SessionName,
    View,
    begin_session,
    check_running,
    check_window,
    unknown_session,
)
from server.sessions.store import LoggedDecision, LoggedStep
from server.simulated_service import SimulatedService

_IDLE_S = 60.0
"""Idle time after which another session may take the engine."""
_BUSY = "a window or a reset is under way, and there is one at a time"

T = TypeVar("T")


@dataclasses.dataclass
class LiveSession:
    """A session and its episode, under way or from the log."""

    session: Session
    steps: list[LiveStep]
    first: Window
    """observation of the reset."""
    play: EngineEpisode | None = None
    """None: the episode cannot go on."""
    request_id: str | None = None
    """id of the request that played the last window, if the client gave it one."""
    watch_id: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(16))
    """id for those who may read the episode's log and not play."""
    used_s: float = dataclasses.field(default_factory=time.monotonic)
    """time of the reset or the last step, monotonic clock, s."""

    @classmethod
    def begin(cls, logged: LoggedEpisode, play: EngineEpisode | None) -> LiveSession:
        """The session before its first window."""
        episode = Episode.from_json(logged.spec)
        session = begin_session(logged.session, logged.number, logged.name, episode)
        return cls(session, [], session.window, play)

    @property
    def plays(self) -> bool:
        """Whether the session holds the engine."""
        idle_s = time.monotonic() - self.used_s
        return self.play is not None and not self.session.over and idle_s < _IDLE_S

    def append(self, step: LiveStep) -> None:
        """Adds one window."""
        self.steps.append(step)
        self.session.append(self.session.state, _one(step.window), 0, step.knobs)

    def view(self) -> View:
        """A snapshot, which may leave the thread that plays."""
        return self.session.view()._replace(live=self.steps[-1].about if self.steps else {})


class LiveService:
    """See ``Service``: every step plays a window of real time on the engine.

    Grades of stated actions and logs are simulated.
    """

    def __init__(self, settings: Settings) -> None:
        """Opens both logs.

        Raises:
          InputError: settings contradict live play.
        """
        if settings.workers > 1:
            raise InputError(
                f"JAXSERVE_MODE is live and there are {settings.workers} server processes; one "
                "plays live"
            )
        simulated = self._simulated = SimulatedService(settings)
        self.settings, self.agents = settings, simulated.agents
        self.background, self.model_budget = simulated.background, simulated.model_budget
        assert settings.live is not None
        if not self.durable:
            raise InputError(
                "JAXSERVE_MODE is live and the session log is in memory; what was spent must be "
                "kept, so set JAXSERVE_DATABASE to a file that can be written"
            )
        self._limits = settings.live
        self._log = LiveLog(Path(settings.database), settings.live.token_limit)
        self._connection = Connection(settings.live, self._log)
        self._current: LiveSession | None = None
        self._busy = False
        self._windows_played = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jaxserve-live", daemon=True
        )

    async def start(self, compiler: Compiler) -> None:
        """See ``Service.start``; the first reset connects to the engine."""
        await self._simulated.start(compiler)
        self._thread.start()

    async def stop(self) -> None:
        """Abandons the episode under way and closes the logs."""
        if self._thread.is_alive():
            await self._here(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
        self._log.close()
        await self._simulated.stop()

    async def fault(self) -> str | None:
        """See ``Service.fault``; a fault of either log, or of the engine."""
        return await self._simulated.fault() or await self._here(self._own_fault())

    @property
    def windows_played(self) -> int:
        """See ``Service.windows_played``."""
        return self._windows_played

    @property
    def live(self) -> dict[str, Any] | None:
        """Provider, model, limits, tokens spent, and the id by which others may follow the session
        that plays."""
        current = self._current
        return {
            "provider": self._limits.provider,
            "model": self._limits.model,
            "max_requests_per_step": self._limits.max_requests,
            "max_prompt_tokens": self._limits.max_prompt_tokens,
            "max_completion_tokens": self._limits.max_completion_tokens,
            "token_limit": self._limits.token_limit,
            "tokens_spent": self._log.spent,
            "watch_id": None if current is None else current.watch_id,
            "requests_in_flight": current.play.in_flight if current and current.play else 0,
        }

    @property
    def durable(self) -> bool:
        """See ``Service.durable``."""
        return self._simulated.durable

    @property
    def live_sessions(self) -> int:
        """1 while a session plays, else 0."""
        return 0 if self._current is None else 1

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
        """See ``Service.reset``; only its id or its connection names an episode under way."""
        chosen = chosen_episode(task, seed, split, index)
        episode = await asyncio.to_thread(parse_episode, *chosen, config)
        own_id = session if isinstance(session, str) else None
        view = await self._here(self._reset(own_id, episode_id, episode))
        if isinstance(session, DefaultSession) and self.settings.token is None:
            await self.keep_note(session.key, view.session_id)
        return view

    async def step(
        self,
        session: SessionName,
        knobs: Knobs,
        number: int | None = None,
        decision: LoggedDecision | None = None,
        *,
        request_id: str | None = None,
    ) -> View:
        """See ``Service.step``.

        Raises:
          EpisodeConflict, further: a window is being played, or a restart ended the episode.
        """
        asked = self._step(await self._id(session), knobs, number, decision, request_id)
        return await self._here(asked)

    async def step_many(self, steps: Sequence[tuple[str, Knobs, int | None]]) -> BatchView:
        """Refuses: there is one engine."""
        raise EpisodeConflict("a live server plays one session at a time; use /step")

    async def view(self, session: SessionName) -> View:
        """See ``Service.view``."""
        return (await self._here(self._logged(await self._id(session)))).view

    async def drive(self, session: SessionName, agent: str, windows: int) -> list[View]:
        """See ``Service.drive``."""
        view = await self.view(session)
        driver = await self.background.run(self.agents.load, agent, view.episode.task)
        views = []
        for _ in range(windows):
            own = self._step(view.session_id, driver, None, LoggedDecision(agent))
            views.append(await self._here(own))
            if views[-1].window.done:
                break
        return views

    async def history(self, session: SessionName, *, watching: bool = False) -> History:
        """See ``Service.history``."""
        logged = await self._here(self._logged(await self._id(session), watching))
        decisions = [step.about.get("decision") for step in logged.steps]
        steps = tuple(
            LoggedStep(False, step.window.reward, step.knobs, decision is not None)
            for step, decision in zip(logged.steps, decisions, strict=True)
        )
        made = {n: LoggedDecision(**each) for n, each in enumerate(decisions) if each is not None}
        return History(logged.view, steps, made)

    async def windows(self, history: History) -> list[Window]:
        """The reset and every window, as measured."""
        logged = await self._here(self._logged(history.view.session_id, True))
        if logged.view.episode_id != history.view.episode_id:
            raise EpisodeConflict(f"session {history.view.session_id!r} was reset meanwhile")
        measured = [step.window for step in logged.steps[: len(history.steps)]]
        return [logged.first, *measured]

    async def grade_session(self, session: SessionName) -> tuple[View, LiveGrade]:
        """The measured figures; there is no score."""
        logged = await self._here(self._logged(await self._id(session)))
        return logged.view, _measured_figures(logged.steps)

    async def grade_actions(self, episode: Episode, knobs: Sequence[Knobs]) -> Grade:
        """See ``Service.grade_actions``."""
        return await self._simulated.grade_actions(episode, knobs)

    async def grade_log(self, episode: Episode, log: Sequence[Mapping[str, Any]]) -> Grade:
        """See ``Service.grade_log``."""
        return await self._simulated.grade_log(episode, log)

    async def compared(self, session: SessionName) -> SessionComparison:
        """Refuses: live windows cannot be computed again."""
        raise _not_simulated(await self.view(session))

    async def replayed(self, session: SessionName) -> tuple[View, TimeStep]:
        """Refuses as ``compared``."""
        raise _not_simulated(await self.view(session))

    async def note(self, key: str) -> str | None:
        """See ``Service.note``."""
        return await self._simulated.note(key)

    async def keep_note(self, key: str, text: str) -> None:
        """See ``Service.keep_note``."""
        await self._simulated.keep_note(key, text)

    async def _id(self, session: SessionName) -> str:
        """The id that a name stands for."""
        if isinstance(session, str):
            return session
        found = None if self.settings.token is not None else await self.note(session.key)
        if found is None:
            raise UnknownSession(NOT_BEGUN if self.settings.token is None else NO_DEFAULT)
        return found

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work in the thread that plays, to its end even if the client disconnects."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    async def _reset(self, session_id: str | None, name: str | None, episode: Episode) -> View:
        current = self._current
        own = current is not None and current.session.id == session_id
        if self._busy:
            raise EpisodeConflict(_BUSY)
        if current is not None and not own and current.plays:
            raise EpisodeConflict(
                "a session plays on the engine, one at a time; reset it by its session_id, or wait "
                f"until it is over or has not stepped for {_IDLE_S:g} s"
            )
        if session_id is not None and not own:
            self._find(session_id)
        self._busy = True
        try:
            client = await self._connection.open()
            play = await asyncio.to_thread(EngineEpisode, self._connection, client, episode)
            session_id = session_id or secrets.token_urlsafe(16)
            name = name or secrets.token_hex(16)
            logged = self._log.begin(session_id, name, episode.to_json())
            await self._end_current()
            self._current = LiveSession.begin(logged, play)
            return self._current.view()
        finally:
            self._busy = False

    async def _step(
        self,
        session_id: str,
        knobs: Knobs | Driver,
        number: int | None = None,
        decision: LoggedDecision | None = None,
        request_id: str | None = None,
    ) -> View:
        live = self._find(session_id)
        if live.play is None:
            raise EpisodeConflict(
                f"the live episode of session {live.session.id!r} was ended by a restart of the "
                "server or by another session; reset it to begin another"
            )
        session = live.session
        if self._busy:
            raise EpisodeConflict(_BUSY)
        if request_id is not None and request_id == live.request_id:
            return live.view()
        check_running(session.id, session.steps, session.over)
        check_window(session, number)
        self._busy = True
        try:
            if not isinstance(knobs, tuple):
                knobs = await asyncio.to_thread(knobs, session)
            window, about = await live.play.window(knobs)
            about |= {} if decision is None else {"decision": decision._asdict()}
            step = LiveStep(knobs, window, about)
            try:
                self._log.add(session.number, session.steps, step)
            except StorageFailure:
                await live.play.drop()
                raise
            live.play.accept()
            live.append(step)
            live.request_id = request_id
            self._windows_played += 1
            if session.over:
                await live.play.close()
            return live.view()
        finally:
            live.used_s = time.monotonic()
            self._busy = False

    async def _own_fault(self) -> str | None:
        return self._log.fault() or await self._connection.fault()

    async def _logged(self, session_id: str, watching: bool = False) -> _Logged:
        """A snapshot of a session.

        Args:
          watching: whether ``session_id`` may also be a session's ``watch_id``.
        """
        current = self._current
        watched = watching and current is not None and session_id == current.watch_id
        found = current if watched and current is not None else self._find(session_id)
        return _Logged(
            found.view()._replace(session_id=session_id), tuple(found.steps), found.first
        )

    def _find(self, session_id: str) -> LiveSession:
        if self._current is not None and self._current.session.id == session_id:
            return self._current
        found = self._log.episode(session_id)
        if found is None:
            raise unknown_session(session_id)
        ended = LiveSession.begin(found, None)
        for step in self._log.windows(found.number):
            ended.append(step)
        return ended

    async def _end_current(self) -> None:
        if self._current is not None:
            current, self._current = self._current, None
            if current.play is not None:
                await current.play.close()

    async def _end(self) -> None:
        await self._end_current()
        await self._connection.close()


class _Logged(NamedTuple):
    """A snapshot of a whole episode."""

    view: View
    steps: tuple[LiveStep, ...]
    first: Window


def _not_simulated(view: View) -> EpisodeConflict:
    return EpisodeConflict(
        f"session {view.session_id!r} plays on a real engine; only simulated episodes can be "
        "computed again"
    )


def _one(window: Window) -> WindowColumns:
    """A window as columns of one entry."""
    return WindowColumns(
        observation={name: [value] for name, value in window.observation.items()},
        reward=[window.reward],
        done=[window.done],
        parts={name: [value] for name, value in window.parts.items()},
        completed=[window.completed],
        good=[window.good],
        failed=[window.failed],
        figures={name: [value] for name, value in window.figures.items()},
    )


def _measured_figures(steps: Sequence[LiveStep]) -> LiveGrade:
    good = sum(step.window.good for step in steps)
    ended = good + sum(step.window.failed for step in steps)
    seconds = sum(step.about["seconds"] for step in steps)
    return LiveGrade(
        mean_reward=sum(step.window.reward for step in steps) / max(len(steps), 1),
        windows=len(steps),
        requests_completed=sum(step.window.completed for step in steps),
        requests_good=good,
        goodput_rps=good / seconds if seconds else 0.0,
        slo_attainment=good / ended if ended else None,
        tokens_booked=sum(step.about["tokens_booked"] for step in steps),
        feedback="a live episode has no simulated score; these are its measured figures",
    )
