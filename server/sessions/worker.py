"""The one thread that steps sessions and writes the log.

Queued tasks are computed together, committed in one transaction, and only then answered: an answer
is a promise, and a commit is cheap under load. Clients take turns, and a group of tasks ends after
a time, so that many tasks of one client do not delay those of others. Sessions are rebuilt and
programs compiled in other threads, where the tasks that need them wait.
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
from server.turns import CLIENT, Turns

_LOG = logging.getLogger("jaxserve.server")
_GROUP = 64
"""Tasks that share a commit at most."""
_GROUP_S = 0.02
"""Time after which a group takes no further task. With a quarter of it, 32 players at once got a
sixth fewer windows, as there are more commits."""
_ATTEMPTS = 5
"""Attempts of a task whose session another process moves meanwhile."""
_HOUSEKEEPING_S = 600.0

T = TypeVar("T")
Task = Callable[[Sessions], T]


@dataclass(frozen=True, slots=True)
class _QueuedTask:
    client: str
    task: Task[Any]
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None
    """None: another thread waits for the future."""
    rebuilt: tuple[Session, ...] = ()
    """sessions that the task waited for."""


class _NotWritten(Exception):
    """A group of tasks was computed and could not be written."""

    def __init__(self, reason: StorageFailure) -> None:
        super().__init__()
        self.reason = reason


class Worker:
    """Runs tasks on ``Sessions`` one after the other, away from the event loop."""

    def __init__(self, sessions: Sessions) -> None:
        """Args: the sessions. Call ``start`` before the first ``run``."""
        self._sessions = sessions
        self._queue: queue.SimpleQueue[_QueuedTask | None] = queue.SimpleQueue()
        self._turns: Turns[_QueuedTask] = Turns()
        """tasks that the worker's thread has taken from the queue."""
        self._rebuilding = Rebuilding(self._ask)
        self._compiler: Compiler | None = None
        self._thread = threading.Thread(target=self._serve, name="jaxserve-worker", daemon=True)

    def start(self, compiler: Compiler) -> None:
        """Starts the thread, and the one that rebuilds sessions.

        Args:
          compiler: compiles missing programs.
        """
        self._compiler = compiler
        self._thread.start()
        self._rebuilding.start(compiler)

    def stop(self) -> None:
        """Finishes queued tasks, then closes the log."""
        self._rebuilding.stop()
        self._queue.put(None)
        self._thread.join()

    async def run(self, task: Task[T]) -> T:
        """The task's result, once its changes are committed.

        Args:
          task: may run several times; finds a session before it changes it.

        Raises:
          Exceptions of the task or of the commit, after which nothing has changed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_QueuedTask(CLIENT.get(), task, future, loop))
        return await future

    def _ask(self, task: Task[T]) -> Future[T]:
        """As ``run``, for other threads."""
        future: Future[T] = Future()
        self._queue.put(_QueuedTask("", task, future, None))
        return future

    def _serve(self) -> None:
        tidied = time.monotonic()
        stopping = False
        while self._turns or not stopping:
            stopping |= self._take_queued()
            self._run_group()
            if time.monotonic() - tidied > _HOUSEKEEPING_S:
                self._expire()
                tidied = time.monotonic()
        self._sessions.store.close()

    def _take_queued(self) -> bool:
        """Takes all queued tasks; without any to compute, waits for one for a while.

        Returns:
          Whether the last task has come.
        """
        with contextlib.suppress(queue.Empty):
            job = self._queue.get(block=not self._turns, timeout=_HOUSEKEEPING_S)
            while job is not None:
                self._turns.add(job.client, job)
                job = self._queue.get_nowait()
            return True
        return False

    def _run_group(self) -> None:
        """Computes a group of tasks and commits once; after a failure, each task by itself."""
        jobs: list[_QueuedTask] = []
        outcomes: list[Any] = []
        written = [0]
        until = time.monotonic() + _GROUP_S
        try:
            while self._turns and len(jobs) < _GROUP and not (jobs and time.monotonic() > until):
                job = self._turns.pop()
                # Cancelled tasks are dropped.
                if not job.future.cancelled():
                    jobs.append(job)
                    outcomes.append(self._attempt(job))
                    written.append(self._sessions.uncommitted)
            self._commit()
        except _NotWritten as failed:
            # Tasks that only read are answered; the others are not tried again.
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
        """The task's result, or its exception if nothing has changed."""
        before = self._sessions.uncommitted
        self._sessions.adopt(job.rebuilt)
        try:
            return job.task(self._sessions)
        except Exception as error:
            if self._sessions.uncommitted != before:
                raise
            return error

    def _alone(self, job: _QueuedTask) -> Any:
        """The task's result after a commit of its own, or the exception of task or commit."""
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
        """The result of a task that only reads; ``reason`` for any other."""
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
        """Queues the task again once its sessions are rebuilt or its program is compiled."""
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
    """The task with its rebuilt sessions; a task that raises if one could not be rebuilt."""
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
