"""From a deployment and recorded demand to the rule that scales it best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxserve.agents.progress import Progress, stage_progress
from jaxserve.autoscale.answer import AutoscaleAnswer, by_start_up, confirmation, judge
from jaxserve.autoscale.confirm import play_reference
from jaxserve.autoscale.setup import WINDOW_S, FleetDemand
from jaxserve.autoscale.tuning import (
    FIRST_WINDOWS,
    KEPT_LANES,
    SECOND_WINDOWS,
    tune,
    tune_for_starts,
)
from jaxserve.errors import InputError
from jaxserve.scaling.rules import RULES
from jaxserve.scaling.setting import NEAR_SETTINGS, SPREAD_SETTINGS, STATIC, RuleSetting
from jaxserve.sim.machine.cost_model import IterationTimer

STARTS_S = (0.0, 30.0, 60.0, 120.0, 300.0)
"""Start-up times of the curve of savings, s."""
MOST_CONFIRMED = 60_000
"""Requests that the reference simulator plays of the judged part."""


def parse_rules(names: str) -> tuple[str, ...]:
    """Names of rules, separated by commas, or ``all``.

    Raises:
      InputError: an unknown name, or one given twice.
    """
    if names == "all":
        return tuple(RULES)
    found = tuple(name.strip() for name in names.split(","))
    for name in found:
        if name not in RULES:
            raise InputError(f"--rules has {name!r}; the rules are {', '.join(RULES)}, or all")
    if len(set(found)) != len(found):
        raise InputError(f"--rules is {names}; name each rule once")
    return found


def autoscale(
    demand: FleetDemand,
    kinds: Sequence[str],
    timer: IterationTimer,
    progress: Progress | None = None,
) -> AutoscaleAnswer:
    """Tunes rules on the first part of the recording and judges them on the rest.

    Args:
      demand: deployment and traffic.
      kinds: names of rules.
      timer: iteration times of the reference simulator.
      progress: told what is played.
    """
    report = _counter(progress, "what a replica bears", 1)
    player = demand.player()
    report(1)
    first, second = (
        sum(part.stop - part.start for part in demand.train(most))
        for most in (FIRST_WINDOWS, SECOND_WINDOWS)
    )
    settings = (len(kinds) * (1 + SPREAD_SETTINGS), len(kinds) * (KEPT_LANES + 2 * NEAR_SETTINGS))
    report = _counter(progress, "tuning", settings[0] * first + settings[1] * second)
    tried = tune(demand, player, kinds, report)
    judged = sum(part.stop - part.start for part in demand.test)
    report = _counter(progress, "judging", 8 * len(kinds) * judged)
    answer = judge(demand, tried, lambda lanes: player.play(lanes, demand.test, report))
    if answer.winner.kind != STATIC:
        found = tried[answer.winner.kind]
        total = len(STARTS_S) * (len(found.lanes) * first + judged)
        report = _counter(progress, "start-up times", total)
        lanes = tune_for_starts(demand, player, found, STARTS_S, report)
        curve = by_start_up(lanes, player.play(lanes, demand.test, report))
        answer = dataclasses.replace(answer, by_start_s=curve)
    return dataclasses.replace(answer, confirmed=_confirm(demand, answer, timer, progress))


def _counter(progress: Progress | None, stage: str, total: int) -> Callable[[int], None]:
    """A function that is told of further steps of a stage."""
    report, done = stage_progress(stage, progress), 0

    def add(steps: int) -> None:
        nonlocal done
        done = min(done + steps, total)
        if report is not None:
            report(done, total)

    return add


def _confirm(
    demand: FleetDemand,
    answer: AutoscaleAnswer,
    timer: IterationTimer,
    progress: Progress | None,
) -> dict[str, dict[str, float]]:
    """The winner in the reference simulator, and in the fast one on the same windows."""
    part = demand.test[0]
    requests = (demand.rates_rps[part] * WINDOW_S).cumsum()
    count = int((requests <= MOST_CONFIRMED).sum())
    windows = slice(part.start, part.start + max(count, 1))
    lane = RuleSetting(answer.winner.kind, answer.winner.values)
    group = demand.setup.spec.deployment.tensor_parallel
    report = _counter(progress, "reference simulator", windows.stop - windows.start)
    reference = play_reference(demand, lane, timer, windows, report)
    fast = demand.player().play([lane], [windows])
    hours = float(fast.rented_s[0].sum()) / 3600.0
    return {
        "reference": confirmation(reference, group),
        "fast": {
            "attainment": float(fast.good[0].sum() / max(fast.ended[0].sum(), 1e-9)),
            "gpu_hours": hours * group,
            "mean_replicas": hours * 3600.0 / ((windows.stop - windows.start) * WINDOW_S),
        },
    }
