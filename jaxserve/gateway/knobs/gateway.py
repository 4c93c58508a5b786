"""Knobs that the gateway turns itself, where engines cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.gateway.engines.admission import Pool

_MOST_PLACES = 100_000.0


@dataclass(frozen=True)
class GatewayKnob:
    """A knob of the gateway."""

    least: float
    most: float
    static: float | None
    """its value without a lease; None where nothing is limited then."""
    turn: Callable[[float | None], None]
    """puts a value into force."""
    now: Callable[[], float | None]
    """the value in force."""
    reason: str
    """why it is an approximation."""
    allowed: tuple[float, ...] = ()
    """the only values that there are; empty where all in between are."""

    def shown(self) -> dict[str, Any]:
        """What controllers are told; JSON-able."""
        choice = {"allowed": self.allowed} if self.allowed else {}
        return {
            "how": "approximated",
            "where": "gateway",
            "reason": self.reason,
            "now": self.now(),
            "static": self.static,
            "least": self.least,
            "most": self.most,
            **choice,
        }


def gateway_knobs(pools: Mapping[str, Pool], look_ahead: int) -> dict[str, GatewayKnob]:
    """By name, those that these pools allow.

    Args:
      look_ahead: requests beyond a cap that wait inside an engine.
    """
    router = Router(pools)
    knobs = {
        "batch_cap": _batch_cap(pools, look_ahead),
        "priority_routing": _priority_routing(pools),
        "quantization_tier": router.knob("tier"),
        "speculation_depth": router.knob("depth"),
    }
    return {name: knob for name, knob in knobs.items() if knob is not None}


class Router:
    """Chooses the pool of requests that name none, by tier and speculation depth."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Args: the pools; the first one is where requests go without a lease."""
        self._pools = pools
        self._chosen = next(iter(pools.values()))
        self._static = _kind(self._chosen)
        self._wanted = dict(self._static)

    def knob(self, name: str) -> GatewayKnob | None:
        """The knob ``tier`` or ``depth``; None where all pools are alike in it, or one does not
        say what it has."""
        values = [_kind(pool)[name] for pool in self._pools.values()]
        given = sorted(value for value in set(values) if value is not None)
        if None in values or len(given) < 2:
            return None

        def turn(value: float | None) -> None:
            self._wanted[name] = None if value is None else int(value)
            self._choose()

        return GatewayKnob(
            least=given[0],
            most=given[-1],
            static=self._static[name],
            turn=turn,
            # Not what is wanted: there may be no pool that agrees in both.
            now=lambda: _kind(self._chosen)[name],
            reason="new requests go to the pool that was started with it; others run to their end",
            allowed=tuple(map(float, given)),
        )

    def _choose(self) -> None:
        """The pool that agrees in most; the first of those."""

        def agreement(pool: Pool) -> int:
            return sum(_kind(pool)[name] == value for name, value in self._wanted.items())

        self._chosen = max(self._pools.values(), key=agreement)
        for pool in self._pools.values():
            pool.default = pool is self._chosen


def _kind(pool: Pool) -> dict[str, int | None]:
    """What its replicas were started with, None where they differ or do not say."""
    kinds = {
        "tier": {one.spec.tier for one in pool.replicas},
        "depth": {one.spec.depth for one in pool.replicas},
    }
    return {name: found.pop() if len(found) == 1 else None for name, found in kinds.items()}


def _batch_cap(pools: Mapping[str, Pool], look_ahead: int) -> GatewayKnob:
    replicas = [replica for pool in pools.values() for replica in pool.replicas]
    static = {id(replica): replica.places for replica in replicas}
    caps = {replica.spec.cap for replica in replicas}
    current: list[float | None] = [caps.pop() if len(caps) == 1 else None]
    first = current[0]

    def turn(value: float | None) -> None:
        for replica in replicas:
            back = value is None or value == first
            replica.places = static[id(replica)] if back else int(value or 0) + look_ahead
        current[0] = value
        for pool in pools.values():
            pool.places_changed()

    return GatewayKnob(
        least=1,
        most=_MOST_PLACES if first is None else first,
        static=first,
        turn=turn,
        now=lambda: current[0],
        reason=f"the gateway keeps that many requests at an engine, and {look_ahead} more",
    )


def _priority_routing(pools: Mapping[str, Pool]) -> GatewayKnob:
    def turn(value: float | None) -> None:
        for pool in pools.values():
            pool.serve_by_priority(bool(value))

    return GatewayKnob(
        least=0,
        most=1,
        static=1,
        turn=turn,
        now=lambda: float(next(iter(pools.values())).by_priority),
        reason="it orders the queue of the gateway; what is inside an engine keeps its order",
    )
