"""Steering: applies knobs to all engines and to the gateway itself, under one lease.

Each knob is applied where that is most exact: by the engines while they serve, if every engine
offers the knob; otherwise by the gateway (places at an engine, order of the queue, pool of new
requests). A knob that neither offers is reported as unsupported, or as needing a restart of the
engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jaxserve.engine_control.command import ENGINE_KNOBS
from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool
from jaxserve.gateway.engines.upstream import EngineRefused
from jaxserve.gateway.knobs.engine import EngineKnobs, EngineOffer
from jaxserve.gateway.knobs.gateway import gateway_knobs
from jaxserve.gateway.knobs.hold import ControlHold
from jaxserve.gateway.knobs.values import check_values

_LOG = logging.getLogger("jaxserve.gateway")
_RETRY_S = 5.0
"""Time until an engine that could not be reset is asked again, s."""
_RECENT_S = 1.0
"""Age up to which an offer is reused for a command, s: engines answer between two steps, which may
take a good part of a control window, and they check every command themselves."""
_RESTART = ("quantization_tier", "prefill_decode_split", "speculation_depth")
"""Knobs with a start-up flag in engines."""


class Steering:
    """The knobs of all pools.

    Commands are processed one at a time. A lease ends by itself: some engines have leases of their
    own; for the gateway and the other engines, a timer here ends the lease.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        engines: Sequence[EngineKnobs],
        look_ahead: int,
        hold: ControlHold,
    ) -> None:
        """Args:
        pools: pools by name.
        engines: knobs of every engine.
        look_ahead: requests beyond a cap that wait inside an engine.
        hold: the operator's hold.
        """
        self._pools = pools
        self._own = gateway_knobs(pools, look_ahead)
        self._engines = engines
        self._lock = asyncio.Lock()
        self._lease_end: float | None = None
        self._version = 0
        self._expiry: asyncio.Task[None] | None = None
        self._pending_resets: asyncio.Task[None] | None = None
        self._first_look: asyncio.Task[None] | None = None
        self._hold = hold
        self._seen: tuple[float, Mapping[str, EngineOffer]] = (-math.inf, {})
        """time of the last offers, monotonic clock, s; and the offers by engine."""

    def begin(self) -> None:
        """Logs which engines offer no knobs, and resets engines without leases, in case an earlier
        gateway was killed before it did."""
        self._first_look = asyncio.create_task(self._log_reasons())
        self._reset_later([engine for engine in self._engines if not engine.leases])

    @property
    def held(self) -> bool:
        """Whether control is switched off."""
        return self._hold.held

    @property
    def lease_left_s(self) -> float:
        """Time until the lease ends, s; 0 without a lease."""
        end_s = self._lease_end
        return 0.0 if end_s is None else max(0.0, end_s - time.monotonic())

    async def state(self) -> dict[str, Any]:
        """Values, ranges and places of all knobs; JSON-able."""
        return self._state(await self._offers())

    async def put(self, values: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        """Sets knobs, all or none, and restarts the lease.

        Args:
          values: values by knob.
          lease_s: duration of the lease, s.

        Returns:
          as ``state``.

        Raises:
          InputError: control is switched off, a knob is unknown or not offered, or a value is out
            of its range.
          EngineRefused: an engine did not obey; all are back at their static values.
        """
        async with self._lock:
            if self._hold.held:
                raise InputError("control is switched off; switch it on with PUT /control/hold")
            offers = self._recent_offers() or await self._offers()
            knobs = self._knobs(offers)
            check_values(values, knobs)
            places = {name: knob["where"] for name, knob in knobs.items()}
            try:
                after = await self._command(values, lease_s, offers, places)
            except BaseException:
                await self._release()
                raise
            for name, own in self._own.items():
                if places[name] != "gateway":
                    # Engines may have begun to offer a knob that the gateway approximated.
                    own.turn(own.static)
                elif name in values:
                    own.turn(values[name])
            self._version += 1
            self._start_lease(lease_s)
            return self._state({**offers, **after})

    async def release(self) -> dict[str, Any]:
        """Ends the lease and restores the static values; returns as ``state``."""
        async with self._lock:
            await self._release()
            return self._state(await self._offers())

    async def hold(self, held: bool) -> dict[str, Any]:
        """Sets the operator's hold; a hold ends the lease and restores the static values.

        Raises:
          HoldNotSaved: the hold took effect, but a restart of the gateway will not know of it.
        """
        try:
            self._hold.set(held)
        finally:
            state = await self.release() if held else await self.state()
        return state

    async def close(self) -> None:
        """Restores the static values when the gateway stops."""
        async with self._lock:
            if self._lease_end is not None:
                await self._release()
            for task in (self._pending_resets, self._first_look):
                if task is not None:
                    task.cancel()

    async def _log_reasons(self) -> None:
        """Logs why an engine offers no knobs: the gateway approximates what it can, and a token
        that the engine refused would otherwise pass unnoticed."""
        for name, offer in (await self._offers()).items():
            if offer.reason is not None and not offer.knobs:
                _LOG.warning("engine %s offers no knobs: %s", name, offer.reason)

    def _serving(self) -> list[EngineKnobs]:
        """Engines that get new requests; one that drains may be off, and decides nothing."""
        names = {one.spec.name for pool in self._pools.values() for one in pool.serving}
        return [engine for engine in self._engines if engine.name in names]

    async def _offers(self) -> Mapping[str, EngineOffer]:
        engines, asked_s = self._serving(), time.monotonic()
        offers = await asyncio.gather(*(engine.offer() for engine in engines))
        found = {engine.name: offer for engine, offer in zip(engines, offers, strict=True)}
        self._seen = (asked_s, found)
        return found

    def _recent_offers(self) -> Mapping[str, EngineOffer] | None:
        """The last offers, if they are recent, of the engines that serve now, and no engine offered
        nothing."""
        asked_s, offers = self._seen
        recent = time.monotonic() - asked_s < _RECENT_S
        same = {engine.name for engine in self._serving()} == offers.keys()
        return offers if recent and same and all(one.knobs for one in offers.values()) else None

    async def _command(
        self,
        values: Mapping[str, float],
        lease_s: float,
        offers: Mapping[str, EngineOffer],
        places: Mapping[str, str | None],
    ) -> dict[str, EngineOffer]:
        """Sends a command to every engine with knobs, even without a value for it, which renews the
        engine's lease; waits for all answers before it raises.

        Returns:
          offers after the command, by engine.
        """
        at_engines = {name for name, where in places.items() if where == "engine"}
        engines = [
            one
            for one in self._engines
            if one.name in offers and at_engines & set(offers[one.name].knobs)
        ]
        mine = {name: value for name, value in values.items() if name in at_engines}
        answers = await asyncio.gather(
            *(engine.put(mine, lease_s) for engine in engines), return_exceptions=True
        )
        found = {}
        for engine, answer in zip(engines, answers, strict=True):
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
        engines = self._engines
        answers = await asyncio.gather(
            *(engine.release() for engine in engines), return_exceptions=True
        )
        # An engine that cannot be reached restores its values by its own lease, if it has one.
        self._reset_later(
            [
                engine
                for engine, answer in zip(engines, answers, strict=True)
                if isinstance(answer, BaseException) and not engine.leases
            ]
        )

    def _reset_later(self, engines: Sequence[EngineKnobs]) -> None:
        """Resets engines as soon as they answer."""
        if self._pending_resets is not None:
            self._pending_resets.cancel()
        self._pending_resets = asyncio.create_task(self._reset(engines)) if engines else None

    async def _reset(self, engines: Sequence[EngineKnobs]) -> None:
        left = list(engines)
        while True:
            async with self._lock:
                for engine in left if self._lease_end is None else ():
                    with suppress(EngineRefused):
                        await engine.release()
                        left = [one for one in left if one is not engine]
            if not left:
                return
            await asyncio.sleep(_RETRY_S)

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
        return {
            "mode": "static" if self._lease_end is None else "leased",
            "lease_left_s": self.lease_left_s,
            "version": self._version,
            "held": self.held,
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
                # Replicas with different values have no common one.
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
