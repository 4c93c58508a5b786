"""Turns the knobs of everything behind the gateway, under one lease.

Each knob is turned where that is most exact: by the engine while it serves, where every engine
offers that; else by the gateway (places at an engine, the order of its queue, the pool that new
requests go to); else it is said that the engine must be restarted, or that nobody offers it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jaxserve.errors import InputError
from jaxserve.gateway.admission import Pool
from jaxserve.gateway.engine_knobs import EngineKnobs, EngineOffer, EngineRefused
from jaxserve.gateway.gateway_knobs import gateway_knobs

KNOBS = (
    "batch_cap",
    "token_budget",
    "kv_budget_fraction",
    "speculation_depth",
    "quantization_tier",
    "prefill_decode_split",
    "priority_routing",
)
MAX_LEASE_S = 3600.0
_RESTART = ("quantization_tier", "prefill_decode_split", "speculation_depth")
"""What an engine has a start-up flag for."""


class Steering:
    """The knobs of all pools.

    Commands are taken one at a time. A lease ends by itself: in engines that have leases because
    they got one, in the gateway and in the other engines because a timer here ends it.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        engines: Callable[[], Sequence[EngineKnobs]],
        look_ahead: int,
    ) -> None:
        """Args: the pools, their engines' knobs (asked for once the gateway runs), and how many
        requests beyond a cap wait inside an engine."""
        self._own = gateway_knobs(pools, look_ahead)
        self._engines = engines
        self._lock = asyncio.Lock()
        self._lease_end: float | None = None
        self._version = 0
        self._expiry: asyncio.Task[None] | None = None
        self.held = False
        """whether somebody has switched control off: no command is taken."""

    async def state(self) -> dict[str, Any]:
        """What is in force, and who turns it how; JSON-able."""
        async with self._lock:
            return self._state(await self._offers())

    async def put(self, values: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        """Turns some knobs, all or none, and starts the lease anew; answers as ``state``.

        Raises:
          InputError: control is switched off, a knob is unknown or not offered, or a value is out
            of its range.
          EngineRefused: an engine did not obey; all are back at their static values.
        """
        async with self._lock:
            if self.held:
                raise InputError("control is switched off; switch it on with PUT /control/hold")
            offers = await self._offers()
            knobs = self._knobs(offers)
            _check(values, knobs)
            try:
                await self._all(
                    lambda engine, offer: engine.put(
                        {name: value for name, value in values.items() if name in offer.knobs},
                        lease_s,
                    ),
                    offers,
                    _by_engine(knobs),
                )
            except EngineRefused:
                await self._release()
                raise
            for name, value in values.items():
                if knobs[name]["where"] == "gateway":
                    self._own[name].turn(value)
            self._version += 1
            self._start_lease(lease_s)
            return self._state(await self._offers())

    async def release(self) -> dict[str, Any]:
        """Ends the lease: the static values are in force; answers as ``state``."""
        async with self._lock:
            await self._release()
            return self._state(await self._offers())

    async def hold(self, held: bool) -> dict[str, Any]:
        """The switch: on hold nobody turns anything, and the static values are in force."""
        self.held = held
        return await self.release() if held else await self.state()

    async def close(self) -> None:
        """Puts everything back when the gateway stops."""
        async with self._lock:
            if self._lease_end is not None:
                await self._release()

    async def _offers(self) -> dict[str, EngineOffer]:
        engines = self._engines()
        offers = await asyncio.gather(*(engine.offer() for engine in engines))
        return {engine.name: offer for engine, offer in zip(engines, offers, strict=True)}

    async def _all(
        self,
        tell: Callable[[EngineKnobs, EngineOffer], Awaitable[None]],
        offers: Mapping[str, EngineOffer],
        names: frozenset[str],
    ) -> None:
        """Tells every engine that offers one of the knobs, and waits for all of them."""
        told = [engine for engine in self._engines() if names & set(offers[engine.name].knobs)]
        answers = await asyncio.gather(
            *(tell(engine, offers[engine.name]) for engine in told), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _release(self) -> None:
        self._lease_end = None
        self._version += 1
        if self._expiry is not None and self._expiry is not asyncio.current_task():
            self._expiry.cancel()
        self._expiry = None
        for knob in self._own.values():
            knob.turn(knob.static)
        # What cannot be reached falls back by its own lease.
        await asyncio.gather(
            *(engine.release() for engine in self._engines()), return_exceptions=True
        )

    def _start_lease(self, lease_s: float) -> None:
        self._lease_end = time.monotonic() + lease_s
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.create_task(self._expire(lease_s))

    async def _expire(self, lease_s: float) -> None:
        await asyncio.sleep(lease_s)
        async with self._lock:
            await self._release()

    def _state(self, offers: Mapping[str, EngineOffer]) -> dict[str, Any]:
        end = self._lease_end
        return {
            "mode": "static" if end is None else "leased",
            "lease_left_s": 0.0 if end is None else max(0.0, end - time.monotonic()),
            "version": self._version,
            "held": self.held,
            "engines": {
                name: {"engine_id": offer.engine_id, "reason": offer.reason}
                for name, offer in offers.items()
            },
            "knobs": self._knobs(offers),
        }

    def _knobs(self, offers: Mapping[str, EngineOffer]) -> dict[str, dict[str, Any]]:
        return {name: self._knob(name, offers) for name in KNOBS}

    def _knob(self, name: str, offers: Mapping[str, EngineOffer]) -> dict[str, Any]:
        offered = [offer.knobs[name] for offer in offers.values() if name in offer.knobs]
        if offered and len(offered) == len(offers):
            now, static = ({one[word] for one in offered} for word in ("now", "static"))
            return {
                "how": "exact",
                "where": "engine",
                # Replicas that differ have no value that could be named.
                "now": now.pop() if len(now) == 1 else None,
                "static": static.pop() if len(static) == 1 else None,
                "least": max(one["least"] for one in offered),
                "most": min(one["most"] for one in offered),
            }
        own = self._own.get(name)
        if own is not None:
            return own.shown()
        missing = next((n for n, offer in offers.items() if name not in offer.knobs), None)
        reason = "" if missing is None else f"{missing}: {offers[missing].why_not(name)}"
        return {
            "how": "restart_required" if name in _RESTART else "unsupported",
            "where": None,
            "reason": reason,
        }


def _by_engine(knobs: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(name for name, knob in knobs.items() if knob["where"] == "engine")


def _check(values: Mapping[str, float], knobs: Mapping[str, Mapping[str, Any]]) -> None:
    for name, value in values.items():
        knob = knobs.get(name)
        if knob is None:
            raise InputError(f"knob {name!r:.60} is unknown; the knobs are {', '.join(KNOBS)}")
        if knob["where"] is None:
            raise InputError(f"{name} cannot be turned here: {knob['reason']}")
        if not knob["least"] <= value <= knob["most"]:
            raise InputError(
                f"{name} is {value:g}; it must be from {knob['least']:g} to {knob['most']:g}"
            )
        if "allowed" in knob and value not in knob["allowed"]:
            allowed = ", ".join(f"{each:g}" for each in knob["allowed"])
            raise InputError(f"{name} is {value:g}; it must be one of {allowed}")
