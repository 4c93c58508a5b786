"""A running fleet: replicas behind a gateway that an actuator starts and stops.

Engines in the gateway's order are places 0, 1, 2, ... Places below the number wanted serve as soon
as they answer; the others drain and are stopped when their requests have ended, or when they have
drained for long enough. A controller may be killed at any time: engines, gateway and requests go
on, and a controller that is started anew finds everything by asking.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax.numpy as jnp

from jaxserve.checks import JsonObject
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.live.gateway_client import GatewayClient
from jaxserve.types import WindowMetrics


class ActuatorError(Exception):
    """Replicas could not be counted, started or stopped; ``str()`` is the reason, one sentence."""


class Actuator(Protocol):
    """Replicas in numbered places; place 0 is stopped last.

    Both methods may be called again and again with the same number: a controller that was killed
    and started anew goes on where it was.
    """

    async def size(self) -> int:
        """Replicas that run or start: one more than the highest place in use.

        Raises:
          ActuatorError: the replicas cannot be counted.
        """
        ...

    async def resize(self, count: int) -> None:
        """Starts replicas in all places below ``count`` that are empty, and stops the others.

        Raises:
          ActuatorError: a replica could not be started or stopped.
        """
        ...


@dataclass(frozen=True)
class LiveFleet:
    """A fleet at the end of a window; sequences have one entry for every place."""

    window: Mapping[str, Any]
    """answer of the gateway's ``/control/window``."""
    metrics: Mapping[str, Mapping[str, Any]]
    """metrics of every engine by name, or its error."""
    names: Sequence[str]
    in_flight: Sequence[int]
    """requests of the gateway at the engine."""
    named_serving: Sequence[bool]
    """whether the gateway sends new requests there."""
    queued: int
    """requests in the gateway's queue."""
    size: int
    """replicas that run or start, by the actuator: the highest place in use and one more."""

    @cached_property
    def answers(self) -> Sequence[bool]:
        """Whether each engine tells what it does."""
        return [
            self.metrics[name].get("running") is not None
            and self.metrics[name].get("waiting") is not None
            for name in self.names
        ]

    @property
    def serving(self) -> Mapping[str, Mapping[str, Any]]:
        """Metrics of the engines that answer and get new requests, by name."""
        entries = zip(self.names, self.answers, self.named_serving, strict=True)
        return {name: self.metrics[name] for name, up, serving in entries if up and serving}

    @property
    def readable(self) -> Mapping[str, Mapping[str, Any]]:
        """Metrics of the engines that answer, draining ones included, by name."""
        return {
            name: self.metrics[name]
            for name, up in zip(self.names, self.answers, strict=True)
            if up
        }

    @property
    def starting(self) -> int:
        """Replicas that start."""
        return sum(not up for up in self.answers[: self.size])

    @property
    def seconds(self) -> float:
        """Length of the window, s."""
        return self.window["until_s"] - self.window["since_s"]

    @property
    def running(self) -> float:
        """Requests in the batches of the serving engines."""
        return sum(one["running"] for one in self.serving.values())

    @property
    def waiting(self) -> float:
        """Requests that wait at the gateway or in a serving engine."""
        return self.queued + sum(one["waiting"] for one in self.serving.values())

    def shown_in(self, env: ServeEnv, metrics: WindowMetrics) -> WindowMetrics:
        """``metrics`` of a window of ``seconds`` with the replicas, and what those cost."""
        cost_usd = env.deployment.on_host().cost_usd(self.seconds, metrics.energy_j, self.size)
        return dataclasses.replace(
            metrics,
            cost_usd=jnp.float32(cost_usd),
            replicas_ready=jnp.float32(len(self.serving)),
            replicas_starting=jnp.float32(self.starting),
            replicas_rented=jnp.float32(self.size),
        )


class FleetControl:
    """Reads and scales the fleet behind one gateway by one actuator."""

    def __init__(
        self, gateway: GatewayClient, actuator: Actuator | None, most: int, drain_s: float
    ) -> None:
        """Args:
        gateway: control routes of the gateway.
        actuator: starts and stops replicas; None where others do.
        most: places for replicas.
        drain_s: longest time that a draining replica is kept, s.
        """
        self._gateway = gateway
        self._actuator = actuator
        self.most = most
        self._drain_s = drain_s
        self._drains_since_s: dict[int, float] = {}

    async def read(self, since_s: float | None, slices: int) -> LiveFleet:
        """The fleet at the end of a window, asked of the gateway; see ``GatewayClient.window``.

        Raises:
          GatewayError: the gateway does not answer.
          InputError, ActuatorError: see ``state``.
        """
        window = await self._gateway.window(since_s, slices)
        return await self.state(window, await self._gateway.engines())

    async def state(
        self, window: Mapping[str, Any], metrics: Mapping[str, Mapping[str, Any]]
    ) -> LiveFleet:
        """The fleet at the end of a window.

        Args:
          window, metrics: answers of the gateway's ``/control/window`` and ``/control/engines``.

        Raises:
          InputError: the gateway has fewer engines than there are places, or several pools, or an
            answer lacks something.
          ActuatorError: the replicas cannot be counted.
        """
        pool = _pool(window, self.most)
        places = [
            JsonObject(one, "an engine of the pool") for one in pool.entries("engines")[: self.most]
        ]
        names = [place.text("name") for place in places]
        engines = JsonObject(metrics, "the engines")
        fleet = LiveFleet(
            window=window,
            metrics={name: engines.inside(name) for name in names},
            names=names,
            in_flight=[place.whole("running", 0) for place in places],
            named_serving=[place.flag("serving") for place in places],
            queued=pool.whole("waiting", 0),
            # A replica that others start cannot be seen before it answers.
            size=0 if self._actuator is None else await self._actuator.size(),
        )
        if self._actuator is not None:
            return fleet
        up = [place + 1 for place, answers in enumerate(fleet.answers) if answers]
        return dataclasses.replace(fleet, size=max(up, default=0))

    async def scale(self, state: LiveFleet, wanted: int) -> None:
        """Tells the gateway which engines serve, and the actuator, which there must be, how many
        replicas stay.

        Raises:
          GatewayError, ActuatorError: one of them did not do it.
        """
        assert self._actuator is not None
        up = [place for place, answers in enumerate(state.answers) if answers]
        serving = [place for place in up if place < wanted] or up[:1]
        if serving:  # with no engine that answers, requests wait for the first one that does
            await self._gateway.serve_with([state.names[place] for place in serving])
        now_s = time.monotonic()
        draining = [p for p in range(wanted, state.size) if p not in serving]
        since_s = {place: self._drains_since_s.get(place, now_s) for place in draining}
        self._drains_since_s = since_s
        # A replica that served until now may have got a request since it was read.
        kept = [
            place
            for place in draining
            if (state.in_flight[place] or state.named_serving[place])
            and now_s - since_s[place] < self._drain_s
        ]
        await self._actuator.resize(max([wanted, *(place + 1 for place in (*kept, *serving))]))


def _pool(window: Mapping[str, Any], most: int) -> JsonObject:
    """The gateway's only pool, which has an engine for every replica that there may be."""
    pools = JsonObject(window, "the window").inside("pools")
    if len(pools) != 1:
        raise InputError(f"the gateway has {len(pools)} pools; replicas of one are scaled")
    pool = pools.inside(next(iter(pools)))
    count = len(pool.entries("engines"))
    if count < most:
        raise InputError(
            f"there may be {most} replicas, and the gateway has places for {count}; "
            "name an --engine for every place, running or not"
        )
    return pool
