"""The controller of replicas: reads the gateway, asks the rule, acts on gateway and actuator.

Engines in the gateway's order are places 0, 1, 2, ... Places below the number wanted serve as soon
as they answer; the others drain and are stopped when their requests have ended, or when they have
drained for long enough. A controller may be killed at any time: engines, gateway and requests go
on, and a controller that is started anew finds everything by asking.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.errors import InputError
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.replicas.actuator import Actuator, ActuatorError
from jaxserve.live.replicas.live_reading import LiveReadings
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.rule_form import RuleMemory, first_memory
from jaxserve.scaling.setting import KINDS, RuleSetting, wanted_by


@dataclass(frozen=True)
class ScalingWindow:
    """A window of the controller, a line of its log."""

    unix_s: float
    """end of the window, s since 1970."""
    wanted: int | None = None
    """replicas that the rule wants; None where it could not be asked."""
    size: int | None = None
    """replicas that ran or started."""
    serving: int | None = None
    """replicas that answered and got new requests."""
    arrivals_rps: float | None = None
    running: float | None = None
    waiting: float | None = None
    slo_attainment: float | None = None
    """share of the judged requests of the window inside their objectives; None without any."""
    acted: bool = False
    """whether gateway and actuator did as they were told."""
    error: str | None = None
    """reason why something was not done."""

    def text(self) -> str:
        """The window in a line."""
        if self.wanted is None:
            return f"not asked: {self.error}"
        met = "-" if self.slo_attainment is None else f"{self.slo_attainment:.1%}"
        return (
            f"{self.arrivals_rps:.2f} requests/s, {self.running:.0f} running, "
            f"{self.waiting:.0f} waiting, {met} met; {self.serving} of {self.size} replicas "
            f"serve, {self.wanted} wanted" + (f"; {self.error}" if self.error else "")
        )


@dataclass(frozen=True)
class _FleetReading:
    """The fleet at the end of a window; lists have one entry for every place."""

    names: Sequence[str]
    answers: Sequence[bool]
    """whether the engine tells what it does."""
    in_flight: Sequence[int]
    """requests of the gateway at the engine."""
    size: int
    serving: int
    reading: Reading
    slo_attainment: float | None

    def decision(self, unix_s: float, wanted: int) -> ScalingWindow:
        """The window, in which the rule wants so many replicas."""
        return ScalingWindow(
            unix_s,
            wanted=wanted,
            size=self.size,
            serving=self.serving,
            arrivals_rps=float(self.reading.arrivals_rps),
            running=float(self.reading.running),
            waiting=float(self.reading.waiting),
            slo_attainment=self.slo_attainment,
        )


class Scaler:
    """One rule over one gateway and one actuator."""

    def __init__(
        self,
        setting: RuleSetting,
        fleet: Fleetwide,
        gateway: GatewayClient,
        actuator: Actuator,
        *,
        acts: bool,
        drain_s: float,
    ) -> None:
        """Args:
        setting: rule and its numbers.
        fleet: constants of the fleet.
        gateway: control routes of the gateway.
        actuator: starts and stops replicas.
        acts: whether replicas are scaled; otherwise the rule is only asked (shadow).
        drain_s: longest time that a draining replica is kept, s.
        """
        self._rule = (jnp.int32(KINDS.index(setting.kind)), jnp.asarray(setting.numbers))
        self._fleet = fleet
        self._gateway = gateway
        self._actuator = actuator
        self._acts = acts
        self._drain_s = drain_s
        self._memory: RuleMemory | None = None
        self._readings = LiveReadings(fleet)
        self._since_s: float | None = None
        self._drains_since_s: dict[int, float] = {}

    async def run(self, windows: int | None, say: Callable[[ScalingWindow], None]) -> None:
        """Decides at the end of every window, for so many windows or without an end.

        Raises:
          InputError: the gateway has fewer engines than the rule may want, or several pools.
          GatewayError: the gateway does not answer at the start.
        """
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        await self._read()
        while windows is None or windows > 0:
            next_s = max(next_s + self._fleet.window_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            say(await self.window())
            windows = None if windows is None else windows - 1

    async def window(self) -> ScalingWindow:
        """Ends a window: the rule is asked, and obeyed unless this is a shadow."""
        now_s = time.time()
        try:
            state = await self._read()
        except (GatewayError, ActuatorError) as error:
            self._since_s = None  # a gateway that was started anew counts from another time
            return ScalingWindow(now_s, error=str(error))
        if state is None:
            return ScalingWindow(now_s, error="the first window of this gateway has just begun")
        wanted = self._wanted(state.reading, state.size)
        decision = state.decision(now_s, wanted)
        if not self._acts:
            return decision
        try:
            await self._act(state, wanted)
        except (GatewayError, ActuatorError) as error:
            return dataclasses.replace(decision, error=str(error))
        return dataclasses.replace(decision, acted=True)

    async def _read(self) -> _FleetReading | None:
        """State of the fleet; None in the first window, which only begins the next one."""
        since_s = self._since_s
        window = await self._gateway.window(since_s, 1)
        pool = _pool(window, self._fleet.most)
        self._since_s = window["until_s"]
        metrics, size = await self._gateway.engines(), await self._actuator.size()
        if since_s is None:
            return None
        engines = pool["engines"][: self._fleet.most]
        names = [engine["name"] for engine in engines]
        answers = [_answers(metrics[name]) for name in names]
        serving = [
            engine["name"]
            for engine, up in zip(engines, answers, strict=True)
            if up and engine["serving"]
        ]
        starting = sum(not up for up in answers[:size])
        reading = self._readings.read(
            window, [metrics[name] for name in serving], pool["waiting"], starting
        )
        return _FleetReading(
            names=names,
            answers=answers,
            in_flight=[engine["running"] for engine in engines],
            size=size,
            serving=len(serving),
            reading=reading,
            slo_attainment=window["slo_attainment"],
        )

    def _wanted(self, reading: Reading, size: int) -> int:
        if self._memory is None:
            self._memory = first_memory(self._fleet, max(size, self._fleet.least))
        wanted, self._memory = _ask(self._fleet, *self._rule, self._memory, reading)
        return round(float(wanted))

    async def _act(self, state: _FleetReading, wanted: int) -> None:
        """Tells the gateway which engines serve, and the actuator how many replicas stay."""
        up = [place for place, answers in enumerate(state.answers) if answers]
        serving = [place for place in up if place < wanted] or up[:1]
        if serving:  # with no engine that answers, requests wait for the first one that does
            await self._gateway.serve_with([state.names[place] for place in serving])
        now_s = time.monotonic()
        draining = [p for p in range(wanted, state.size) if p not in serving]
        since_s = {place: self._drains_since_s.get(place, now_s) for place in draining}
        self._drains_since_s = since_s
        kept = [
            place
            for place in draining
            if state.in_flight[place] and now_s - since_s[place] < self._drain_s
        ]
        await self._actuator.resize(max([wanted, *(place + 1 for place in (*kept, *serving))]))


@functools.partial(jax.jit, static_argnames="fleet")
def _ask(
    fleet: Fleetwide, kind: jax.Array, values: jax.Array, memory: RuleMemory, reading: Reading
) -> tuple[jax.Array, RuleMemory]:
    return wanted_by(fleet, kind, values, memory, reading)


def _answers(metrics: Mapping[str, Any]) -> bool:
    """Whether an engine tells what it does."""
    return metrics.get("running") is not None and metrics.get("waiting") is not None


def _pool(window: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """The gateway's only pool, which has an engine for every replica that there may be."""
    pools = list(window["pools"].values())
    if len(pools) != 1:
        raise InputError(f"the gateway has {len(pools)} pools; replicas of one are scaled")
    count = len(pools[0]["engines"])
    if count < most:
        raise InputError(
            f"the rule may want {most} replicas, and the gateway has places for {count}; name "
            "an --engine for every place, running or not"
        )
    return pools[0]
