"""Rules tuned on a part of the traffic, and what they do on the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jaxserve.autoscale.play import FleetPlayer, FleetWindows
from jaxserve.autoscale.setup import FleetDemand, attainment
from jaxserve.scaling.setting import STATIC, RuleSetting, near_settings, spread_settings

KEPT_LANES = 4
"""Settings of a rule that are played on after the first round."""
FIRST_WINDOWS, SECOND_WINDOWS = 5_760, 11_520
"""Windows of the training part on which the two rounds are played, at most: a day, two days."""
_ONE_SIDED = 1.645
_LEAST_BLOCKS = 3


@dataclass(frozen=True)
class TriedSettings:
    """Settings of one kind that were played on the training part."""

    lanes: list[RuleSetting]
    attainment: NDArray[np.float64]
    """float64[n], share of the requests inside the objectives."""
    assured: NDArray[np.float64]
    """float64[n], its lower bound (95 %, one-sided) over blocks of half an hour; the share itself
    for fewer than three blocks."""
    rented_s: NDArray[np.float64]
    """float64[n], seconds of replicas that were paid for."""

    def part(self, places: slice) -> TriedSettings:
        """Some of the settings."""
        return TriedSettings(
            self.lanes[places],
            self.attainment[places],
            self.assured[places],
            self.rented_s[places],
        )

    def ranked(self, target: float) -> list[int]:
        """Settings that are sure to reach the target, the cheapest first; then the others by their
        assured attainment."""
        reaches = self.assured >= target
        rank = np.where(reaches, self.rented_s, -self.assured)
        return [int(index) for index in np.lexsort((rank, ~reaches))]

    def best(self, target: float) -> int:
        """The cheapest setting that reaches the target; else the one with most inside."""
        return self.ranked(target)[0]

    def frontier(self) -> list[int]:
        """Settings that no other beats in both cost and attainment, the cheapest first."""
        order = np.lexsort((-self.attainment, self.rented_s))
        kept: list[int] = []
        for index in order:
            if not kept or self.attainment[index] > self.attainment[kept[-1]] + 1e-6:
                kept.append(int(index))
        return kept

    def kept(self, target: float) -> list[int]:
        """The best setting and the next ones of the frontier with more inside: what just reaches
        the target on a day may miss it on two."""
        best = self.best(target)
        safer = [i for i in self.frontier() if self.attainment[i] > self.attainment[best] + 1e-6]
        return [best, *safer[: KEPT_LANES - 1]]


def tune(
    demand: FleetDemand,
    player: FleetPlayer,
    kinds: Sequence[str],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, TriedSettings]:
    """Plays settings of every kind on the training part, in two rounds.

    The first round plays defaults and settings all over a rule's bounds on a day of windows; the
    second one plays defaults, what the first has kept and settings around it on two days.

    Args:
      kinds: names of rules; static fleets of every size are always played.
      progress: told of windows played, summed over settings.

    Returns:
      the settings of the second round.
    """
    first = {kind: spread_settings(kind, demand.seed) for kind in kinds}
    tried = _played(player, first, demand.train(FIRST_WINDOWS), progress)
    second = {STATIC: static_lanes(demand)}
    for kind in kinds:
        kept = [tried[kind].lanes[index] for index in tried[kind].kept(demand.target)]
        near = [near_settings(kind, lane, demand.seed) for lane in kept[:2]]
        lanes = [RuleSetting.default(kind), *kept, *(lane for each in near for lane in each)]
        second[kind] = list(dict.fromkeys(lanes))
    return _played(player, second, demand.train(SECOND_WINDOWS), progress)


def static_lanes(demand: FleetDemand) -> list[RuleSetting]:
    """Fleets of every size that are never scaled."""
    return [RuleSetting(STATIC, (float(count),)) for count in range(demand.least, demand.most + 1)]


def tune_for_starts(
    demand: FleetDemand,
    player: FleetPlayer,
    found: TriedSettings,
    starts_s: Sequence[float],
    progress: Callable[[int], None] = lambda done: None,
) -> list[RuleSetting]:
    """The best of a rule's settings for each start-up time, on the training part."""
    lanes = [replace(lane, start_s=start_s) for start_s in starts_s for lane in found.lanes]
    tried = _tried(lanes, player.play(lanes, demand.train(FIRST_WINDOWS), progress))
    size, best = len(found.lanes), []
    for place in range(0, len(lanes), size):
        of_start = tried.part(slice(place, place + size))
        best.append(of_start.lanes[of_start.best(demand.target)])
    return best


def _played(
    player: FleetPlayer,
    lanes: dict[str, list[RuleSetting]],
    parts: Sequence[slice],
    progress: Callable[[int], None],
) -> dict[str, TriedSettings]:
    every = [lane for each in lanes.values() for lane in each]
    tried = _tried(every, player.play(every, parts, progress))
    ends = np.cumsum([len(each) for each in lanes.values()])
    return {
        kind: tried.part(slice(end - len(each), end))
        for (kind, each), end in zip(lanes.items(), ends, strict=True)
    }


def _tried(lanes: list[RuleSetting], windows: FleetWindows) -> TriedSettings:
    good, ended = (np.asarray(each, float) for each in (windows.good, windows.ended))
    share, blocks = attainment(windows), good.shape[1]
    error = np.zeros(len(lanes))
    if blocks >= _LEAST_BLOCKS:
        # Standard error of a ratio of sums (Cochran, Sampling Techniques, 6.4).
        residuals = good - share[:, None] * ended
        total = np.maximum(ended.sum(axis=1), 1e-9)
        error = np.sqrt(blocks / (blocks - 1) * (residuals**2).sum(axis=1)) / total
    return TriedSettings(
        lanes, share, share - _ONE_SIDED * error, np.asarray(windows.rented_s, float).sum(axis=1)
    )
