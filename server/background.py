"""Computations that take seconds: few at a time, for a limited time, none that nobody awaits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from server.request_errors import OutOfTime, Overloaded

_AT_ONCE = 2
_WAITING = 64
"""Computations that wait for a thread at most; whoever comes then is told to come back."""

T = TypeVar("T")


class Abandoned(Exception):
    """Nobody waits for the result any more."""


class StopSignal:
    """Tells a computation when to stop; safe to use from several threads."""

    def __init__(self, seconds: float) -> None:
        """Args: how long the computation may take, from now on."""
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._left = threading.Event()

    def leave(self) -> None:
        """Nobody waits any more."""
        self._left.set()

    def check(self) -> None:
        """Returns if the computation is to go on.

        Raises:
          Abandoned: nobody waits for it.
          OutOfTime: its time is up.
        """
        if self._left.is_set():
            raise Abandoned
        if time.monotonic() > self._until:
            raise OutOfTime(
                f"the computation was stopped after {self._seconds:g} s; the server is busy, try "
                "again later"
            )


class BackgroundExecutor:
    """Threads of their own, so that long computations keep nobody else from a thread."""

    def __init__(self, at_once: int = _AT_ONCE, waiting: int = _WAITING) -> None:
        """Args: computations at the same time, and those that may wait for their turn."""
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="jaxserve-background")
        self._most = at_once + waiting
        self._asked = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result. One that has not begun never does once the caller is cancelled.

        Raises:
          Overloaded: too many wait already.
        """
        with self._lock:
            if self._asked >= self._most:
                raise Overloaded(f"{self._asked} long computations are under way; try again later")
            self._asked += 1
        future = self._pool.submit(function, *arguments)
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Begins nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: Future[Any]) -> None:
        del future
        with self._lock:
            self._asked -= 1


@dataclass
class _Running(Generic[T]):
    task: asyncio.Task[T]
    watch: StopSignal
    waiting: int = 0


class SharedResults(Generic[T]):
    """Results that never change, computed once for all who ask, and stopped when the last leaves.

    For use by one event loop.
    """

    def __init__(self, keep: int) -> None:
        """Args: results that are remembered; the least recently used one goes first."""
        self._keep = keep
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._running: dict[Hashable, _Running[T]] = {}

    async def get(
        self, key: Hashable, compute: Callable[[StopSignal], Awaitable[T]], seconds: float
    ) -> T:
        """The result of that key.

        Args:
          compute: ends soon after its watch says so.
          seconds: that it may take.

        Raises:
          whatever ``compute`` raises; then nothing is remembered.
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
                running.watch.leave()
                # Whoever asks now begins anew.
                self._forget(key, running.watch)

    def _begin(
        self, key: Hashable, compute: Callable[[StopSignal], Awaitable[T]], watch: StopSignal
    ) -> _Running[T]:
        async def work() -> T:
            try:
                found = await compute(watch)
            finally:
                self._forget(key, watch)
            self._known[key] = found
            while len(self._known) > self._keep:
                self._known.popitem(last=False)
            return found

        task = asyncio.ensure_future(work())
        # An exception that nobody waits for is no fault of the server.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Running(task, watch)

    def _forget(self, key: Hashable, watch: StopSignal) -> None:
        if key in self._running and self._running[key].watch is watch:
            del self._running[key]
