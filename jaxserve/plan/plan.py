"""The plan: the cheapest deployment, how sure it is, what it bears, and what binds its rivals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.plan.attainment import Played, interval
from jaxserve.plan.capacity import least_replicas, rates
from jaxserve.plan.inputs import PlanInputs
from jaxserve.plan.options import EngineOption, Excluded
from jaxserve.plan.play import PlannedDeployment, Play, Player
from jaxserve.plan.search import (
    FoundPlans,
    Progress,
    Tried,
    binding,
    neighbours,
    places_between,
    search,
)

SCALES = (1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Factors on the traffic that are tried."""
_RIVALS = 6


@dataclass(frozen=True)
class Neighbour:
    """A deployment beside the named one, and what rules it out or in."""

    difference: str
    """difference from the named deployment."""
    tried: Tried
    """result of its run."""
    meets: bool
    """whether it meets the objectives, as far as its run tells."""
    binds: str | None
    """constraint that binds it; None where it meets them."""


@dataclass(frozen=True)
class Rival:
    """A cheaper deployment that misses the objectives, and meets them at the fast end of its
    doubt."""

    tried: Tried
    """result at the expected times."""
    faster: float
    """attainment at the fast end, on the busiest parts of the traffic."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that the search and the runs after it found."""

    inputs: PlanInputs
    """what the plan was made for."""
    best: Tried
    """the cheapest deployment that meets the objectives."""
    slower: Played
    """the same deployment at the slow end of the doubt."""
    faster: Played
    """the same at the fast end."""
    replicas: tuple[int, int | None]
    """replicas of the same engine that suffice at the fast end and at the slow end; None where more
    GPUs than allowed would be needed."""
    bears: tuple[float, bool]
    """largest factor on the traffic at which the objectives are still met, and whether that is the
    largest that was tried."""
    neighbours: tuple[Neighbour, ...]
    """deployments that differ in one thing."""
    rivals: tuple[Rival, ...]
    """cheaper deployments that the doubt does not rule out."""
    tried: tuple[Tried, ...]
    """all deployments that were played."""
    excluded: tuple[Excluded, ...]
    """engines that cannot serve."""
    requests_per_s: float
    """rate of one replica inside the objectives, in closed form."""
    least_gpus: NDArray[np.int64]
    """int64[W], GPUs in each window of a fleet that follows the traffic without delay."""
    cheapest_of_kind: tuple[tuple[str, str, float], ...]
    """other kinds of GPU, each with the deployment that closed form or runs name as its cheapest,
    and its price per hour."""
    sample: str | None = None
    """sentence on the sample of the traffic that was played; None where all of it was."""
    check: dict[str, Any] | None = None
    """comparison with a started server, whose times the plan was then made with; None without."""

    @property
    def attainment(self) -> tuple[float, float]:
        """95 % interval of the attainment, from the doubt of the times and the chance of
        arrivals."""
        return interval([self.slower, self.best.result, self.faster])

    @property
    def gpus(self) -> tuple[int, int | None]:
        """95 % interval of the GPUs that suffice; None where they are more than allowed."""
        size = self.best.deployment.option.tensor_parallel
        fewest, most = self.replicas
        return fewest * size, None if most is None else most * size

    @property
    def sure(self) -> bool:
        """Whether the deployment meets the objectives at the slow end of the doubt, and nothing
        cheaper does at the fast end."""
        target = self.inputs.objective.attainment
        fewest, _ = self.replicas
        return (
            self.slower.attainment >= target
            and not self.rivals
            and fewest == self.best.deployment.replicas
        )

    @property
    def uncertain_options(self) -> list[EngineOption]:
        """Engines whose load test would settle the choice, the named one first."""
        options = [] if self.sure else [self.best.deployment.option]
        options += [rival.tried.deployment.option for rival in self.rivals]
        # A load test tells times without drafts.
        options = [replace(option, draft=None) for option in options]
        return list(
            {option.name: option for option in options if not option.doubt.measured}.values()
        )

    @property
    def front(self) -> list[Tried]:
        """Pareto front of price and attainment among all that were played, the cheapest first."""
        best: list[Tried] = []
        order = sorted(
            self.tried, key=lambda each: (each.deployment.usd_per_hour, -each.result.attainment)
        )
        for each in order:
            if not best or each.result.attainment > best[-1].result.attainment:
                best.append(each)
        return best


def make_plan(
    inputs: PlanInputs,
    options: list[EngineOption],
    excluded: list[Excluded],
    player: Player,
    progress: Progress | None = None,
) -> Plan:
    """Searches, and plays what the answer needs beside the search.

    Raises:
      InputError: no deployment meets the objectives.
    """
    found = search(inputs, options, player, progress)
    best, target = found.best.deployment, inputs.objective.attainment
    beside, cheap = neighbours(best, found), _near_misses(found, target)
    runs = _Runs(inputs, player, best, progress)
    runs.play_busiest(
        [
            *(Play(deployment, slices=True) for _, deployment in beside),
            *(
                Play(each.deployment, slices=True, slowdown=each.deployment.option.doubt.faster)
                for each in cheap
            ),
        ]
    )
    runs.play_whole()
    family = next(
        each
        for each in found.families
        if each.option is best.option and each.split == (best.prefill > 0)
    )
    tried = [Tried(at, runs.result(Play(at, slices=True)), False) for _, at in beside]
    seen = {each.deployment for each in found.tried}
    return Plan(
        inputs=inputs,
        best=found.best,
        slower=runs.result(Play(best, slowdown=best.option.doubt.slower)),
        faster=runs.result(Play(best, slowdown=best.option.doubt.faster)),
        replicas=(runs.fewest(), runs.enough()),
        bears=runs.bears(),
        neighbours=tuple(
            Neighbour(
                difference,
                each,
                each.meets(target),
                None if each.meets(target) else binding(each, inputs),
            )
            for (difference, _), each in zip(beside, tried, strict=True)
        ),
        rivals=_rivals(cheap, runs, target),
        tried=(*found.tried, *(each for each in tried if each.deployment not in seen)),
        excluded=tuple(dict.fromkeys(excluded)),
        requests_per_s=family.requests_per_s,
        least_gpus=least_replicas(inputs.trace, family.requests_per_s)
        * best.option.tensor_parallel,
        cheapest_of_kind=_kinds(found, inputs),
        sample=player.sample,
    )


class _Runs:
    """Runs of the named deployment with other replicas, times and traffic.

    The busiest parts of all of them are played at once, and then the whole traffic of those that
    the answers rest on.
    """

    def __init__(
        self, inputs: PlanInputs, player: Player, best: PlannedDeployment, progress: Progress | None
    ) -> None:
        self._inputs, self._player, self._best, self._progress = inputs, player, best, progress
        self._target = inputs.objective.attainment
        doubt = best.option.doubt
        most = inputs.max_gpus // best.option.tensor_parallel
        more = range(best.replicas + 1, min(2 * best.replicas + 2, most) + 1)
        self._fewer = [
            Play(best.of(count), slowdown=doubt.faster)
            for count in range(
                best.replicas - 1, max(best.replicas // 2 - 1, 1 if best.prefill else 0), -1
            )
        ]
        self._more = [Play(best.of(count), slowdown=doubt.slower) for count in more]
        self._scaled = [Play(best, traffic_scale=scale) for scale in SCALES]
        self._borne: list[Play] = []  # those of them that pass on the busiest parts
        self._ends = [Play(best, slowdown=each) for each in (doubt.slower, doubt.faster)]

    def play_busiest(self, others: list[Play]) -> None:
        """Plays the busiest parts of ``others``, and of more traffic until it is not borne."""
        self._all(others, "busiest parts")
        lanes = self._player.lanes
        for begin in range(0, len(self._scaled), lanes):
            tried = self._scaled[begin : begin + lanes]
            self._all([replace(each, slices=True) for each in tried], "growth")
            self._borne += itertools.takewhile(self._busiest_pass, tried)
            if len(self._borne) < begin + len(tried):
                break

    def play_whole(self) -> None:
        """Plays the whole traffic where the busiest parts leave the answer open."""
        more = [] if self._slow_end_suffices() else self._sufficing_more()[:1]
        plays = [*self._ends, *self._sufficing_fewer()[-1:], *more]
        # The largest traffic that passes there may miss on all of it, so two are played.
        self._all([*plays, *self._borne[-2:]], "doubt and growth")

    def result(self, play: Play) -> Played:
        """Result of a run."""
        (found,) = self._player.play([play])
        return found

    def fewest(self) -> int:
        """Fewest replicas that meet the objectives at the fast end of the doubt."""
        passing = filter(self._passes, reversed(self._sufficing_fewer()))
        return next((play.deployment.replicas for play in passing), self._best.replicas)

    def enough(self) -> int | None:
        """Replicas that meet the objectives at the slow end; None where more GPUs than allowed
        would be needed."""
        if self._slow_end_suffices():
            return self._best.replicas
        passing = filter(self._passes, self._sufficing_more())
        return next((play.deployment.replicas for play in passing), None)

    def bears(self) -> tuple[float, bool]:
        """The largest factor on the traffic, and whether it is the largest that was tried."""
        for play in reversed(self._borne):
            if self._passes(play):
                return play.traffic_scale, play.traffic_scale == SCALES[-1]
        return 1.0, False

    def _slow_end_suffices(self) -> bool:
        return self.result(self._ends[0]).attainment >= self._target

    def _sufficing_fewer(self) -> list[Play]:
        """Runs with fewer replicas that pass on the busiest parts, the most replicas first."""
        return self._fewer[: self._first(self._fewer, passing=False)]

    def _sufficing_more(self) -> list[Play]:
        """Runs with more replicas that pass there, the fewest first."""
        return self._more[self._first(self._more, passing=True) :]

    def _first(self, plays: Sequence[Play], passing: bool) -> int:
        """Place of the first run that passes on the busiest parts, or misses there, where all
        before it do the other: by bisection, as many at once as there are lanes."""
        low, high = 0, len(plays)
        while low < high:
            places = places_between(low, high, self._player.lanes)
            self._all([replace(plays[place], slices=True) for place in places], "replicas")
            for place in places:
                if self._busiest_pass(plays[place]) == passing:
                    high = place
                    break
                low = place + 1
        return low

    def _passes(self, play: Play) -> bool:
        return self._busiest_pass(play) and self.result(play).attainment >= self._target

    def _busiest_pass(self, play: Play) -> bool:
        return self.result(replace(play, slices=True)).attainment >= self._target

    def _all(self, plays: list[Play], stage: str) -> None:
        count = itertools.count(1)
        progress = self._progress
        self._player.play(
            plays,
            None if progress is None else lambda: progress(stage, next(count), len(plays)),
        )


def _rivals(cheap: list[Tried], runs: _Runs, target: float) -> tuple[Rival, ...]:
    """The near misses that meet the objectives at the fast end of their doubt."""
    found = []
    for each in cheap:
        at = each.deployment
        result = runs.result(Play(at, slices=True, slowdown=at.option.doubt.faster))
        if result.attainment >= target:
            found.append(Rival(each, result.attainment))
    return tuple(found)


def _near_misses(found: FoundPlans, target: float) -> list[Tried]:
    """Cheaper deployments that missed, the best of each engine, those nearest to the target."""
    nearest: dict[tuple[str, bool], Tried] = {}
    best = found.best.deployment
    for each in found.tried:
        by = each.deployment
        kind = (by.option.name, by.prefill > 0)
        dearer = by.usd_per_hour > best.usd_per_hour + 1e-6
        if dearer or each.meets(target) or kind == (best.option.name, best.prefill > 0):
            continue
        if kind not in nearest or each.result.attainment > nearest[kind].result.attainment:
            nearest[kind] = each
    order = sorted(nearest.values(), key=lambda each: -each.result.attainment)
    return order[:_RIVALS]


def _kinds(found: FoundPlans, inputs: PlanInputs) -> tuple[tuple[str, str, float], ...]:
    """The cheapest of each other kind of GPU, by the closed form at the busiest minute."""
    peak = float(rates(inputs.trace).max())
    cheapest: dict[str, tuple[str, str, float]] = {}
    own = found.best.deployment.option.gpu
    for family in found.families:
        option = family.option
        replicas = int(np.ceil(peak / family.requests_per_s))
        price = replicas * option.usd_per_hour
        if family.split or option.gpu == own or replicas * option.tensor_parallel > inputs.max_gpus:
            continue
        if option.gpu not in cheapest or price < cheapest[option.gpu][2]:
            cheapest[option.gpu] = (option.gpu, f"{replicas} x {option.name}", price)
    return tuple(sorted(cheapest.values(), key=lambda each: each[2]))
