"""The one thread that steps sessions and writes the log.

Whatever waits in the queue is computed together and committed in one transaction, and only then
answered: that is what makes an answer a promise, and a commit cheap under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from server.problems import EpisodeConflict
from server.sessions.session import Sessions
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
class _Job:
    task: Task[Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Worker:
    """Runs tasks on ``Sessions`` one after the other, away from the event loop."""

    def __init__(self, sessions: Sessions) -> None:
        """Call ``start`` before the first ``run``."""
        self._sessions = sessions
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="jaxserve-worker", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finishes what is queued, then closes the log."""
        self._queue.put(None)
        self._thread.join()

    async def run(self, task: Task[T]) -> T:
        """The task's result, once everything it changed is committed.

        Raises:
          whatever the task or the commit raised; then nothing has changed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(task, future, loop))
        return await future

    def _serve(self) -> None:
        tidied = time.monotonic()
        while True:
            jobs = self._next_group()
            stopping = None in jobs
            self._run_group([job for job in jobs if job is not None])
            if time.monotonic() - tidied > _HOUSEKEEPING_S:
                self._expire()
                tidied = time.monotonic()
            if stopping:
                self._sessions.store.close()
                return

    def _next_group(self) -> list[_Job | None]:
        """Everything that waits, up to a limit; empty after a long quiet time."""
        jobs: list[_Job | None] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._queue.get(timeout=_HOUSEKEEPING_S))
            while len(jobs) < _GROUP and jobs[-1] is not None:
                jobs.append(self._queue.get_nowait())
        return jobs

    def _run_group(self, jobs: list[_Job]) -> None:
        """Computes all, commits once; where something fails half-way, each job by itself."""
        try:
            outcomes = [self._attempt(job) for job in jobs]
            self._sessions.commit()
        except Exception:
            self._sessions.discard()
            outcomes = [self._alone(job) for job in jobs]
        _deliver(list(zip(jobs, outcomes, strict=True)))

    def _attempt(self, job: _Job) -> Any:
        """The task's result, or its exception if it has changed nothing."""
        before = self._sessions.uncommitted
        try:
            return job.task(self._sessions)
        except Exception as error:
            if self._sessions.uncommitted != before:
                raise
            return error

    def _alone(self, job: _Job) -> Any:
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

    def _expire(self) -> None:
        try:
            self._sessions.expire()
        except Exception:
            _LOG.exception("expired sessions could not be removed")


def _deliver(results: list[tuple[_Job, Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Any]]] = {}
    for job, outcome in results:
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, answered)
        except RuntimeError:
            _LOG.warning("%d answers came after the server had stopped", len(answered))


def _settle(answered: list[tuple[_Job, Any]]) -> None:
    for job, outcome in answered:
        if job.future.cancelled():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
