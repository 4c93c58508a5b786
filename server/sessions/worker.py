"""The one thread that steps sessions and writes the log.

Whatever waits in the queue is computed together and committed in one transaction, and only then
answered: that is what makes an answer a promise, and a commit cheap under load. What takes longer
than a window, sessions that are to be rebuilt and programs that are to be compiled, is done in
other threads, and whoever asked for it waits there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from server.request_errors import EpisodeConflict, StorageFailure
from server.sessions.compiling import Compiler
from server.sessions.rebuilding import Rebuilding, Rebuilt
from server.sessions.session import Session
from server.sessions.sessions import Absent, Elsewhere, Sessions, Uncompiled
from server.sessions.store import MovedSession

_LOG = logging.getLogger("jaxserve.server")
_GROUP = 64
"""Jobs that share a commit at most."""
_ATTEMPTS = 5
"""How often a job is computed again because another process moved its session meanwhile."""
_HOUSEKEEPING_S = 600.0

T = TypeVar("T")
Task = Callable[[Sessions], T]


@dataclass(frozen=True, slots=True)
class _QueuedTask:
    task: Task[Any]
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None
    """None: the future is one of another thread."""
    rebuilt: tuple[Session, ...] = ()
    """sessions that it waited for."""


class _NotWritten(Exception):
    """A whole group was computed, and nothing of it could be written."""

    def __init__(self, reason: StorageFailure) -> None:
        super().__init__()
        self.reason = reason


class Worker:
    """Runs tasks on ``Sessions`` one after the other, away from the event loop."""

    def __init__(self, sessions: Sessions) -> None:
        """Call ``start`` before the first ``run``."""
        self._sessions = sessions
        self._queue: queue.SimpleQueue[_QueuedTask | None] = queue.SimpleQueue()
        self._rebuilding = Rebuilding(self._ask)
        self._compiler: Compiler | None = None
        self._thread = threading.Thread(target=self._serve, name="jaxserve-worker", daemon=True)

    def start(self, compiler: Compiler) -> None:
        """Starts the thread, and the one that rebuilds sessions.

        Args:
          compiler: compiles the programs that are needed.
        """
        self._compiler = compiler
        self._thread.start()
        self._rebuilding.start(compiler)

    def stop(self) -> None:
        """Finishes what is queued, then closes the log."""
        self._rebuilding.stop()
        self._queue.put(None)
        self._thread.join()

    async def run(self, task: Task[T]) -> T:
        """The task's result, once everything it changed is committed.

        Args:
          task: may be run several times; sessions that it changes it has found before.

        Raises:
          whatever the task or the commit raised; then nothing has changed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_QueuedTask(task, future, loop))
        return await future

    def _ask(self, task: Task[T]) -> Future[T]:
        """As ``run``, from a thread."""
        future: Future[T] = Future()
        self._queue.put(_QueuedTask(task, future, None))
        return future

    def _serve(self) -> None:
        tidied = time.monotonic()
        while True:
            jobs = self._next_group()
            stopping = None in jobs
            # Nobody waits any more for what was cancelled.
            self._run_group([job for job in jobs if job and not job.future.cancelled()])
            if time.monotonic() - tidied > _HOUSEKEEPING_S:
                self._expire()
                tidied = time.monotonic()
            if stopping:
                self._sessions.store.close()
                return

    def _next_group(self) -> list[_QueuedTask | None]:
        """Everything that waits, up to a limit; empty after a long quiet time."""
        jobs: list[_QueuedTask | None] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._queue.get(timeout=_HOUSEKEEPING_S))
            while len(jobs) < _GROUP and jobs[-1] is not None:
                jobs.append(self._queue.get_nowait())
        return jobs

    def _run_group(self, jobs: list[_QueuedTask]) -> None:
        """Computes all, commits once; where something fails half-way, each job by itself."""
        outcomes: list[Any] = []
        written = [0]
        try:
            for job in jobs:
                outcomes.append(self._attempt(job))
                written.append(self._sessions.uncommitted)
            self._commit()
        except _NotWritten as failed:
            # What reads is answered, and nothing else is tried again.
            outcomes = [
                self._only_read(job, failed.reason) if before == after else failed.reason
                for job, before, after in zip(jobs, written[:-1], written[1:], strict=True)
            ]
        except Exception:
            self._sessions.discard()
            outcomes = [self._alone(job) for job in jobs]
        answered = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Elsewhere):
                self._put_off(job, outcome)
            else:
                answered.append((job, outcome))
        _deliver(answered)

    def _attempt(self, job: _QueuedTask) -> Any:
        """The task's result, or its exception if it has changed nothing."""
        before = self._sessions.uncommitted
        self._sessions.adopt(job.rebuilt)
        try:
            return job.task(self._sessions)
        except Exception as error:
            if self._sessions.uncommitted != before:
                raise
            return error

    def _alone(self, job: _QueuedTask) -> Any:
        """The task's result, in a commit of its own, or the exception that kept it from one."""
        outcome: Any = None
        for _ in range(_ATTEMPTS):
            try:
                outcome = self._attempt(job)
                self._sessions.commit()
                return outcome
            except MovedSession:
                outcome = EpisodeConflict("the session is being used by too many requests at once")
            except Exception as error:
                self._sessions.discard()
                return error
        return outcome

    def _only_read(self, job: _QueuedTask, reason: StorageFailure) -> Any:
        """The result of a task that changes nothing, or why nothing can be changed."""
        outcome = self._attempt(job)
        if self._sessions.uncommitted:
            self._sessions.discard()
            return reason
        return outcome

    def _commit(self) -> None:
        try:
            self._sessions.commit()
        except StorageFailure as reason:
            raise _NotWritten(reason) from None

    def _put_off(self, job: _QueuedTask, needed: Elsewhere) -> None:
        """Has the job run again when what it needs is there."""
        assert self._compiler is not None
        if isinstance(needed, Absent):

            def rebuilt(outcomes: Mapping[str, Rebuilt]) -> None:
                self._queue.put(_with_sessions(job, list(outcomes.values())))

            self._rebuilding.request(
                needed.sessions, rebuilt, wanted=lambda: not job.future.cancelled()
            )
        elif isinstance(needed, Uncompiled):

            def compiled(done: Future[None]) -> None:
                error = done.exception()
                self._queue.put(job if error is None else replace(job, task=_raises(error)))

            self._compiler.compiled(needed.simulator, together=True).add_done_callback(compiled)

    def _expire(self) -> None:
        try:
            self._sessions.expire()
        except Exception:
            _LOG.exception("expired sessions could not be removed")


def _with_sessions(job: _QueuedTask, outcomes: Sequence[Rebuilt]) -> _QueuedTask:
    """The job with its sessions, or one that says why they are not there."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            return replace(job, task=_raises(outcome))
    return replace(job, rebuilt=tuple(o for o in outcomes if isinstance(o, Session)))


def _raises(error: BaseException) -> Task[Any]:
    def task(sessions: Sessions) -> None:
        del sessions
        raise error

    return task


def _deliver(results: list[tuple[_QueuedTask, Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_QueuedTask, Any]]] = {}
    for job, outcome in results:
        if job.loop is None:
            _settle([(job, outcome)])
        else:
            by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, answered)
        except RuntimeError:
            _LOG.warning("%d answers came after the server had stopped", len(answered))


def _settle(answered: list[tuple[_QueuedTask, Any]]) -> None:
    for job, outcome in answered:
        if job.future.cancelled():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
