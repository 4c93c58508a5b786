"""Requests in flight, and the one clock that ends what takes too long.

A request is one task. Whoever wants it to end (the clock, a client that left, a gateway that
stops) says why and cancels the task; a timer for every wait would cost more than the wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from jaxserve.gateway.http.errors import Problem, client_stalled, stopping
from jaxserve.gateway.measure.records import RequestRecord

_TICK_S = 0.05

Wait = Callable[[float], Problem]
"""What to say when a wait of some seconds was in vain."""


def body_wait(seconds: float) -> Problem:
    """For the client's body."""
    return Problem(408, "body_timeout", f"the request body did not arrive within {seconds:g} s")


def queue_wait(seconds: float) -> Problem:
    """For a place at an engine."""
    return Problem(503, "queue_timeout", f"no engine had room for {seconds:g} s; try again", 5)


def first_byte_wait(seconds: float) -> Problem:
    """For an engine's first byte."""
    return Problem(
        504, "first_byte_timeout", f"the engine did not begin to answer within {seconds:g} s"
    )


def idle_wait(seconds: float) -> Problem:
    """For an engine's next byte."""
    return Problem(504, "idle_timeout", f"the engine sent nothing for {seconds:g} s")


def write_wait(seconds: float) -> Problem:
    """For the client to read."""
    return client_stalled()


def pause_wait(seconds: float) -> Problem:
    """For the end of a pause."""
    return Problem(503, "paused", f"inference has been paused for {seconds:g} s; try again", 5)


def disk_wait(seconds: float) -> Problem:
    """For a record to be on the disk."""
    return Problem(507, "not_recorded", f"the record was not on the disk within {seconds:g} s")


class Call:
    """One request in flight."""

    def __init__(self, record: RequestRecord, total_s: float) -> None:
        """Belongs to the current task.

        Args: its record, and the longest time that it may take.
        """
        task = asyncio.current_task()
        assert task is not None
        self.record = record
        self.ended_by: Problem | None = None
        """why somebody ended it."""
        self._task = task
        self._total_s = total_s
        self._last_s = record.arrival_s + total_s
        self._due_s = self._last_s
        self._wait: tuple[Wait, float] | None = None
        self._over = False

    def expect(self, wait: Wait, seconds: float) -> None:
        """From now on it waits for something, so long at most."""
        self._wait = (wait, seconds)
        self._due_s = min(time.monotonic() + seconds, self._last_s)

    def end(self, why: Problem) -> None:
        """Cancels it; the first reason counts."""
        if not self._over and self.ended_by is None:
            self.ended_by = why
            self._task.cancel()

    def check(self, now_s: float) -> None:
        """Ends it if it has waited too long."""
        if now_s < self._due_s:
            return
        if now_s >= self._last_s or self._wait is None:
            self.end(
                Problem(504, "total_timeout", f"the request took more than {self._total_s:g} s")
            )
        else:
            wait, seconds = self._wait
            self.end(wait(seconds))

    def over(self) -> None:
        """Nothing ends it any more."""
        self._over = True


class Calls:
    """All requests in flight."""

    def __init__(self) -> None:
        """Nothing is in flight yet."""
        self._calls: set[Call] = set()
        self._stop_s = math.inf
        self.stopping = False
        """whether new requests are refused."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._calls)

    def by_class(self) -> dict[str, dict[str, int]]:
        """Requests in flight that have not had their first token (``waiting``), and that have
        (``running``), by class. Of those that are not streamed the first token is not seen: they
        run from when an engine has them."""
        found: dict[str, dict[str, int]] = {}
        for call in self._calls:
            record = call.record
            begun = record.first_token_s if record.streamed else record.admitted_s
            counts = found.setdefault(record.class_name, {"waiting": 0, "running": 0})
            counts["waiting" if begun is None else "running"] += 1
        return found

    def add(self, call: Call) -> None:
        """One begins."""
        self._calls.add(call)

    def remove(self, call: Call) -> None:
        """It is over."""
        call.over()
        self._calls.discard(call)

    def stop(self, seconds: float) -> None:
        """Refuses new ones; those in flight have some seconds left."""
        self.stopping = True
        self._stop_s = time.monotonic() + seconds

    async def watch(self) -> None:
        """Looks at the clock until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            for call in tuple(self._calls):
                if now_s >= self._stop_s:
                    call.end(stopping())
                else:
                    call.check(now_s)
