"""Requests in flight, and the one clock for all their limits of time.

A request is one task. Its end comes from the clock, a disconnect or the shutdown: each gives a
reason and cancels the task. One clock for all, because a timer per wait would cost more than the
wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from jaxserve.gateway.http.errors import RequestError, client_stalled, stopping
from jaxserve.gateway.measure.records import RequestRecord

_TICK_S = 0.05

Timeout = Callable[[float], RequestError]
"""Makes the error for a wait that took too long, from its limit in seconds."""


def body_timeout(seconds: float) -> RequestError:
    """The client's body was late."""
    return RequestError(
        408, "body_timeout", f"the request body did not arrive within {seconds:g} s"
    )


def queue_timeout(seconds: float) -> RequestError:
    """No engine had a free place in time."""
    return RequestError(503, "queue_timeout", f"no engine had room for {seconds:g} s; try again", 5)


def first_byte_timeout(seconds: float) -> RequestError:
    """The engine's first byte was late."""
    return RequestError(
        504, "first_byte_timeout", f"the engine did not begin to answer within {seconds:g} s"
    )


def idle_timeout(seconds: float) -> RequestError:
    """The engine's next byte was late."""
    return RequestError(504, "idle_timeout", f"the engine sent nothing for {seconds:g} s")


def write_timeout(seconds: float) -> RequestError:
    """The client did not read in time."""
    return client_stalled()


def pause_timeout(seconds: float) -> RequestError:
    """The pause of inference took too long."""
    return RequestError(503, "paused", f"inference has been paused for {seconds:g} s; try again", 5)


def disk_timeout(seconds: float) -> RequestError:
    """The record was not on the disk in time."""
    return RequestError(507, "not_recorded", f"the record was not on the disk within {seconds:g} s")


class InFlightRequest:
    """One request in flight."""

    def __init__(self, record: RequestRecord, total_s: float) -> None:
        """Belongs to the current task.

        Args: the record, and the limit of the total time, s.
        """
        task = asyncio.current_task()
        assert task is not None
        self.record = record
        self.ended_by: RequestError | None = None
        """reason of the cancellation; None while the request runs."""
        self._task = task
        self._total_s = total_s
        self._last_s = record.arrival_s + total_s
        self._due_s = self._last_s
        self._wait: tuple[Timeout, float] | None = None
        self._over = False

    def expect(self, timeout: Timeout, seconds: float) -> None:
        """Starts the next wait, with its limit."""
        self._wait = (timeout, seconds)
        self._due_s = min(time.monotonic() + seconds, self._last_s)

    def end(self, error: RequestError) -> None:
        """Cancels the request; the first reason counts."""
        if not self._over and self.ended_by is None:
            self.ended_by = error
            self._task.cancel()

    def check(self, now_s: float) -> None:
        """Cancels the request if a limit of time has passed."""
        if now_s < self._due_s:
            return
        if now_s >= self._last_s or self._wait is None:
            self.end(
                RequestError(
                    504, "total_timeout", f"the request took more than {self._total_s:g} s"
                )
            )
        else:
            timeout, seconds = self._wait
            self.end(timeout(seconds))

    def over(self) -> None:
        """Marks the request as over: nothing cancels it from now on."""
        self._over = True


class InFlight:
    """All requests in flight."""

    def __init__(self) -> None:
        """No request is in flight at first."""
        self._requests: set[InFlightRequest] = set()
        self._stop_s = math.inf
        self.stopping = False
        """whether new requests are refused."""

    def __len__(self) -> int:
        """Number of requests in flight."""
        return len(self._requests)

    def by_class(self) -> dict[str, dict[str, int]]:
        """Requests in flight by class: ``waiting`` for their first token, or ``running``.

        The first token of a request without a stream is not seen: such a request runs from its
        admission on.
        """
        found: dict[str, dict[str, int]] = {}
        for request in self._requests:
            record = request.record
            begun = record.first_token_s if record.streamed else record.admitted_s
            counts = found.setdefault(record.class_name, {"waiting": 0, "running": 0})
            counts["waiting" if begun is None else "running"] += 1
        return found

    def add(self, request: InFlightRequest) -> None:
        """Adds a request that begins."""
        self._requests.add(request)

    def remove(self, request: InFlightRequest) -> None:
        """Removes a request that is over."""
        request.over()
        self._requests.discard(request)

    def stop(self, seconds: float) -> None:
        """Refuses new requests, and gives the ones in flight some seconds to end."""
        self.stopping = True
        self._stop_s = time.monotonic() + seconds

    async def watch(self) -> None:
        """Checks all limits of time, until the task is cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            for request in tuple(self._requests):
                if now_s >= self._stop_s:
                    request.end(stopping())
                else:
                    request.check(now_s)
