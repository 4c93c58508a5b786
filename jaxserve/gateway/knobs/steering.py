"""Turns the knobs of everything behind the gateway, under one lease.

Each knob is turned where that is most exact. Engines turn it while they serve, where every engine
offers that. Otherwise the gateway does: places at an engine, the order of its queue, the pool that
new requests go to. Where neither can, the answer says that the engine must be restarted, or that
nobody offers the knob.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool
from jaxserve.gateway.knobs.engine import EngineKnobs, EngineOffer, EngineRefused
from jaxserve.gateway.knobs.gateway import gateway_knobs
from jaxserve.gateway.knobs.hold import Switch
from jaxserve.gateway.knobs.values import ENGINE_KNOBS, check_values

_AGAIN_S = 5.0
"""Until an engine that could not be put back is asked once more."""
_RECENT_S = 1.0
"""What engines offered so lately still holds when a command comes: they answer between two steps,
which may take a good part of a control window, and check every command themselves."""
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
        switch: Switch,
    ) -> None:
        """Args: the pools, their engines' knobs (asked for once the gateway runs), how many
        requests beyond a cap wait inside an engine, and the operator's switch."""
        self._own = gateway_knobs(pools, look_ahead)
        self._engines = engines
        self._lock = asyncio.Lock()
        self._lease_end: float | None = None
        self._version = 0
        self._expiry: asyncio.Task[None] | None = None
        self._debt: asyncio.Task[None] | None = None
        self._switch = switch
        self._seen: tuple[float, Mapping[str, EngineOffer]] = (-math.inf, {})
        """when engines were last asked what they offer, monotonic clock, s; and their answers."""

    def begin(self) -> None:
        """Puts back engines without leases: an earlier gateway may not have come to it.

        The others' leases end by themselves.
        """
        self._owe([engine for engine in self._engines() if not engine.leases])

    async def state(self) -> dict[str, Any]:
        """What is in force, and who turns it how; JSON-able."""
        return self._state(await self._offers())

    async def put(self, values: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        """Turns some knobs, all or none, and starts the lease anew; answers as ``state``.

        Raises:
          InputError: control is switched off, a knob is unknown or not offered, or a value is out
            of its range.
          EngineRefused: an engine did not obey; all are back at their static values.
        """
        async with self._lock:
            if self._switch.held:
                raise InputError("control is switched off; switch it on with PUT /control/hold")
            offers = self._recent_offers() or await self._offers()
            knobs = self._knobs(offers)
            check_values(values, knobs)
            places = {name: knob["where"] for name, knob in knobs.items()}
            try:
                told = await self._tell(values, lease_s, offers, places)
            except BaseException:
                await self._release()
                raise
            for name, own in self._own.items():
                if places[name] != "gateway":
                    # Engines may have begun to offer what the gateway did for them.
                    own.turn(own.static)
                elif name in values:
                    own.turn(values[name])
            self._version += 1
            self._start_lease(lease_s)
            return self._state({**offers, **told})

    async def release(self) -> dict[str, Any]:
        """Ends the lease: the static values are in force; answers as ``state``."""
        async with self._lock:
            await self._release()
            return self._state(await self._offers())

    async def hold(self, held: bool) -> dict[str, Any]:
        """The switch: on hold nobody turns anything, and the static values are in force.

        Raises:
          NotKept: so it is, but a restart of the gateway will not know.
        """
        try:
            self._switch.throw(held)
        finally:
            state = await self.release() if held else await self.state()
        return state

    async def close(self) -> None:
        """Puts everything back when the gateway stops."""
        async with self._lock:
            if self._lease_end is not None:
                await self._release()
            if self._debt is not None:
                self._debt.cancel()

    async def _offers(self) -> Mapping[str, EngineOffer]:
        engines, asked_s = self._engines(), time.monotonic()
        offers = await asyncio.gather(*(engine.offer() for engine in engines))
        found = {engine.name: offer for engine, offer in zip(engines, offers, strict=True)}
        self._seen = (asked_s, found)
        return found

    def _recent_offers(self) -> Mapping[str, EngineOffer] | None:
        """What engines offered a moment ago, unless one of them offered nothing then."""
        asked_s, offers = self._seen
        recent = time.monotonic() - asked_s < _RECENT_S
        return offers if recent and all(offer.knobs for offer in offers.values()) else None

    async def _tell(
        self,
        values: Mapping[str, float],
        lease_s: float,
        offers: Mapping[str, EngineOffer],
        places: Mapping[str, str | None],
    ) -> dict[str, EngineOffer]:
        """Tells every engine that turns knobs, of which none may be meant: that renews its lease.

        Waits for all of them before it raises.

        Returns:
          what each that was told offers then.
        """
        at_engines = {name for name, where in places.items() if where == "engine"}
        told = [one for one in self._engines() if at_engines & set(offers[one.name].knobs)]
        mine = {name: value for name, value in values.items() if name in at_engines}
        answers = await asyncio.gather(
            *(engine.put(mine, lease_s) for engine in told), return_exceptions=True
        )
        found = {}
        for engine, answer in zip(told, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found[engine.name] = answer
        return found

    async def _release(self) -> None:
        self._lease_end = None
        self._version += 1
        self._seen = (-math.inf, {})
        if self._expiry is not None and self._expiry is not asyncio.current_task():
            self._expiry.cancel()
        self._expiry = None
        for knob in self._own.values():
            knob.turn(knob.static)
        engines = self._engines()
        answers = await asyncio.gather(
            *(engine.release() for engine in engines), return_exceptions=True
        )
        # What cannot be reached falls back by its own lease, if it has one.
        self._owe(
            [
                engine
                for engine, answer in zip(engines, answers, strict=True)
                if isinstance(answer, BaseException) and not engine.leases
            ]
        )

    def _owe(self, engines: Sequence[EngineKnobs]) -> None:
        """Engines that must be put back as soon as they answer."""
        if self._debt is not None:
            self._debt.cancel()
        self._debt = asyncio.create_task(self._settle(engines)) if engines else None

    async def _settle(self, engines: Sequence[EngineKnobs]) -> None:
        left = list(engines)
        while True:
            async with self._lock:
                for engine in left if self._lease_end is None else ():
                    with suppress(EngineRefused):
                        await engine.release()
                        left = [one for one in left if one is not engine]
            if not left:
                return
            await asyncio.sleep(_AGAIN_S)

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
            "held": self._switch.held,
            "engines": {
                name: {"engine_id": offer.engine_id, "reason": offer.reason}
                for name, offer in offers.items()
            },
            "knobs": self._knobs(offers),
        }

    def _knobs(self, offers: Mapping[str, EngineOffer]) -> dict[str, dict[str, Any]]:
        return {name: self._knob(name, offers) for name in ENGINE_KNOBS}

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
