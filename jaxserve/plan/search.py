"""The search for the cheapest deployment that meets the objectives.

The closed form ranks engines and bounds their replicas from below. More replicas miss less, so the
fewest that suffice are found by bisection on the busiest parts of the traffic, whose misses alone
rule most deployments out, and are then played on the whole traffic. Of each further engine the most
replicas are played that are cheaper than the cheapest deployment so far: where these miss, all
fewer do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from jaxserve.errors import InputError
from jaxserve.plan.attainment import Played
from jaxserve.plan.capacity import (
    BATCH_CAPS,
    TOKEN_BUDGETS,
    Limits,
    WindowWork,
    best_limits,
    decode_share,
    fewest_replicas,
    rates,
    split_limits,
)
from jaxserve.plan.inputs import PlanInputs
from jaxserve.plan.options import LARGEST_CAP, EngineOption
from jaxserve.plan.play import PlannedDeployment, Play, Player

Progress = Callable[[str, int, int], None]
_OPTIMISM = 1.25
"""Factor on the closed form's rate, so that its errors rule out no deployment."""
_HOPELESS = 3.0
"""Times the allowed misses beyond which no other limits of the engine are tried at a price."""


@dataclass(frozen=True)
class Tried:
    """A deployment and what its run showed."""

    deployment: PlannedDeployment
    """what served."""
    result: Played
    """result of the run."""
    whole: bool
    """whether the whole traffic was played; the busiest parts otherwise."""

    def meets(self, attainment: float) -> bool:
        """Whether the share of the requests suffices, as far as the run tells."""
        return self.result.attainment >= attainment


@dataclass(frozen=True)
class Family:
    """An engine with the limits to try."""

    option: EngineOption
    """the engine."""
    limits: tuple[Limits, ...]
    """the most promising first, at least one with a rate above 0."""
    preference: int
    """place in the order of preference, 0 for the most precise formats, without drafts before with
    them, replicas that do both before a split."""

    @property
    def requests_per_s(self) -> float:
        """Rate of the most promising limits, in closed form."""
        return self.limits[0].requests_per_s

    @property
    def split(self) -> bool:
        """Whether replicas only prefill or only decode."""
        return self.limits[0].prefill_share > 0

    def replicas(self, max_gpus: int) -> tuple[int, int]:
        """Fewest and most replicas: a split has two at least, all of them joined by GPU links."""
        size, joined = self.option.tensor_parallel, self.option.machine[0].link_gpus
        return (2, int(min(max_gpus, joined)) // size) if self.split else (1, max_gpus // size)

    def deployments(self, replicas: int) -> list[PlannedDeployment]:
        """With each of the limits."""
        return [
            PlannedDeployment(
                self.option,
                replicas,
                each.batch_cap,
                each.token_budget,
                each.prefill_replicas(replicas),
            )
            for each in self.limits
        ]


@dataclass(frozen=True)
class FoundPlans:
    """Result of the search."""

    best: Tried
    """cheapest deployment that meets the objectives."""
    tried: tuple[Tried, ...]
    """all deployments that were played, in the order of their first run."""
    families: tuple[Family, ...]
    """engines that were considered, with a rate above 0."""


def families_of(options: Iterable[EngineOption], inputs: PlanInputs) -> list[Family]:
    """Engines with the limits to try; those of no rate inside the objectives have the limits that
    come nearest."""
    kinds = itertools.product(inputs.formats, inputs.kv_formats, (None, inputs.draft))
    preference = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    found = []
    for option in options:
        limits = best_limits(option, inputs)
        place = 2 * preference[option.weight_format, option.kv_format, option.draft]
        if limits:
            found.append(Family(option, tuple(limits), place))
        if inputs.split and not option.attention_data_parallel:
            split = split_limits(option, inputs)
            if split is not None:
                found.append(Family(option, (split,), place + 1))
    return found


def search(
    inputs: PlanInputs,
    options: Sequence[EngineOption],
    player: Player,
    progress: Progress | None = None,
) -> FoundPlans:
    """The cheapest deployment.

    Raises:
      InputError: no deployment meets the objectives; the message has the nearest one and what
        binds it.
    """
    families = families_of(options, inputs)
    able = [family for family in families if family.requests_per_s > 0]
    if not able:
        raise _nothing(inputs, families, {}, player)
    return _Search(inputs, able, player, progress).run()


@dataclass
class _Bracket:
    """Replicas of an engine among which the fewest that suffice are searched."""

    family: Family
    """the engine."""
    bound: int
    """fewest that the closed form does not rule out."""
    fewest: int
    """fewest that may suffice."""
    passing: int | None = None
    """fewest that are known to suffice on the busiest parts of the traffic."""

    def probes(self, most: int, count: int) -> list[int]:
        """The replicas to play next, evenly between those that may suffice and those that do, or
        up to ``most``, which are affordable; ``count`` of them at most."""
        if self.passing is not None and self.passing <= most:
            return places_between(self.fewest, self.passing, count)
        return sorted({*places_between(self.fewest, most, count - 1), most})


def places_between(low: int, high: int, count: int) -> list[int]:
    """Up to ``count`` whole numbers from ``low`` on and below ``high``, as far from each other as
    from the ends; ``low`` where both are the same."""
    return sorted({low + (high - low) * (k + 1) // (count + 1) for k in range(count)})


class _Search:
    """A search under way."""

    def __init__(
        self,
        inputs: PlanInputs,
        families: list[Family],
        player: Player,
        progress: Progress | None,
    ) -> None:
        self.inputs, self.families, self.player = inputs, families, player
        self.progress = progress
        self.tried: dict[PlannedDeployment, Tried] = {}
        self._misses = 1.0 - inputs.objective.attainment
        self._best: tuple[Tried, Family] | None = None

    def run(self) -> FoundPlans:
        """Searches among all engines, those first that the busiest minute makes the cheapest."""
        work = WindowWork.of(self.inputs.trace)
        brackets = [self._bracket(family, work) for family in self.families]
        peak = float(rates(self.inputs.trace).max())

        def expected_usd(bracket: _Bracket) -> float:
            family = bracket.family
            needed = math.ceil(peak / family.requests_per_s)
            return max(needed, bracket.fewest) * family.option.usd_per_hour

        brackets.sort(key=expected_usd)
        while left := [each for each in brackets if each.fewest <= self._affordable(each.family)]:
            if self.progress is not None:
                self.progress("search", len(brackets) - len(left), len(brackets))
            lanes = self.player.lanes
            chosen = left[: 1 if self._best is None else lanes]
            probes = [
                each.probes(self._affordable(each.family), max(lanes // len(chosen), 1))
                for each in chosen
            ]
            firsts = [
                each.family.deployments(count)[0]
                for each, counts in zip(chosen, probes, strict=True)
                for count in counts
            ]
            self._play(firsts, slices=True)
            for bracket, counts in zip(chosen, probes, strict=True):
                self._narrow(bracket, counts)
        if self._best is None:
            raise _nothing(self.inputs, self.families, self.tried, self.player)
        self._play_cheaper(brackets)
        return FoundPlans(self._best[0], tuple(self.tried.values()), tuple(self.families))

    def _bracket(self, family: Family, work: WindowWork) -> _Bracket:
        """All replicas that the closed form does not rule out."""
        fewest, most = family.replicas(self.inputs.max_gpus)
        rate = _OPTIMISM * family.requests_per_s
        bound = fewest_replicas(work, self.inputs.objective, rate, LARGEST_CAP, most)
        bound = max(fewest, bound)
        return _Bracket(family, bound, bound)

    def _affordable(self, family: Family) -> int:
        """Most replicas that are allowed, and better than the best deployment so far."""
        most = family.replicas(self.inputs.max_gpus)[1]
        if self._best is None:
            return most
        best, of = self._best
        limit = _rank(of, best.deployment.replicas)
        return next((count for count in range(most, 0, -1) if _rank(family, count) < limit), 0)

    def _narrow(self, bracket: _Bracket, counts: Sequence[int]) -> None:
        """Narrows a bracket by replicas whose first limits were played, the fewest first; plays
        their other limits, and the whole traffic where they are the fewest that may suffice."""
        for replicas in counts:
            passing = self._passing(bracket.family, replicas)
            if passing and replicas > bracket.fewest:
                bracket.passing = replicas
                return
            if passing:
                best = self._first_on_all(passing)
                if best is not None:
                    self._best = best, bracket.family
                # The next more replicas pass on the busiest parts as well.
                bracket.fewest, bracket.passing = replicas + 1, replicas + 1
                return
            bracket.fewest = replicas + 1

    def _passing(self, family: Family, replicas: int) -> list[PlannedDeployment]:
        """Deployments of these replicas that meet the objectives on the busiest parts."""
        target = self.inputs.objective.attainment
        first = family.deployments(replicas)[0]
        variants = [first]
        found = self.tried[first]
        if not found.meets(target):
            hopeless = found.result.expected_misses > _HOPELESS * max(self._misses, 1e-3)
            if hopeless and not family.split:  # one replica too few of a role misses nearly all
                return []
            variants += _other_limits(first, found.result)
            self._play(variants[1:], slices=True)
        passing = [each for each in variants if self.tried[each].meets(target)]
        return sorted(passing, key=lambda each: -self.tried[each].result.attainment)

    def _first_on_all(self, passing: Iterable[PlannedDeployment]) -> Tried | None:
        """The first of them that meets the objectives on the whole traffic."""
        for deployment in passing:
            if self.player.lanes > 1:
                # The plan needs the slow end as well, and a process is free for it.
                slowdown = deployment.option.doubt.slower
                self.player.play([Play(deployment), Play(deployment, slowdown=slowdown)])
            self._play([deployment], slices=False)
            if self.tried[deployment].meets(self.inputs.objective.attainment):
                return self.tried[deployment]
        return None

    def _play_cheaper(self, brackets: Sequence[_Bracket]) -> None:
        """Plays of each engine the most replicas that are affordable, where the closed form does
        not rule them out: an engine that missed with more replicas was not played with these."""
        counts = [(each, self._affordable(each.family)) for each in brackets]
        cheaper = [
            each.family.deployments(count)[0] for each, count in counts if count >= each.bound
        ]
        self._play([each for each in cheaper if each not in self.tried], slices=True)

    def _play(self, deployments: Sequence[PlannedDeployment], slices: bool) -> None:
        found = self.player.play([Play(each, slices) for each in deployments])
        for deployment, result in zip(deployments, found, strict=True):
            if slices and deployment in self.tried and self.tried[deployment].whole:
                continue
            self.tried[deployment] = Tried(deployment, result, not slices)


def _rank(family: Family, replicas: int) -> tuple[float, int, float]:
    """The cheapest deployment is the best, then the preferred one, then the one of most
    requests."""
    price = round(replicas * family.option.usd_per_hour, 6)
    return price, family.preference, -family.requests_per_s * replicas


def _other_limits(deployment: PlannedDeployment, result: Played) -> list[PlannedDeployment]:
    """The same replicas with limits that favour what was missed: TPOT wants smaller iterations,
    TTFT larger ones; of a split, one replica more that decodes or prefills."""
    budget, cap = deployment.token_budget, deployment.batch_cap
    if deployment.prefill:
        prefill = deployment.prefill + (1 if result.missed_ttft > result.missed_tpot else -1)
        return [replace(deployment, prefill=prefill)] if 0 < prefill < deployment.replicas else []
    if result.missed_tpot > result.missed_ttft:
        running = max(int(result.in_flight), 1)
        within = [each for each in BATCH_CAPS if each <= running and each < cap]
        wanted = [(cap, budget // 2), (cap, budget // 4), *((each, budget) for each in within[-2:])]
    else:
        wanted = [(cap, 2 * budget), (cap, 4 * budget)]
        if result.peak >= cap:
            wanted.append((min(2 * cap, BATCH_CAPS[-1]), 2 * budget))
    within_range = [
        replace(deployment, batch_cap=caps, token_budget=tokens)
        for caps, tokens in dict.fromkeys(wanted)
        if TOKEN_BUDGETS[0] // 2 <= tokens <= TOKEN_BUDGETS[-1]
    ]
    return [each for each in within_range if each.kv_tokens]


def _nothing(
    inputs: PlanInputs,
    families: Sequence[Family],
    tried: dict[PlannedDeployment, Tried],
    player: Player,
) -> InputError:
    """The error of objectives that no deployment meets."""
    if not tried:
        ranges = [(family, *family.replicas(inputs.max_gpus)) for family in families]
        largest = [family.deployments(most)[0] for family, fewest, most in ranges if most >= fewest]
        fastest = sorted(largest, key=lambda each: each.option.cost.prefill_alone_s(1024).item())
        for deployment in fastest[:4]:
            (result,) = player.play([Play(deployment, slices=True)])
            tried[deployment] = Tried(deployment, result, False)
    nearest = max(tried.values(), key=lambda each: each.result.attainment)
    result, wanted = nearest.result, inputs.objective
    return InputError(
        f"no deployment of at most {inputs.max_gpus} GPUs meets TTFT {wanted.ttft_s:g} s and TPOT "
        f"{wanted.tpot_s:g} s for {wanted.attainment:.1%} of the requests; the nearest is "
        f"{nearest.deployment.name} with {result.attainment:.1%}, bound by "
        f"{binding(nearest, inputs)}; its TTFT is {result.ttft_p50_s:.3g} s (p50) to "
        f"{result.ttft_p99_s:.3g} s (p99), its TPOT {result.tpot_p50_s:.3g} s to "
        f"{result.tpot_p99_s:.3g} s"
    )


def binding(tried: Tried, inputs: PlanInputs) -> str:
    """The constraint that binds a deployment: KV memory, prefill time, decode bandwidth, batch cap
    or the queue at the peak."""
    result, by = tried.result, tried.deployment
    if result.unserved or result.preempted > 0.01:
        return "KV memory"
    lasting = by.option.cost.prefill_alone_s(
        float(inputs.trace.prompt_tokens.max()), by.option.tier, by.token_budget
    )
    share = decode_share(by.option, inputs, result.in_flight, by.token_budget)
    slow_tokens = result.missed_tpot >= result.missed_ttft
    slowest = "decode bandwidth" if share > 0.5 else "prefill time"
    if by.prefill:
        slowest = "decode bandwidth" if slow_tokens else "prefill time"
    if slow_tokens:
        return slowest
    if result.waited < 0.5 and float(lasting) > 0.5 * inputs.objective.ttft_s:
        return "prefill time"
    mean = len(inputs.trace) / max(inputs.trace.duration_s, 1e-9)
    peaked = float(rates(inputs.trace).max()) > 1.2 * mean
    if peaked and result.crowded > 0.5:
        return "queue at the peak"
    if result.in_flight > 0.8 * by.batch_cap:
        return "batch cap"
    return slowest


def neighbours(best: PlannedDeployment, found: FoundPlans) -> list[tuple[str, PlannedDeployment]]:
    """Deployments that differ from the best in one thing, with a name for the difference."""
    cases: list[tuple[str, PlannedDeployment]] = []
    if best.replicas > (2 if best.prefill else 1):
        cases.append(("one replica less", best.of(best.replicas - 1)))
    if best.prefill:
        cases.append(("no split of prefill and decode", replace(best, prefill=0)))
        for more, label in ((1, "more"), (-1, "less")):
            if 0 < best.prefill + more < best.replicas:
                at = replace(best, prefill=best.prefill + more)
                cases.append((f"one replica {label} that prefills", at))
    for factor, label in ((0.5, "half"), (2, "twice")):
        cap, budget = int(best.batch_cap * factor), int(best.token_budget * factor)
        if 1 <= cap <= 512:
            cases.append((f"{label} the batch cap", replace(best, batch_cap=cap)))
        if 256 <= budget <= 16_384:
            cases.append((f"{label} the token budget", replace(best, token_budget=budget)))
    own = best.option
    for family in found.families:
        other = family.option
        limits = family.limits[0]
        if other.gpu != own.gpu or family.split:
            continue
        same_size = other.tensor_parallel == own.tensor_parallel
        same_layout = other.attention_data_parallel == own.attention_data_parallel
        same_formats = (other.weight_format, other.kv_format) == (own.weight_format, own.kv_format)
        same_draft = other.draft == own.draft
        same_engine = same_layout and same_formats and same_draft
        if same_engine and not same_size and not best.prefill:
            replicas, rest = divmod(best.gpus, other.tensor_parallel)
            if replicas and not rest:
                label = f"TP {other.tensor_parallel} on as many GPUs"
                at = PlannedDeployment(other, replicas, limits.batch_cap, limits.token_budget)
                cases.append((label, at))
        at = replace(best, option=other)
        if not same_size or not at.kv_tokens:
            continue
        if same_draft and not same_formats:
            cases.append((f"{other.weight_format} weights, {other.kv_format} KV", at))
        elif same_layout and same_formats and not same_draft:
            cases.append((f"{other.draft or 'no'} drafts", at))
    if own.draft is not None and "no drafts" not in dict(cases):
        # An engine that cannot meet the objectives without drafts is in no family.
        cases.append(("no drafts", replace(best, option=replace(own, draft=None))))
    return cases
