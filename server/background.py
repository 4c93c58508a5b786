"""Computations of seconds in threads of their own: few at once, cancelled when nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request

from server.request_errors import ClientLeft, OutOfTime, Overloaded
from server.turns import CLIENT, Turns

_THREADS = 2
_QUEUED = 64
"""Computations that wait for a thread at most; further ones are refused."""

T = TypeVar("T")


class Abandoned(Exception):
    """Nobody waits for the result any more."""


class StopSignal:
    """Tells a computation when to stop; safe to use from several threads."""

    def __init__(self, seconds: float) -> None:
        """Args: time of the computation at most, from now on."""
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Stops the computation: nobody waits for it any more."""
        self._abandoned.set()

    def check(self) -> None:
        """Returns if the computation is to go on.

        Raises:
          Abandoned: nobody waits for it.
          OutOfTime: its time is up.
        """
        if self._abandoned.is_set():
            raise Abandoned
        if time.monotonic() > self._until:
            raise OutOfTime(
                f"the computation was stopped after {self._seconds:g} s; the server is busy, try "
                "again later"
            )


class BackgroundExecutor:
    """A thread pool of its own, so that long computations occupy no thread of other requests;
    clients that wait take turns."""

    def __init__(self, threads: int = _THREADS, queued: int = _QUEUED) -> None:
        """Args: computations at once, and computations that wait for a thread, of which one client
        may have half."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="jaxserve-background")
        self._limit, self._share = threads + queued, threads + (queued + 1) // 2
        self._waiting: Turns[tuple[Future[Any], Callable[[], None]]] = Turns()
        self._pending: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """Number of computations that run or wait."""
        with self._lock:
            return self._pending.total()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result; a queued call never begins once its caller is cancelled.

        Raises:
          Overloaded: too many computations wait already, of this client or in all.
        """
        client, future = CLIENT.get(), Future()

        def done(_: Future[T]) -> None:
            with self._lock:
                self._pending[client] -= 1

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            for count, limit in (
                (self._pending.total(), self._limit),
                (self._pending[client], self._share),
            ):
                if count >= limit:
                    raise Overloaded(f"{count} long computations are under way; try again later")
            self._pending[client] += 1
            self._waiting.add(client, (future, job))
        future.add_done_callback(done)
        self._pool.submit(self._run_next)
        return await asyncio.wrap_future(future)

    def _run_next(self) -> None:
        """Runs a job of the client whose turn it is."""
        with self._lock:
            _, job = self._waiting.pop()
            self._pending += Counter()  # forgets clients without a job
        job()

    def close(self) -> None:
        """Cancels queued computations; running ones go on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [future for future, _ in self._waiting]
        for future in waiting:
            future.cancel()


@dataclass
class _Running(Generic[T]):
    task: asyncio.Task[T]
    signal: StopSignal
    waiting: int = 0


class SharedResults(Generic[T]):
    """A cache of results that never change. Concurrent requests share one computation, which stops
    when the last of them is cancelled.

    The cache belongs to one event loop.
    """

    def __init__(self, keep: int) -> None:
        """Args: cached results at most; the least recently used one goes first."""
        self._keep = keep
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._running: dict[Hashable, _Running[T]] = {}

    async def get(
        self, key: Hashable, compute: Callable[[StopSignal], Awaitable[T]], seconds: float
    ) -> T:
        """The result of a key.

        Args:
          compute: ends soon after its signal says so.
          seconds: time of the computation at most.

        Raises:
          Exceptions of ``compute``, after which nothing is cached.
        """
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = self._begin(key, compute, StopSignal(seconds))
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if running.waiting == 0 and not running.task.done():
                running.signal.abandon()
                # The next request begins anew.
                self._forget(key, running.signal)

    def _begin(
        self, key: Hashable, compute: Callable[[StopSignal], Awaitable[T]], signal: StopSignal
    ) -> _Running[T]:
        async def work() -> T:
            try:
                found = await compute(signal)
            finally:
                self._forget(key, signal)
            self._known[key] = found
            while len(self._known) > self._keep:
                self._known.popitem(last=False)
            return found

        task = asyncio.ensure_future(work())
        # asyncio would report an exception that no caller retrieves.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Running(task, signal)

    def _forget(self, key: Hashable, signal: StopSignal) -> None:
        if key in self._running and self._running[key].signal is signal:
            del self._running[key]


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects.

    Args:
      request: a request whose body has been read.

    Raises:
      ClientLeft: the client disconnected. Exceptions of ``work``.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft("the client closed the connection before the answer")
    finally:
        task.cancel()
        left.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
