"""What a node does with a session, from REGISTERED to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jaxserve.client import AsyncServeClient, ConnectionLost, ServerError
from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts import builders
from jaxserve.rollouts.bounded_process import Ended
from jaxserve.rollouts.evaluators import Context, Episode, EvalResult
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.files import line_of
from jaxserve.rollouts.service import lifecycle
from jaxserve.rollouts.service.control import Control
from jaxserve.rollouts.service.execution import Execution, Place, copy_artifacts
from jaxserve.rollouts.service.folders import Folders, write_files
from jaxserve.rollouts.service.grades import Grade, grade_of, graded
from jaxserve.rollouts.service.leases import Book, Lease
from jaxserve.rollouts.service.settings import RolloutTokens, WorkSettings
from jaxserve.rollouts.service.submission import Task, parse_task
from jaxserve.rollouts.service.variables import admission_of, ours_of
from jaxserve.rollouts.traces import Trajectory

_LOG = logging.getLogger("jaxserve.rollouts")
_RESET_S = 60.0
"""For an environment's server to begin an episode."""
_AFTER_EVALUATION_S = 30.0


class _Left(Exception):
    """Somebody else has the session, or it has ended."""


@dataclass(frozen=True)
class Run:
    """How an agent's run ended."""

    status: str
    """COMPLETED, TIMEOUT or ERROR."""
    reason: str
    """why it is not COMPLETED."""
    exit_code: int | None
    """of the agent; None where it did not run."""


class Pools:
    """How many sessions are in a stage at a time."""

    def __init__(self, settings: WorkSettings) -> None:
        """Args: how many workers each has."""
        self.init = asyncio.Semaphore(settings.init_workers)
        self.run = asyncio.Semaphore(settings.run_workers)
        self.post_run = asyncio.Semaphore(settings.post_run_workers)
        self.evaluation = asyncio.Semaphore(settings.eval_workers)
        self.prewarm = asyncio.Semaphore(settings.prewarm_workers)


class Worker:
    """Brings sessions to their end."""

    def __init__(
        self, settings: WorkSettings, tokens: RolloutTokens, book: Book, control: Control
    ) -> None:
        """Args: what the operator chose; where sessions stand; the gateway that records them."""
        self._settings, self._tokens = settings, tokens
        self._book, self._control = book, control
        self._pools = Pools(settings)

    async def finish(self, lease: Lease) -> None:
        """Brings a session to its end, whatever state it is in."""
        work = _Work(lease, self._settings, self._tokens, self._book, self._control, self._pools)
        with contextlib.suppress(_Left):
            try:
                await work.finish()
            except InputError as error:
                await work.end(lifecycle.ERROR, str(error))
            except Exception as error:
                _LOG.exception("session %s failed", lease.session.id)
                reason = f"the node failed: {type(error).__name__}: {error}"
                await work.end(lifecycle.ERROR, reason)


class _Work:
    """The work on one session."""

    def __init__(
        self,
        lease: Lease,
        settings: WorkSettings,
        tokens: RolloutTokens,
        book: Book,
        control: Control,
        pools: Pools,
    ) -> None:
        self._lease, self._settings, self._tokens = lease, settings, tokens
        self._book, self._control, self._pools = book, control, pools
        self._session = lease.session
        self._prewarmed: asyncio.Task[Path] | None = None

    async def finish(self) -> None:
        """See ``Worker``."""
        task = await asyncio.to_thread(parse_task, self._lease.spec)
        try:
            if self._session.state not in lifecycle.AFTER_RUN:
                await self._forget_attempt(task)
                await self._run(task)
            await self._after_run(task)
        except BaseException:
            # Nobody speaks in it any more, whoever has it now.
            with contextlib.suppress(InputError):
                await asyncio.shield(self._control.shut(self._session.recorded, 0.0))
            raise
        finally:
            if self._prewarmed is not None:
                self._prewarmed.cancel()

    async def end(self, state: str, reason: str) -> None:
        """Ends it without traces; what was recorded of it is named."""
        await self._move(state, reason, result=self._session.no_result)

    async def _forget_attempt(self, task: Task) -> None:
        """Ends what a killed node may have left of an attempt: its key, and its container."""
        if self._session.attempt:
            await self._control.shut(self._session.recorded)
            top = self._folders(task).top
            await self._execution(task, 0.0).remove(top)

    async def _run(self, task: Task) -> None:
        """Prepares a session and runs its agent; leaves it in POST_RUN."""
        async with self._pools.init:
            attempt = self._session.attempt + 1
            execution = self._execution(task, task.timeout_s)
            await self._move(lifecycle.INITIALIZING, attempt=attempt)
            folders = self._folders(task)
            await asyncio.to_thread(folders.make, task.runtime.source)
            said = {"task": task.id, "sample": self._session.sample, "attempt": attempt}
            key = await self._control.create(self._session.recorded, said)
            episode = await self._begin_episode(task)
            told = _instruction(task.instruction, episode)
            admission = admission_of(episode, self._tokens.environment)
            guarded = None if admission is None else admission.url
            launch = task.agent.launch(told, self._settings.gateway, key, folders.home, guarded)
            ours = ours_of(task.id, self._session.id, folders, launch, episode)
            redaction = Redaction((key, *vars(self._tokens).values()))
            printed = folders.top / "prepare.log"
            place = Place(folders.top, folders.work, ours, printed, redaction)
            run = None
            for name, command in (
                *((f"runtime: prepare[{n}]", one) for n, one in enumerate(task.runtime.prepare)),
                *((f"agent: setup[{n}]", one) for n, one in enumerate(launch.setup)),
            ):
                ended = _run_of(name, await execution.run(command, place))
                if ended.status != lifecycle.COMPLETED:
                    run = ended
                    break
            await asyncio.to_thread(write_files, launch)
        if _needs_fresh(task):
            self._prewarmed = asyncio.create_task(self._prewarm(task))
        await self._move(lifecycle.READY, episode=None if episode is None else vars(episode))
        if run is None:
            async with self._pools.run:
                await self._move(lifecycle.RUNNING)
                ours = ours if admission is None else admission.given(ours)
                place = replace(place, ours=ours, printed=folders.printed)
                run = _run_of("the agent", await execution.run(launch.argv, place, launch.stdin))
        await self._move(lifecycle.POST_RUN, run=vars(run))

    async def _after_run(self, task: Task) -> None:
        """Builds and evaluates what was said, and ends the session."""
        run = Run(**self._session.run)
        async with self._pools.post_run:
            await self._control.shut(self._session.recorded)
            await self._move(lifecycle.BUILDING)
            records = await self._control.records(self._session.recorded)
            build = getattr(builders, task.builder)
            trajectory = await asyncio.to_thread(lambda: exported(build(records, run.status)))
        async with self._pools.evaluation:
            await self._move(lifecycle.EVALUATING)
            try:
                worth = await self._evaluate(task, records, trajectory)
                grade = grade_of(records, trajectory, worth)
            except Exception as error:
                run = _without_grade(run, error)
                grade = Grade(None, [None] * len(trajectory.traces))
                trajectory = replace(trajectory, status=run.status)
        trajectory, result = graded(self._session, trajectory, grade)
        completions = sum(record.outcome == "completed" for record in records)
        result |= {"exit_code": run.exit_code, "completions": completions}
        line = await asyncio.to_thread(line_of, trajectory)
        await self._move(run.status, run.reason, line, result=result)

    async def _begin_episode(self, task: Task) -> Episode | None:
        """Begins the task's episode on its environment's server.

        Raises:
          InputError: the server refuses it, or does not answer.
        """
        if task.environment is None:
            return None
        asked = {name: value for name, value in task.environment.items() if name != "url"}
        url, token = task.environment["url"], self._tokens.environment
        try:
            async with AsyncServeClient(url, token=token, patience_s=_RESET_S) as client:
                await client.reset(**asked)
                told = (await client.observe()).info
        except (ServerError, ConnectionLost) as error:
            raise InputError(f"the environment at {url} begins no episode: {error}") from None
        names = ("session_id", "episode_id", "episode_number", "task_id", "seed", "split")
        return Episode(url=url, **{name: told[name] for name in names})

    async def _prewarm(self, task: Task) -> Path:
        """The evaluator's folder, with a prepared copy of the source where it needs one.

        Raises:
          InputError: it cannot be made.
        """
        async with self._pools.prewarm:
            folders = self._folders(task)
            fresh = _needs_fresh(task)
            source = task.runtime.source if fresh else None
            top = await asyncio.to_thread(folders.fresh, source)
            if not fresh:
                return top
            execution = self._execution(task, self._settings.eval_s)
            place = Place.of_evaluation(top, top / "prepare.log")
            for number_, command in enumerate(task.runtime.eval_prepare):
                name = f"runtime: eval_prepare[{number_}]"
                run = _run_of(name, await execution.run(command, place))
                if run.status != lifecycle.COMPLETED:
                    raise InputError(run.reason)
            return top

    async def _evaluate(
        self, task: Task, records: list[CompletionRecord], trajectory: Trajectory
    ) -> EvalResult:
        if self._prewarmed is None:
            self._prewarmed = asyncio.create_task(self._prewarm(task))
        folders, top = self._folders(task), await self._prewarmed
        if _needs_fresh(task):
            await asyncio.to_thread(copy_artifacts, folders.artifacts, top / "artifacts")
        execution = self._execution(task, self._settings.eval_s)
        context = Context(
            session=self._session.id,
            instruction=task.instruction,
            work=folders.work,
            artifacts=folders.artifacts,
            scratch=top,
            fresh=top / "work",
            execute=partial(execution.run_and_wait, Place.of_evaluation(top, top)),
            source=task.runtime.source,
            records=records,
            episode=None if self._session.episode is None else Episode(**self._session.episode),
            budget_s=self._settings.eval_s,
            environment_token=self._tokens.environment,
            metadata=task.metadata,
        )
        call = asyncio.to_thread(task.evaluator.evaluate, trajectory, context)
        try:
            return await asyncio.wait_for(call, self._settings.eval_s + _AFTER_EVALUATION_S)
        except TimeoutError:
            raise InputError(
                f"the evaluator took longer than --eval-s, {self._settings.eval_s:g} s"
            ) from None

    def _folders(self, task: Task) -> Folders:
        top = Path(self._settings.save_dir).absolute() / "tasks" / task.id
        return Folders(top / f"{self._session.sample}.{self._session.attempt}")

    def _execution(self, task: Task, budget_s: float) -> Execution:
        return Execution(task.runtime, budget_s, self._settings.output_mib * 2**20)

    async def _move(self, state: str, reason: str = "", line: bytes = b"", **values: Any) -> None:
        if not await self._book.move(self._lease, state, reason, values, line):
            raise _Left
        self._session = replace(self._session, state=state, **values)


def _needs_fresh(task: Task) -> bool:
    return getattr(task.evaluator, "needs_fresh", False)


def _instruction(text: str, episode: Episode | None) -> str:
    """What the agent is told: with the episode that it plays, where the text asks for it."""
    if episode is None:
        return text
    text = text.replace("{{ENVIRONMENT_URL}}", episode.url)
    return text.replace("{{ENVIRONMENT_SESSION_ID}}", episode.session_id)


def _run_of(who: str, ended: Ended) -> Run:
    if ended.reason:
        return Run(lifecycle.ERROR, f"{who}: {ended.reason}", None)
    if ended.timed_out:
        return Run(lifecycle.TIMEOUT, f"{who} ran until the time was up", ended.code)
    if ended.code:
        return Run(lifecycle.ERROR, f"{who} ended with exit code {ended.code}", ended.code)
    return Run(lifecycle.COMPLETED, "", 0)


def _without_grade(run: Run, error: Exception) -> Run:
    """The end of a session whose evaluation failed: why, after what the agent's run says."""
    said = str(error)
    if not isinstance(error, InputError):
        _LOG.error("an evaluator failed", exc_info=error)
        said = f"the evaluator failed: {type(error).__name__}: {error}"
    reason = f"{run.reason}; {said}" if run.reason else said
    return replace(run, status=lifecycle.ERROR, reason=reason)
