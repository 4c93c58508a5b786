"""The work of a node: each of its sessions from REGISTERED to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jaxserve.client import AsyncServeClient, ConnectionLost, ServerError
from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts import builders
from jaxserve.rollouts.bounded_process import ProcessExit
from jaxserve.rollouts.evaluators import EnvironmentEpisode, EvalResult, EvaluationContext
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.files import trajectory_line
from jaxserve.rollouts.service.control_client import ControlClient
from jaxserve.rollouts.service.settings import RolloutTokens, WorkSettings
from jaxserve.rollouts.service.state import lifecycle
from jaxserve.rollouts.service.state.lifecycle import Lease
from jaxserve.rollouts.service.state.session_writer import SessionWriter
from jaxserve.rollouts.service.worker.execution import (
    CommandPlace,
    Execution,
    copy_artifacts,
    environment_token,
    evaluation_variables,
    session_variables,
)
from jaxserve.rollouts.service.worker.grades import SessionGrade, apply_grade, check_grade
from jaxserve.rollouts.service.worker.task import RolloutTask, parse_task
from jaxserve.rollouts.service.worker.workspace import Workspace, write_files
from jaxserve.rollouts.traces import Trajectory

_LOG = logging.getLogger("jaxserve.rollouts")
_RESET_S = 60.0
"""Time limit for an environment's server to begin an episode."""
_AFTER_EVALUATION_S = 30.0


class _LeaseLost(Exception):
    """The lease is void: another node holds the session, or it has ended."""


@dataclass(frozen=True)
class AgentRun:
    """End of an agent's run."""

    status: str
    """COMPLETED, TIMEOUT or ERROR."""
    reason: str
    """reason of an end that is not COMPLETED."""
    exit_code: int | None
    """exit code of the agent; None where it did not run."""


class SessionWorker:
    """Takes sessions to their end."""

    def __init__(
        self,
        settings: WorkSettings,
        tokens: RolloutTokens,
        writer: SessionWriter,
        control: ControlClient,
    ) -> None:
        """Args: settings and secrets; the writer of progress; the gateway that records sessions."""
        self._settings, self._tokens = settings, tokens
        self._writer, self._control = writer, control
        self._slots = {name: asyncio.Semaphore(size) for name, size in settings.pools.items()}

    async def finish(self, lease: Lease) -> None:
        """Takes a session from any state to its end."""
        work = _SessionRun(
            lease, self._settings, self._tokens, self._writer, self._control, self._slots
        )
        with contextlib.suppress(_LeaseLost):
            try:
                await work.finish()
            except InputError as error:
                await work.end(lifecycle.ERROR, str(error))
            except _LeaseLost:
                raise
            except Exception as error:
                _LOG.exception("session %s failed", lease.session.id)
                reason = f"the node failed: {type(error).__name__}: {error}"
                await work.end(lifecycle.ERROR, reason)


class WorkerPool:
    """The sessions that a node works on, each in a task of its own."""

    def __init__(self, worker: SessionWorker) -> None:
        """Args: the worker that takes each session to its end."""
        self._worker = worker
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Sessions and lease numbers that are worked on."""
        return list(self._running)

    def take(self, held: Collection[tuple[str, int]], new: Sequence[Lease]) -> None:
        """Ends the work on sessions that the node lost, and begins the work on new ones.

        Args:
          held: keys of all leases of the node.
          new: leases whose work may not have begun.
        """
        for key, work in self._running.items():
            if key not in held:
                work.cancel()
        for lease in new:
            if lease.key not in self._running:
                work = asyncio.create_task(self._worker.finish(lease))
                self._running[lease.key] = work
                work.add_done_callback(lambda _, key=lease.key: self._running.pop(key, None))

    async def end(self, session: str) -> None:
        """Ends the work on a session, and its agent."""
        ended = [work for (id, _), work in self._running.items() if id == session]
        for work in ended:
            work.cancel()
        if ended:
            await asyncio.wait(ended)

    async def close(self) -> None:
        """Ends the work on all sessions."""
        running = tuple(self._running.values())
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _SessionRun:
    """The run of one session."""

    def __init__(
        self,
        lease: Lease,
        settings: WorkSettings,
        tokens: RolloutTokens,
        writer: SessionWriter,
        control: ControlClient,
        slots: Mapping[str, asyncio.Semaphore],
    ) -> None:
        self._lease, self._settings, self._tokens = lease, settings, tokens
        self._writer, self._control, self._slots = writer, control, slots
        self._session = lease.session
        self._prewarmed: asyncio.Task[Path] | None = None

    async def finish(self) -> None:
        """See ``SessionWorker.finish``."""
        task = await asyncio.to_thread(parse_task, self._lease.spec)
        try:
            if self._session.state not in lifecycle.AFTER_RUN:
                await self._forget_attempt(task)
                await self._run(task)
            await self._after_run(task)
        except BaseException:
            # Close the key: whichever node holds the session next makes a new one.
            with contextlib.suppress(InputError):
                await asyncio.shield(self._control.shut(self._session.recorded, 0.0))
            raise
        finally:
            if self._prewarmed is not None:
                self._prewarmed.cancel()

    async def end(self, state: str, reason: str) -> None:
        """Ends the session without traces; its result names the records."""
        await self._move(state, reason, result=self._session.no_result)

    async def _forget_attempt(self, task: RolloutTask) -> None:
        """Closes the key and removes the container that a killed node may have left."""
        if self._session.attempt:
            await self._control.shut(self._session.recorded)
            await self._execution(task, self._workspace(task).top, 0.0).remove()

    async def _run(self, task: RolloutTask) -> None:
        """Prepares the session and runs its agent, up to POST_RUN."""
        async with self._slots["init"]:
            attempt = self._session.attempt + 1
            await self._move(lifecycle.INITIALIZING, attempt=attempt)
            workspace = self._workspace(task)
            execution = self._execution(task, workspace.top, task.timeout_s)
            inside = execution.inside
            await asyncio.to_thread(workspace.make, task.runtime.source)
            metadata = {"task": task.id, "sample": self._session.sample, "attempt": attempt}
            key = await self._control.create(self._session.recorded, metadata)
            episode = await self._begin_episode(task)
            instruction = _instruction(task.instruction, episode)
            token = environment_token(episode, self._tokens.environment)
            launch = task.agent.launch(
                instruction,
                self._settings.gateway,
                key,
                inside.home,
                None if token is None else token.url,
            )
            variables = session_variables(task.id, self._session.id, inside, launch, episode)
            redaction = Redaction((key, *vars(self._tokens).values()))
            printed = workspace.top / "prepare.log"
            place = CommandPlace(variables, printed, redaction)
            run = None
            for name, command in (
                *((f"runtime: prepare[{n}]", one) for n, one in enumerate(task.runtime.prepare)),
                *((f"agent: setup[{n}]", one) for n, one in enumerate(launch.setup)),
            ):
                ended = _agent_run(name, await execution.run(command, place))
                if ended.status != lifecycle.COMPLETED:
                    run = ended
                    break
            await asyncio.to_thread(write_files, launch, inside, workspace)
        if _needs_fresh(task):
            self._prewarmed = asyncio.create_task(self._prewarm(task))
        await self._move(lifecycle.READY, episode=None if episode is None else vars(episode))
        if run is None:
            async with self._slots["run"]:
                await self._move(lifecycle.RUNNING)
                given = variables if token is None else token.given(variables)
                place = replace(place, variables=given, printed=workspace.printed)
                run = _agent_run("the agent", await execution.run(launch.argv, place, launch.stdin))
        await self._move(lifecycle.POST_RUN, run=vars(run))

    async def _after_run(self, task: RolloutTask) -> None:
        """Builds traces of the records, evaluates them and ends the session."""
        run = AgentRun(**self._session.run)
        async with self._slots["post_run"]:
            await self._control.shut(self._session.recorded)
            await self._move(lifecycle.BUILDING)
            records = await self._control.records(self._session.recorded)
            build = getattr(builders, task.builder)
            trajectory = await asyncio.to_thread(lambda: exported(build(records, run.status)))
        async with self._slots["eval"]:
            await self._move(lifecycle.EVALUATING)
            try:
                evaluation = await self._evaluate(task, records, trajectory)
                grade = check_grade(records, trajectory, evaluation)
            except Exception as error:
                run = _without_grade(run, error)
                grade = SessionGrade(None, [None] * len(trajectory.traces))
                trajectory = replace(trajectory, status=run.status)
        trajectory, result = apply_grade(self._session, trajectory, grade)
        completions = sum(record.outcome == "completed" for record in records)
        result |= {"exit_code": run.exit_code, "completions": completions}
        line = await asyncio.to_thread(trajectory_line, trajectory)
        await self._move(run.status, run.reason, line, result=result)

    async def _begin_episode(self, task: RolloutTask) -> EnvironmentEpisode | None:
        """Begins the task's episode on its environment's server.

        Raises:
          InputError: the server refuses, or does not answer.
        """
        if task.environment is None:
            return None
        options = {name: value for name, value in task.environment.items() if name != "url"}
        url, token = task.environment["url"], self._tokens.environment
        try:
            async with AsyncServeClient(url, token=token, patience_s=_RESET_S) as client:
                await client.reset(**options)
                info = (await client.observe()).info
        except (ServerError, ConnectionLost) as error:
            raise InputError(f"the environment at {url} begins no episode: {error}") from None
        names = ("session_id", "episode_id", "episode_number", "task_id", "seed", "split")
        return EnvironmentEpisode(url=url, **{name: info[name] for name in names})

    async def _prewarm(self, task: RolloutTask) -> Path:
        """Makes the evaluator's folder, with a prepared copy of the source where one is needed.

        Raises:
          InputError: the source cannot be copied, or a command of ``eval_prepare`` fails.
        """
        async with self._slots["prewarm"]:
            workspace = self._workspace(task)
            fresh = _needs_fresh(task)
            source = task.runtime.source if fresh else None
            top = await asyncio.to_thread(workspace.fresh, source)
            if not fresh:
                return top
            execution = self._execution(task, top, self._settings.eval_s)
            variables = evaluation_variables(execution.inside)
            place = CommandPlace(variables, top / "prepare.log")
            for number, command in enumerate(task.runtime.eval_prepare):
                name = f"runtime: eval_prepare[{number}]"
                run = _agent_run(name, await execution.run(command, place))
                if run.status != lifecycle.COMPLETED:
                    raise InputError(run.reason)
            return top

    async def _evaluate(
        self, task: RolloutTask, records: list[CompletionRecord], trajectory: Trajectory
    ) -> EvalResult:
        if self._prewarmed is None:
            self._prewarmed = asyncio.create_task(self._prewarm(task))
        workspace, top = self._workspace(task), await self._prewarmed
        if _needs_fresh(task):
            await asyncio.to_thread(copy_artifacts, workspace.artifacts, top / "artifacts")
        execution = self._execution(task, top, self._settings.eval_s)
        context = EvaluationContext(
            session=self._session.id,
            instruction=task.instruction,
            work=workspace.work,
            artifacts=workspace.artifacts,
            scratch=top,
            fresh=top / "work",
            execute=partial(execution.run_and_wait, evaluation_variables(execution.inside)),
            source=task.runtime.source,
            records=records,
            episode=None
            if self._session.episode is None
            else EnvironmentEpisode(**self._session.episode),
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

    def _workspace(self, task: RolloutTask) -> Workspace:
        top = Path(self._settings.save_dir).absolute() / "tasks" / task.id
        return Workspace(top / f"{self._session.sample}.{self._session.attempt}")

    def _execution(self, task: RolloutTask, folder: Path, budget_s: float) -> Execution:
        return Execution(task.runtime, folder, budget_s, self._settings.output_mib * 2**20)

    async def _move(self, state: str, reason: str = "", line: bytes = b"", **values: Any) -> None:
        if not await self._writer.move(self._lease, state, reason, values, line):
            raise _LeaseLost
        self._session = replace(self._session, state=state, **values)


def _needs_fresh(task: RolloutTask) -> bool:
    return getattr(task.evaluator, "needs_fresh", False)


def _instruction(text: str, episode: EnvironmentEpisode | None) -> str:
    """The agent's instruction, with the episode in place of its placeholders."""
    if episode is None:
        return text
    text = text.replace("{{ENVIRONMENT_URL}}", episode.url)
    return text.replace("{{ENVIRONMENT_SESSION_ID}}", episode.session_id)


def _agent_run(name: str, ended: ProcessExit) -> AgentRun:
    if ended.reason:
        return AgentRun(lifecycle.ERROR, f"{name}: {ended.reason}", None)
    if ended.timed_out:
        return AgentRun(lifecycle.TIMEOUT, f"{name} ran until the time was up", ended.code)
    if ended.code:
        return AgentRun(lifecycle.ERROR, f"{name} ended with exit code {ended.code}", ended.code)
    return AgentRun(lifecycle.COMPLETED, "", 0)


def _without_grade(run: AgentRun, error: Exception) -> AgentRun:
    """The end of a session whose evaluation failed: the run's reason, then the evaluation's."""
    message = str(error)
    if not isinstance(error, InputError):
        _LOG.error("an evaluator failed", exc_info=error)
        message = f"the evaluator failed: {type(error).__name__}: {error}"
    reason = f"{run.reason}; {message}" if run.reason else message
    return replace(run, status=lifecycle.ERROR, reason=reason)
