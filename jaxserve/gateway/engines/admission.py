"""Who may go to which engine, and when: pools of replicas with a queue in front of each.

A replica with a cap gets that many requests and a few more, which wait inside it: a place freed
by the engine is then filled in its next step and not after a way through the network. A cap at
the gateway alone, without these, was measured to raise the mean TTFT. Everything here runs in one
event loop, so nothing is locked.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxserve.gateway.engines.specs import EngineSpec, pool_names
from jaxserve.gateway.http.errors import Problem

_LONGEST_REST_S = 8.0
_MOST_RETRY_AFTER_S = 60


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and what the gateway has with it."""

    spec: EngineSpec
    places: int | None
    """requests that it may have at a time; None sets no limit."""
    in_flight: int = 0
    """that it has."""
    failures: int = 0
    """connections in a row that could not be made."""
    rests_until_s: float = -math.inf
    """others are preferred until then, monotonic clock."""
    last_used: int = 0
    """orders replicas of equal load."""

    def unreachable(self) -> None:
        """It could not be connected to: others are asked first for a while."""
        self.failures += 1
        rest_s = min(0.5 * 2.0**self.failures, _LONGEST_REST_S)
        self.rests_until_s = time.monotonic() + rest_s

    def reached(self) -> None:
        """It answered."""
        self.failures = 0
        self.rests_until_s = -math.inf

    @property
    def up(self) -> bool:
        """Whether the last connection to it could be made."""
        return self.failures == 0

    def has_place(self) -> bool:
        """Whether one more request may go to it."""
        return self.places is None or self.in_flight < self.places


@dataclass(slots=True, eq=False)
class _Waiter:
    priority: int
    since_s: float
    place: asyncio.Future[Replica]


@dataclass(eq=False)
class Pool:
    """Replicas that are as good as each other, and who waits for one."""

    name: str
    replicas: Sequence[Replica]
    capacity: int
    """requests that may wait."""
    default: bool = False
    """whether requests that name no pool come here."""
    by_priority: bool = True
    """whether lower priorities are served first; else it is in order of arrival alone."""
    _heap: list[tuple[int, int]] = field(default_factory=list)
    """(priority, number); those of requests that have left stay until they come up."""
    _waiting: dict[int, _Waiter] = field(default_factory=dict)
    """by number, in the order of arrival."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def number(self) -> int:
        """A place in the order of arrival, for ``enter``."""
        return next(self._numbers)

    async def enter(self, priority: int, number: int, *, again: bool = False) -> Replica:
        """Waits for a place; ``leave`` gives it back.

        Args:
          priority: lower goes first; among equals, the lower number.
          again: one that had a place, at an engine that could not be reached, is not turned away.

        Raises:
          Problem: too many wait already.
        """
        self._fill()
        if not self._waiting and (replica := self._free()) is not None:
            return self._take(replica)
        if len(self._waiting) >= self.capacity and not again:
            raise Problem(
                429,
                "queue_full",
                f"{len(self._waiting)} requests wait already; try again later",
                self.retry_after_s(),
            )
        place = asyncio.get_running_loop().create_future()
        waiter = _Waiter(priority, time.monotonic(), place)
        self._waiting[number] = waiter
        heapq.heappush(self._heap, (priority if self.by_priority else 0, number))
        self._fill()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is None and not waiter.place.cancelled():
                self.leave(waiter.place.result())
            self._sweep()
            raise

    def leave(self, replica: Replica) -> None:
        """A request has ended; the next one gets its place."""
        replica.in_flight -= 1
        self._fill()

    def serve_by_priority(self, by_priority: bool) -> None:
        """Changes the order of those who wait, and of who comes."""
        self.by_priority = by_priority
        self._heap = [
            (waiter.priority if by_priority else 0, number)
            for number, waiter in self._waiting.items()
        ]
        heapq.heapify(self._heap)

    def places_changed(self) -> None:
        """To be called when a replica has got more places."""
        self._fill()

    def retry_after_s(self) -> int:
        """A guess at when there is room: as long as the first in the queue has waited."""
        oldest = next(iter(self._waiting.values()), None)
        waited_s = 0.0 if oldest is None else time.monotonic() - oldest.since_s
        return min(max(1, math.ceil(waited_s)), _MOST_RETRY_AFTER_S)

    def in_order(self) -> list[Replica]:
        """Those that can be reached first, the least loaded first."""
        now_s = time.monotonic()
        return sorted(
            self.replicas,
            key=lambda one: (one.rests_until_s > now_s, one.in_flight, one.last_used),
        )

    def _free(self) -> Replica | None:
        """The least loaded replica with a place; one that rests only if all do."""
        now_s = time.monotonic()
        awake = [one for one in self.replicas if one.rests_until_s <= now_s] or self.replicas
        able = [one for one in awake if one.has_place()]
        return min(able, key=lambda one: (one.in_flight, one.last_used), default=None)

    def _take(self, replica: Replica) -> Replica:
        replica.in_flight += 1
        replica.last_used = self.number()
        return replica

    def _fill(self) -> None:
        while self._waiting and (replica := self._free()) is not None:
            _, number = heapq.heappop(self._heap)
            waiter = self._waiting.pop(number, None)
            if waiter is not None and not waiter.place.cancelled():
                waiter.place.set_result(self._take(replica))

    def _sweep(self) -> None:
        """Forgets those who left, before they are more than those who wait."""
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)


def build_pools(specs: Sequence[EngineSpec], capacity: int, look_ahead: int) -> Mapping[str, Pool]:
    """Pools by name; the first one is the default."""
    return {
        name: Pool(
            name,
            [
                Replica(spec, None if spec.cap is None else spec.cap + look_ahead)
                for spec in specs
                if spec.pool == name
            ],
            capacity,
            default=place == 0,
        )
        for place, name in enumerate(pool_names(specs))
    }
