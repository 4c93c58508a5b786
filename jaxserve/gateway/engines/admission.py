"""Admission: pools of replicas with a queue in front of each.

A replica with a cap gets ``cap`` requests and a few more (``look_ahead``), which wait inside the
engine: the engine then fills a freed place in its next step, without a network round trip.
Without look-ahead, a cap at the gateway raised the mean TTFT in measurements. All code here runs in
one event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxserve.gateway.engines.routing import ROUTINGS, EngineRouting, LeastLoaded
from jaxserve.gateway.engines.specs import EngineSpec, pool_names
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.settings import RoutingName

_MAX_BACKOFF_S = 8.0
_MAX_RETRY_AFTER_S = 60


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and its load."""

    spec: EngineSpec
    places: int | None
    """most requests at a time; None sets no limit."""
    in_flight: int = 0
    """requests at the engine."""
    failures: int = 0
    """consecutive connections that failed."""
    avoided_until_s: float = -math.inf
    """end of the time in which other replicas are preferred, monotonic clock, s."""
    last_used: int = 0
    """number of its last request, which orders replicas of equal load."""
    serving: bool = True
    """whether the replica gets new requests; a draining one ends those that it has."""

    def unreachable(self) -> None:
        """Notes a failed connection: other replicas are preferred for a while (backoff)."""
        self.failures += 1
        backoff_s = min(0.5 * 2.0**self.failures, _MAX_BACKOFF_S)
        self.avoided_until_s = time.monotonic() + backoff_s

    def reached(self) -> None:
        """Notes a connection that succeeded."""
        self.failures = 0
        self.avoided_until_s = -math.inf

    @property
    def up(self) -> bool:
        """Whether the last connection succeeded."""
        return self.failures == 0

    def has_place(self) -> bool:
        """Whether the replica may get one more request."""
        return self.places is None or self.in_flight < self.places


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request in the queue."""

    priority: int
    since_s: float
    prefix: Sequence[bytes]
    place: asyncio.Future[Replica]


@dataclass(eq=False)
class Pool:
    """Interchangeable replicas, and the queue of requests for them."""

    name: str
    """name for the header ``X-Pool``."""
    replicas: Sequence[Replica]
    """engines of the pool."""
    capacity: int
    """requests that may wait."""
    default: bool = False
    """whether the pool serves requests that name none."""
    routing: EngineRouting = field(default_factory=LeastLoaded)
    """chooses among the replicas with a place."""
    by_priority: bool = True
    """whether lower numbers of priority go first; otherwise only the order of arrival counts."""
    _heap: list[tuple[int, int]] = field(default_factory=list)
    """(priority, number) of the waiting requests; entries of cancelled ones are removed lazily."""
    _waiting: dict[int, _Waiter] = field(default_factory=dict)
    """waiting requests by number, in the order of arrival."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def serving(self) -> list[Replica]:
        """Replicas that get new requests."""
        return [one for one in self.replicas if one.serving]

    def number(self) -> int:
        """Next number in the order of arrival, for ``enter``."""
        return next(self._numbers)

    async def enter(
        self, priority: int, number: int, prefix: Sequence[bytes] = (), *, again: bool = False
    ) -> Replica:
        """Waits for a place at a replica; ``leave`` frees the place.

        Args:
          priority: priority of the request; the lowest goes first, among equals the lowest number.
          number: place in the order of arrival.
          prefix: what the routing made of the prompt.
          again: whether the request retries after a failed connection; a full queue then takes it.

        Raises:
          RequestError: the queue is full.
        """
        self._admit()
        if not self._waiting and (able := self._able()):
            return self._take(able, prefix)
        if len(self._waiting) >= self.capacity and not again:
            raise RequestError(
                429,
                "queue_full",
                f"{len(self._waiting)} requests wait already; try again later",
                self.retry_after_s(),
            )
        place = asyncio.get_running_loop().create_future()
        waiter = _Waiter(priority, time.monotonic(), prefix, place)
        self._waiting[number] = waiter
        heapq.heappush(self._heap, (priority if self.by_priority else 0, number))
        self._admit()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is None and not waiter.place.cancelled():
                self.leave(waiter.place.result())
            self._sweep()
            raise

    def leave(self, replica: Replica) -> None:
        """Frees the place of a request that has ended; the next request gets it."""
        replica.in_flight -= 1
        self._admit()

    def serve_by_priority(self, by_priority: bool) -> None:
        """Changes the order of the queue, for waiting and for new requests."""
        self.by_priority = by_priority
        self._heap = [
            (waiter.priority if by_priority else 0, number)
            for number, waiter in self._waiting.items()
        ]
        heapq.heapify(self._heap)

    def places_changed(self) -> None:
        """Admits waiting requests after a replica got more places, or serves again."""
        self._admit()

    def retry_after_s(self) -> int:
        """Estimated time until there is room, s: the wait of the oldest request so far."""
        oldest = next(iter(self._waiting.values()), None)
        waited_s = 0.0 if oldest is None else time.monotonic() - oldest.since_s
        return min(max(1, math.ceil(waited_s)), _MAX_RETRY_AFTER_S)

    def in_order(self) -> list[Replica]:
        """Replicas in the order of preference: serving ones, reachable ones, then by load."""
        now_s = time.monotonic()
        return sorted(
            self.replicas,
            key=lambda one: (
                not one.serving,
                one.avoided_until_s > now_s,
                one.in_flight,
                one.last_used,
            ),
        )

    def _able(self) -> list[Replica]:
        """Serving replicas with a place; unreachable ones only if all are."""
        now_s, serving = time.monotonic(), self.serving
        reachable = [one for one in serving if one.avoided_until_s <= now_s] or serving
        return [one for one in reachable if one.has_place()]

    def _take(self, able: Sequence[Replica], prefix: Sequence[bytes]) -> Replica:
        replica = self.routing.choose(able, prefix)
        replica.in_flight += 1
        replica.last_used = self.number()
        return replica

    def _admit(self) -> None:
        """Gives places to the first requests of the queue."""
        while self._waiting and (able := self._able()):
            _, number = heapq.heappop(self._heap)
            waiter = self._waiting.pop(number, None)
            if waiter is not None and not waiter.place.cancelled():
                waiter.place.set_result(self._take(able, waiter.prefix))

    def _sweep(self) -> None:
        """Removes entries of cancelled requests before they outnumber the waiting ones."""
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)


def build_pools(
    specs: Sequence[EngineSpec],
    capacity: int,
    look_ahead: int,
    routing: RoutingName = "least_loaded",
) -> Mapping[str, Pool]:
    """Builds the pools by name; the first one is the default."""
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
            routing=ROUTINGS[routing](),
        )
        for place, name in enumerate(pool_names(specs))
    }
