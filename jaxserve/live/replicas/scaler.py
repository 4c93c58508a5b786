"""The controller of replicas: reads a fleet, asks an autoscaler, and scales."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxserve.errors import InputError
from jaxserve.live.fleet import Actuator, ActuatorError, FleetControl, LiveFleet
from jaxserve.live.gateway_client import GatewayClient, GatewayError


class Autoscaler(Protocol):
    """Answers how many replicas there should be, window after window."""

    @property
    def window_s(self) -> float:
        """Time between two answers, s."""
        ...

    @property
    def most(self) -> int:
        """Greatest number of replicas."""
        ...

    @property
    def slices(self) -> int:
        """Equal parts of a window of which it is told the arrivals."""
        ...

    def wanted(self, state: LiveFleet) -> int:
        """Replicas that it wants after a window.

        Raises:
          InputError: the gateway's answer lacks something.
          ArithmeticError: the answer would be no number.
        """
        ...


@dataclass(frozen=True)
class ScalingWindow:
    """A window of the controller, a line of its log."""

    unix_s: float
    """end of the window, s since 1970."""
    wanted: int | None = None
    """replicas that the autoscaler wants; None where it could not be asked."""
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


class Scaler:
    """One autoscaler over one gateway and one actuator."""

    def __init__(
        self,
        autoscaler: Autoscaler,
        gateway: GatewayClient,
        actuator: Actuator,
        *,
        acts: bool,
        drain_s: float,
    ) -> None:
        """Args:
        autoscaler: a rule or a policy.
        gateway: control routes of the gateway.
        actuator: starts and stops replicas.
        acts: whether replicas are scaled; otherwise the autoscaler is only asked (shadow).
        drain_s: longest time that a draining replica is kept, s.
        """
        self._autoscaler = autoscaler
        self._fleet = FleetControl(gateway, actuator, autoscaler.most, drain_s)
        self._acts = acts
        self._since_s: float | None = None
        self._wanted: int | None = None

    async def run(self, windows: int | None, say: Callable[[ScalingWindow], None]) -> None:
        """Decides at the end of every window, for so many windows or without an end.

        Raises:
          InputError: the gateway has fewer engines than the autoscaler may want, or several pools.
          GatewayError: the gateway does not answer at the start.
        """
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        await self._read()
        while windows is None or windows > 0:
            next_s = max(next_s + self._autoscaler.window_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            say(await self.window())
            windows = None if windows is None else windows - 1

    async def window(self) -> ScalingWindow:
        """Ends a window: the autoscaler is asked, and obeyed unless this is a shadow.

        While it cannot answer, its last answer stands, so that replicas that died are replaced.
        """
        now_s = time.time()
        try:
            state = await self._read()
            if state is None:
                return ScalingWindow(now_s, error="the first window of this gateway has just begun")
        except (GatewayError, ActuatorError, InputError) as error:
            self._since_s = None  # a gateway that was started anew counts from another time
            return ScalingWindow(now_s, error=str(error))
        fault = None
        try:
            self._wanted = self._autoscaler.wanted(state)
        except (InputError, ArithmeticError) as error:
            fault = str(error)
        if self._wanted is None:
            return ScalingWindow(now_s, error=fault)
        decision = ScalingWindow(
            now_s,
            wanted=self._wanted,
            size=state.size,
            serving=len(state.serving),
            arrivals_rps=state.window["arrivals"] / state.seconds,
            running=state.running,
            waiting=state.waiting,
            slo_attainment=state.window["slo_attainment"],
            error=fault,
        )
        if not self._acts:
            return decision
        try:
            await self._fleet.scale(state, self._wanted)
        except (GatewayError, ActuatorError) as error:
            return dataclasses.replace(decision, error=str(error))
        return dataclasses.replace(decision, acted=True)

    async def _read(self) -> LiveFleet | None:
        """State of the fleet; None in the first window, which only begins the next one."""
        since_s = self._since_s
        state = await self._fleet.read(since_s, self._autoscaler.slices)
        self._since_s = state.window["until_s"]
        return None if since_s is None else state
