"""A deployment under control: reads it at the end of a window, and turns its knobs under a lease.

The number of replicas of a fleet is a knob beside those of the gateway: an actuator turns it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError, FleetControl, LiveFleet
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.guard import KnobLimits, Values
from jaxserve.live.live_task import unacknowledged
from jaxserve.live.readings import Snapshot, parse_engine_state, parse_knobs, parse_window

LEASE_WINDOWS = 2.0


class DeploymentControl:
    """Reads one deployment and turns its knobs."""

    def __init__(
        self,
        env: ServeEnv,
        turned: tuple[str, ...],
        gateway: GatewayClient,
        fleet: FleetControl | None,
    ) -> None:
        """Args:
        env: environment of the task.
        turned: knobs that the task turns.
        gateway: client of the deployment's gateway.
        fleet: replicas of a task with a fleet, which this controller scales if the task turns
          their number; None where all serve all the time.
        """
        self._window_s, self._ticks = float(env.window_s), int(env.ticks)
        self._turned = turned
        self._gateway = gateway
        self._fleet = fleet
        self.limits = KnobLimits({}, {})
        """latest known limits."""
        self.leased = False
        """whether a command of this controller is in force."""
        self.knobs_took_s = 0.0
        """duration of the latest question for the knobs, s."""
        self._fleet_seen: LiveFleet | None = None
        """latest reading of the fleet, of a window that could not be read as a whole included."""
        self._replicas: int | None = None
        """replicas that were wanted last; None before the first command."""

    async def start(self, replicas: int, patience_s: float) -> None:
        """Starts a fleet none of whose engines can be read, and waits for the first one.

        Raises:
          GatewayError, ActuatorError: they do not answer, or replicas cannot be started.
          InputError: no engine could be read in time, or the gateway does not fit the fleet.
        """
        if self._fleet is None or "replicas" not in self._turned:
            return
        until_s = time.monotonic() + patience_s
        while not (fleet := await self._fleet.read(None, self._ticks)).readable:
            if time.monotonic() > until_s:
                raise InputError(f"no replica could be read within {patience_s:.0f} s of its start")
            await self._fleet.scale(fleet, replicas)
            await asyncio.sleep(self._window_s)

    async def knobs(self) -> dict[str, Any]:
        """The gateway's knobs, timed; raises GatewayError."""
        began_s = time.monotonic()
        knobs = await self._gateway.knobs()
        self.knobs_took_s = time.monotonic() - began_s
        return knobs

    async def snapshot(self, knobs: Awaitable[dict[str, Any]], before: Snapshot | None) -> Snapshot:
        """Reads the deployment at the end of a window.

        Args:
          knobs: gives the gateway's knobs.
          before: snapshot at the beginning of the window; None where there is none.

        Raises:
          GatewayError, ActuatorError: they do not answer.
          InputError: an answer is invalid.
        """
        since_s = None if before is None else before.window.until_s
        window, engines, answer = await asyncio.gather(
            self._gateway.window(since_s, self._ticks), self._gateway.engines(), knobs
        )
        parsed = parse_knobs(answer)
        fleet = None
        if self._fleet is not None:
            self._fleet_seen = fleet = await self._fleet.state(window, engines)
            engines = fleet.readable
            wanted = fleet.size if self._replicas is None else self._replicas
            parsed = _with_replicas(parsed, max(wanted, 1), self._fleet.most)
        self.limits = KnobLimits.of(parsed["knobs"], self._turned)
        state = parse_engine_state(engines, parsed)
        return Snapshot(parse_window(window), state, parsed, fleet)

    async def command(self, values: Values) -> tuple[dict[str, Any] | None, str | None]:
        """Turns knobs and renews the lease.

        Returns:
          the knobs then, if known; and the fault if one was not turned.
        """
        gone = [name for name in self._turned if name not in values]
        if gone:
            # Renewing the lease would hold the last values of these knobs as well.
            return None, f"{gone[0]} can no longer be turned"
        at_gateway = {name: value for name, value in values.items() if name != "replicas"}
        # Replicas that serve from now on get the knobs as well.
        not_scaled = await self._scale(values)
        try:
            lease_s = LEASE_WINDOWS * self._window_s
            knobs = parse_knobs(await self._gateway.put(at_gateway, lease_s))
        except (GatewayError, InputError) as error:
            return None, str(error)
        self.leased = True
        fault = not_scaled or unacknowledged(knobs, at_gateway)
        if self._fleet is not None and self._replicas is not None:
            knobs = _with_replicas(knobs, self._replicas, self._fleet.most)
        return knobs, fault

    async def _scale(self, values: Values) -> str | None:
        """Scales a fleet to its number of replicas; returns the fault, if any."""
        if self._fleet is None or self._fleet_seen is None or "replicas" not in values:
            return None
        self._replicas = round(values["replicas"])
        try:
            await self._fleet.scale(self._fleet_seen, self._replicas)
        except (GatewayError, ActuatorError) as error:
            return str(error)
        return None

    def believe(self) -> None:
        """Takes the replicas that run for those that are wanted: somebody else may scale."""
        self._replicas = None

    async def release(self) -> None:
        """Ends the lease; replicas stay as they are. Raises GatewayError."""
        self.leased = False
        await self._gateway.release()


def _with_replicas(knobs: dict[str, Any], wanted: int, most: int) -> dict[str, Any]:
    """The gateway's knobs, and the number of replicas beside them."""
    offer = {
        "how": "exact",
        "where": "actuator",
        "now": float(wanted),
        "static": None,
        "least": 1.0,
        "most": float(most),
    }
    return knobs | {"knobs": {**knobs["knobs"], "replicas": offer}}
