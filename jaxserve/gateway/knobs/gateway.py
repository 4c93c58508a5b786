"""Knobs that the gateway applies itself, where engines cannot."""

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
    """smallest value."""
    most: float
    """largest value."""
    static: float | None
    """value without a lease; None for no limit."""
    turn: Callable[[float | None], None]
    """applies a value."""
    now: Callable[[], float | None]
    """reads the current value."""
    reason: str
    """reason why the knob is only approximated."""
    allowed: tuple[float, ...] = ()
    """allowed values; empty where all values in the range are."""

    def shown(self) -> dict[str, Any]:
        """State for controllers; JSON-able."""
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
    """Knobs that the pools allow, by name.

    Args:
      pools: pools by name.
      look_ahead: requests beyond a cap that wait inside an engine.
    """
    router = PoolRouter(pools)
    knobs = {
        "batch_cap": _batch_cap(pools, look_ahead),
        "priority_routing": _priority_routing(pools),
        "quantization_tier": router.knob("tier"),
        "speculation_depth": router.knob("depth"),
    }
    return {name: knob for name, knob in knobs.items() if knob is not None}


class PoolRouter:
    """Chooses the default pool by tier and speculation depth."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Args: the pools; the first one is the default without a lease."""
        self._pools = pools
        self._chosen = next(iter(pools.values()))
        self._static = _kind(self._chosen)
        self._wanted = dict(self._static)

    def knob(self, name: str) -> GatewayKnob | None:
        """Knob for ``tier`` or ``depth``; None where all pools have the same value, or the value of
        a pool is unknown."""
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
            # The chosen pool's value may differ from the wanted one: no pool may match in both.
            now=lambda: _kind(self._chosen)[name],
            reason="new requests go to the pool that was started with it; others run to their end",
            allowed=tuple(map(float, given)),
        )

    def _choose(self) -> None:
        """Makes the first pool with the most matching values the default."""

        def agreement(pool: Pool) -> int:
            return sum(_kind(pool)[name] == value for name, value in self._wanted.items())

        self._chosen = max(self._pools.values(), key=agreement)
        for pool in self._pools.values():
            pool.default = pool is self._chosen


def _kind(pool: Pool) -> dict[str, int | None]:
    """Tier and depth of a pool's replicas; None where they differ or are unknown."""
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
