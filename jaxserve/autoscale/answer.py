"""The answer: rules with their defaults and tuned, on traffic that they were not tuned on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from jaxserve.autoscale.confirm import Confirmed
from jaxserve.autoscale.play import FleetWindows
from jaxserve.autoscale.setup import WINDOW_S, FleetDemand
from jaxserve.autoscale.tuning import SECOND_WINDOWS, TriedSettings
from jaxserve.evaluation.episode_statistics import ratio_interval
from jaxserve.scaling.setting import STATIC, RuleSetting, named_values

_HOUR_S = 3600.0
_LEAST_BLOCKS = 5
_CURVE_POINTS = 8
"""Settings of a rule, at most, that draw its curve of cost and attainment."""


@dataclass(frozen=True)
class RuleResult:
    """A setting on the part of the recording that it was not tuned on."""

    kind: str
    values: tuple[float, ...]
    tuned: bool
    """whether the numbers were found on the training part; else they are the rule's own."""
    attainment: float
    attainment_low: float | None
    attainment_high: float | None
    """bounds of the 95 % interval over half hours; None where there are few."""
    gpu_hours: float
    mean_replicas: float
    cost_usd: float
    changes_per_hour: float
    missed_share: float
    """share of the time in which less than the target share met its objectives."""
    reached: bool = True
    """whether the setting is sure to reach the target where it was tuned."""


@dataclass(frozen=True)
class AutoscaleAnswer:
    """Everything that the command says."""

    target: float
    most: int
    group: int
    """GPUs of a replica."""
    requests_per_s: float
    """what one replica bears."""
    hours_tuned: float
    hours_judged: float
    lower_bound: float
    """mean of ``ceil(rate / what a replica bears)`` over the judged part, replicas."""
    lower_bound_peak: int
    static: RuleResult
    """the cheapest static fleet that reached the target where rules were tuned."""
    rules: tuple[RuleResult, ...]
    """each rule with its defaults, then tuned."""
    winner: RuleResult
    curves: Mapping[str, tuple[tuple[float, float], ...]]
    """GPU hours and attainment of each rule's settings on the judged part."""
    by_start_s: tuple[tuple[float, float, float], ...] = ()
    """start-up time, mean replicas and attainment of the winner's rule tuned for it."""
    confirmed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """the winner on the same windows in the reference simulator and in the fast one."""

    @property
    def saved(self) -> float:
        """Share of the static fleet's GPU hours that the winner saves."""
        return 1.0 - self.winner.gpu_hours / self.static.gpu_hours

    def to_json(self) -> str:
        """The answer as JSON; rules' numbers by name."""
        data = asdict(self)
        for row in (data["static"], data["winner"], *data["rules"]):
            row["values"] = named_values(row["kind"], row["values"])
        return json.dumps(data | {"saved": self.saved}, indent=1)


def judge(
    demand: FleetDemand,
    tried: Mapping[str, TriedSettings],
    play: Callable[[Sequence[RuleSetting]], FleetWindows],
) -> AutoscaleAnswer:
    """Plays defaults, best settings and frontiers of all kinds on the judged part.

    Args:
      demand: deployment and traffic.
      tried: settings on the training part, by kind.
      play: plays lanes on the judged part.
    """
    lanes: list[tuple[RuleSetting, str]] = []
    for kind, found in tried.items():
        best = found.best(demand.target)
        if kind != STATIC:
            lanes.append((RuleSetting.default(kind), "default"))
        lanes.append((found.lanes[best], "best"))
        frontier = found.frontier()
        spread = np.unique(np.linspace(0, len(frontier) - 1, _CURVE_POINTS).round().astype(int))
        shown = range(len(found.lanes)) if kind == STATIC else [frontier[i] for i in spread]
        lanes += [(found.lanes[index], "curve") for index in shown]
    windows = play([lane for lane, _ in lanes])
    group = demand.setup.spec.deployment.tensor_parallel
    rows = [
        _result(lane, windows, index, use == "best", group)
        for index, (lane, use) in enumerate(lanes)
    ]
    for index, (lane, use) in enumerate(lanes):
        found = tried[lane.kind]
        if use == "best":
            reached = bool(found.assured[found.best(demand.target)] >= demand.target)
            rows[index] = replace(rows[index], reached=reached)
    of_use = [(lane, use, row) for (lane, use), row in zip(lanes, rows, strict=True)]
    static = next(row for lane, use, row in of_use if lane.kind == STATIC and use == "best")
    rules = tuple(row for lane, use, row in of_use if lane.kind != STATIC and use != "curve")
    bound = np.concatenate([demand.least_replicas[part] for part in demand.test])
    return AutoscaleAnswer(
        target=demand.target,
        most=demand.most,
        group=group,
        requests_per_s=demand.fleet.requests_per_s,
        hours_tuned=_hours(demand.train(SECOND_WINDOWS)),
        hours_judged=_hours(demand.test),
        lower_bound=float(bound.mean()),
        lower_bound_peak=int(bound.max()),
        static=static,
        rules=rules,
        winner=_winner(tried, [row for row in rules if row.tuned], demand.target, static),
        curves={
            kind: tuple(
                sorted(
                    (row.gpu_hours, row.attainment) for lane, _, row in of_use if lane.kind == kind
                )
            )
            for kind in tried
        },
    )


def _hours(parts: Sequence[slice]) -> float:
    return sum(part.stop - part.start for part in parts) * WINDOW_S / _HOUR_S


def _winner(
    tried: Mapping[str, TriedSettings],
    rows: Sequence[RuleResult],
    target: float,
    static: RuleResult,
) -> RuleResult:
    """The setting that was cheapest where rules were tuned, among those that reached the target
    there; the judged part has no say."""

    def rank(row: RuleResult) -> tuple[bool, float]:
        found = tried[row.kind]
        best = found.best(target)
        cost = float(found.rented_s[best])
        return not row.reached, cost if row.reached else -float(found.assured[best])

    return min((static, *rows), key=rank)


def _result(
    lane: RuleSetting, windows: FleetWindows, index: int, tuned: bool, group: int
) -> RuleResult:
    good, ended = (np.asarray(getattr(windows, name)[index], float) for name in ("good", "ended"))
    inside = ratio_interval(good, ended)
    enough = len(good) >= _LEAST_BLOCKS
    hours = windows.rented_s[index].sum() / _HOUR_S
    seconds = float(windows.seconds[index].sum())
    return RuleResult(
        kind=lane.kind,
        values=lane.values,
        tuned=tuned,
        attainment=inside.mean,
        attainment_low=inside.low if enough else None,
        attainment_high=inside.high if enough else None,
        gpu_hours=float(hours * group),
        mean_replicas=float(hours * _HOUR_S / seconds),
        cost_usd=float(windows.cost_usd[index].sum()),
        changes_per_hour=float(windows.changes[index].sum() / seconds * _HOUR_S),
        missed_share=float(windows.missed_s[index].sum() / seconds),
    )


def by_start_up(
    lanes: Sequence[RuleSetting], windows: FleetWindows
) -> tuple[tuple[float, float, float], ...]:
    """Start-up time, mean replicas and attainment of lanes with start-up times of their own."""
    rows = [_result(lane, windows, index, True, 1) for index, lane in enumerate(lanes)]
    return tuple(
        (lane.start_s or 0.0, row.mean_replicas, row.attainment)
        for lane, row in zip(lanes, rows, strict=True)
    )


def confirmation(confirmed: Confirmed, group: int) -> dict[str, float]:
    """Figures of a lane in the reference simulator."""
    hours = confirmed.rented_s.sum() / _HOUR_S
    return {
        "attainment": confirmed.attainment,
        "gpu_hours": float(hours * group),
        "mean_replicas": float(confirmed.rented_s.sum() / (len(confirmed.ended) * WINDOW_S)),
        "requests": float(confirmed.arrivals.sum()),
        "ended": float(confirmed.ended.sum()),
        "hours": len(confirmed.ended) * WINDOW_S / _HOUR_S,
    }
