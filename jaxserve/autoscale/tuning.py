"""Rules tuned on a part of the traffic, and what they do on the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from jaxserve.autoscale.play import STATIC, FleetPlayer, Lane
from jaxserve.autoscale.rules import RULES, parameters
from jaxserve.autoscale.setup import FleetDemand, attainment

FIRST_LANES, NEAR_LANES = 31, 16
"""Settings of a rule that are tried over its whole bounds, beside its defaults, and then around
the best of them."""
_NEAR = 0.25
"""Half-width of the second round as a share of the bounds."""
CURVE_POINTS = 8
"""Settings of a rule that draw its curve of cost and attainment."""


@dataclass(frozen=True)
class Tried:
    """Settings of one kind that were played on the training part."""

    lanes: list[Lane]
    attainment: NDArray[np.float64]
    """float64[n], share of the requests inside the objectives."""
    rented_s: NDArray[np.float64]
    """float64[n], seconds of replicas that were paid for."""

    def best(self, target: float) -> int:
        """The cheapest setting that reaches the target; else the one with most inside."""
        reaches = self.attainment >= target
        if not reaches.any():
            return int(np.argmax(self.attainment))
        return int(np.argmin(np.where(reaches, self.rented_s, np.inf)))

    def frontier(self) -> list[int]:
        """Settings that no other beats in both cost and attainment, the cheapest first, at most
        ``CURVE_POINTS`` of them, evenly spread."""
        order = np.lexsort((-self.attainment, self.rented_s))
        kept: list[int] = []
        for index in order:
            if not kept or self.attainment[index] > self.attainment[kept[-1]] + 1e-6:
                kept.append(int(index))
        if len(kept) <= CURVE_POINTS:
            return kept
        places = np.unique(np.linspace(0, len(kept) - 1, CURVE_POINTS).round().astype(int))
        return [kept[place] for place in places]


def first_lanes(kind: str, seed: int) -> list[Lane]:
    """A rule's defaults and settings spread over its bounds (a Sobol sequence, in logarithms)."""
    found = parameters(RULES[kind]).values()
    draws = qmc.Sobol(len(found), rng=seed).random(FIRST_LANES + 1)[:FIRST_LANES]
    lows, highs = (np.log([getattr(p, end) for p in found]) for end in ("low", "high"))
    return [Lane.default(kind), *(_lane(kind, lows + draw * (highs - lows)) for draw in draws)]


def near_lanes(kind: str, best: Lane, seed: int) -> list[Lane]:
    """Settings around the best one."""
    found = parameters(RULES[kind]).values()
    draws = qmc.Sobol(len(found), rng=seed).random(NEAR_LANES)
    lows, highs = (np.log([getattr(p, end) for p in found]) for end in ("low", "high"))
    center = np.log(best.values)
    points = center + _NEAR * (2.0 * draws - 1.0) * (highs - lows)
    return [_lane(kind, np.clip(point, lows, highs)) for point in points]


def _lane(kind: str, logarithms: NDArray[np.float64]) -> Lane:
    return Lane(kind, tuple(float(f"{value:.3g}") for value in np.exp(logarithms)))


def tune(
    demand: FleetDemand,
    player: FleetPlayer,
    kinds: Sequence[str],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Tried]:
    """Plays settings of every kind on the training part, in two rounds.

    Args:
      kinds: names of rules; static fleets of every size are always played.
      progress: told of windows played, summed over settings.
    """
    static = [Lane(STATIC, (float(count),)) for count in range(demand.least, demand.most + 1)]
    rounds = {STATIC: static} | {kind: first_lanes(kind, demand.seed) for kind in kinds}
    tried = _played(player, rounds, demand.train, progress)
    near = {
        kind: near_lanes(kind, tried[kind].lanes[tried[kind].best(demand.target)], demand.seed)
        for kind in kinds
    }
    for kind, more in _played(player, near, demand.train, progress).items():
        before = tried[kind]
        tried[kind] = Tried(
            before.lanes + more.lanes,
            np.concatenate([before.attainment, more.attainment]),
            np.concatenate([before.rented_s, more.rented_s]),
        )
    return tried


def _played(
    player: FleetPlayer,
    lanes: dict[str, list[Lane]],
    windows: slice,
    progress: Callable[[int], None],
) -> dict[str, Tried]:
    found = player.play([lane for each in lanes.values() for lane in each], windows, progress)
    inside, rented_s = attainment(found), np.asarray(found.rented_s, float).sum(axis=1)
    ends = np.cumsum([len(each) for each in lanes.values()])
    return {
        kind: Tried(each, inside[end - len(each) : end], rented_s[end - len(each) : end])
        for (kind, each), end in zip(lanes.items(), ends, strict=True)
    }
