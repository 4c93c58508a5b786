"""What is done with a session, from REGISTERED to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.checks import number
from jaxserve.client import AsyncServeClient, ConnectionLost, ServerError
from jaxserve.errors import InputError
from jaxserve.gateway.sessions.records import CompletionRecord
from jaxserve.rollouts import builders
from jaxserve.rollouts.evaluators import Context, Episode, EvalResult
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.processes import Ended, Limits, run_process
from jaxserve.rollouts.service import state as states
from jaxserve.rollouts.service.control import Control
from jaxserve.rollouts.service.folders import Folders, variables_of
from jaxserve.rollouts.service.settings import RolloutSettings, RolloutTokens
from jaxserve.rollouts.service.state import SessionRow, State
from jaxserve.rollouts.service.submission import Task, parse_task
from jaxserve.rollouts.traces import Trajectory

_LOG = logging.getLogger("jaxserve.rollouts")
_RESET_S = 60.0
"""For an environment's server to begin an episode."""


class _Left(Exception):
    """The session has ended meanwhile."""


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

    def __init__(self, settings: RolloutSettings) -> None:
        """Args: how many workers each has."""
        self.init = asyncio.Semaphore(settings.init_workers)
        self.run = asyncio.Semaphore(settings.run_workers)
        self.post_run = asyncio.Semaphore(settings.post_run_workers)
        self.evaluation = asyncio.Semaphore(settings.eval_workers)


class Worker:
    """Brings sessions to their end."""

    def __init__(
        self,
        settings: RolloutSettings,
        tokens: RolloutTokens,
        state: State,
        control: Control,
        ended: Callable[[], None],
    ) -> None:
        """Args: what the operator chose; where sessions stand; and who hears that one ended."""
        self._settings, self._tokens = settings, tokens
        self._state, self._control, self._ended = state, control, ended
        self._pools = Pools(settings)

    async def finish(self, id: str) -> None:
        """Brings a session to its end, whatever state it is in."""
        try:
            await self._finish(self._state.session(id))
        except _Left:
            pass
        except InputError as error:
            self._end(id, states.ERROR, str(error))
        except Exception as error:
            _LOG.exception("session %s failed", id)
            self._end(id, states.ERROR, f"the service failed: {type(error).__name__}: {error}")

    def cancel(self, id: str) -> bool:
        """Ends a session that has not; says whether it did."""
        return self._end(id, states.ERROR, states.CANCELLED)

    async def shut(self, session: SessionRow) -> None:
        """Lets nobody speak in a session any more."""
        if session.attempt:
            await self._control.shut(_recorded(session))

    async def _finish(self, session: SessionRow) -> None:
        task = parse_task(self._state.spec(session.task))
        if session.state not in states.AFTER_RUN:
            await self.shut(session)  # of an attempt that a kill has ended
            if session.state == states.RUNNING and session.attempt >= self._settings.attempts:
                raise InputError(f"the service was killed in each of {session.attempt} attempts")
            await self._run(task, session)
            session = self._state.session(session.id)
        async with self._pools.post_run:
            await self.shut(session)
            self._move(session, states.BUILDING)
            records = await self._control.records(_recorded(session))
            run = Run(**session.run)
            build = getattr(builders, task.builder)
            trajectory = await asyncio.to_thread(lambda: exported(build(records, run.status)))
        async with self._pools.evaluation:
            self._move(session, states.EVALUATING)
            worth = await self._evaluate(task, session, records, trajectory)
        said = _result(session, run, trajectory, worth)
        self._end(session.id, run.status, run.reason, said)

    async def _run(self, task: Task, session: SessionRow) -> None:
        """Prepares a session and runs its agent; leaves it in POST_RUN."""
        loop = asyncio.get_running_loop()
        folders = self._folders(session, session.attempt + 1)
        async with self._pools.init:
            deadline = loop.time() + task.timeout_s
            self._move(session, states.INITIALIZING, attempt=session.attempt + 1)
            session = self._state.session(session.id)
            await asyncio.to_thread(folders.make, task.runtime.source)
            said = {"task": task.id, "sample": session.sample, "attempt": session.attempt}
            key = await self._control.create(_recorded(session), said)
            episode = await self._begin_episode(task)
            variables = variables_of(
                task, session.id, folders, self._settings.gateway, key, episode
            )
            run = await self._prepare(task, folders, variables, deadline)
        self._move(session, states.READY, episode=None if episode is None else vars(episode))
        if run is None:
            async with self._pools.run:
                self._move(session, states.RUNNING)
                command = task.agent.command(task.instruction)
                limits = self._limits(deadline - loop.time())
                ended = await run_process(command, folders.work, variables, folders.printed, limits)
            run = _run_of("the agent", ended)
        self._move(session, states.POST_RUN, run=vars(run))

    async def _prepare(
        self, task: Task, folders: Folders, variables: dict[str, str], deadline: float
    ) -> Run | None:
        """Runs the commands of ``prepare``; gives the first that fails."""
        for place, command in enumerate(task.runtime.prepare):
            limits = self._limits(deadline - asyncio.get_running_loop().time())
            printed = folders.top / "prepare.log"
            ended = await run_process(command, folders.work, variables, printed, limits)
            run = _run_of(f"runtime: prepare[{place}]", ended)
            if run.status != states.COMPLETED:
                return run
        return None

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
        names = ("session_id", "episode_id", "task_id", "seed", "split")
        return Episode(url=url, **{name: told[name] for name in names})

    async def _evaluate(
        self,
        task: Task,
        session: SessionRow,
        records: list[CompletionRecord],
        trajectory: Trajectory,
    ) -> EvalResult:
        folders = self._folders(session, session.attempt)
        context = Context(
            session=session.id,
            instruction=task.instruction,
            work=folders.work,
            artifacts=folders.artifacts,
            scratch=await asyncio.to_thread(folders.fresh_scratch),
            source=task.runtime.source,
            records=records,
            episode=None if session.episode is None else Episode(**session.episode),
            budget_s=self._settings.eval_s,
            environment_token=self._tokens.environment,
            metadata=task.metadata,
        )
        call = asyncio.to_thread(task.evaluator.evaluate, trajectory, context)
        try:
            return await asyncio.wait_for(call, self._settings.eval_s + 30.0)
        except TimeoutError:
            raise InputError(
                f"the evaluator took longer than --eval-s, {self._settings.eval_s:g} s"
            ) from None

    def _folders(self, session: SessionRow, attempt: int) -> Folders:
        top = Path(self._settings.save_dir).absolute() / "tasks" / session.task
        return Folders(top / f"{session.sample}.{attempt}")

    def _limits(self, budget_s: float) -> Limits:
        return Limits(budget_s, output_bytes=self._settings.output_mib * 2**20)

    def _move(self, session: SessionRow, state: str, **values: Any) -> None:
        if not self._state.move(session.id, state, **values):
            raise _Left

    def _end(self, id: str, state: str, reason: str, result: Any = None) -> bool:
        ended = self._state.move(id, state, reason, result=result or {"reward": None})
        if ended:
            self._ended()
        return ended


def _recorded(session: SessionRow) -> str:
    """The gateway's session of an attempt."""
    return f"{session.id}.{session.attempt}"


def _run_of(who: str, ended: Ended) -> Run:
    if ended.reason:
        return Run(states.ERROR, f"{who}: {ended.reason}", None)
    if ended.timed_out:
        return Run(states.TIMEOUT, f"{who} ran until the time was up", ended.code)
    if ended.code:
        return Run(states.ERROR, f"{who} ended with exit code {ended.code}", ended.code)
    return Run(states.COMPLETED, "", 0)


def _result(
    session: SessionRow, run: Run, trajectory: Trajectory, worth: EvalResult
) -> dict[str, Any]:
    """What is told of an ended session."""
    given = worth.trace_rewards
    of_traces = [None] * len(trajectory.traces) if given is None else list(given)
    if len(of_traces) != len(trajectory.traces):
        raise InputError(
            f"trace_rewards has {len(of_traces)} entries; it must have one for each of "
            f"{len(trajectory.traces)} traces"
        )
    outcome = number("outcome_reward", worth.outcome_reward)
    rewards = [outcome if one is None else number("trace_rewards", one) for one in of_traces]
    return {
        "reward": outcome,
        "trace_rewards": rewards,
        "records": _recorded(session),
        "attempt": session.attempt,
        "exit_code": run.exit_code,
        "traces": len(trajectory.traces),
        "trainable": trajectory.trainable,
        "dropped": trajectory.dropped,
        "cuts": trajectory.cuts,
        "evaluation": worth.metadata,
    }
