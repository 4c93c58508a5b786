"""Load-test fits whose constants, played in the reference simulator, give the measured rows.

A fit compares rows with the closed form of a load test, and a plan is played request by request.
The two differ by a few per cent: the closed form has neither the wave of equal requests that begins
a load test, nor iterations that carry several prompts. A fit that ignored the difference would hide
it in the constants. So the fitted engine is played under the same load test, the measured times are
multiplied by closed form / played, and the constants are fitted again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jaxserve.plan.options import LARGEST_CAP, EngineOption
from jaxserve.sim.fit.load_test import FitReport
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import ServedBy, simulate
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop
from jaxserve.sim.traffic.traces import Trace

_ROUNDS = 2
_WAVES, _MOST_WAVES = 4.0, 10.0
"""Requests for each one in flight where a load test does not say how many it sent, and at most."""


def fit_as_played(
    sweep: Sweep, option: EngineOption, token_budget: int, fit: Callable[[Sweep], FitReport]
) -> FitReport:
    """The fit that gives the rows of ``sweep`` when its engine is played.

    Args:
      sweep: measured rows.
      option: the engine, with the times of the prior.
      token_budget: tokens of an iteration.
      fit: fits rows by the closed form.
    """
    report = fit(sweep)
    for _ in range(_ROUNDS):
        cost = report.table.metadata.cost_model
        report = fit(_in_closed_form(sweep, cost, option, token_budget))
    return report


def _in_closed_form(
    sweep: Sweep, cost: CostModel, option: EngineOption, token_budget: int
) -> Sweep:
    """Rows with what the closed form would say where the played engine says what was measured."""
    loop = in_closed_loop(sweep, cost, option, token_budget)
    ttft_s, tpot_s = played(sweep, cost, option, token_budget)
    return replace(
        sweep,
        tpot_s=sweep.tpot_s * loop.tpot_s / tpot_s,
        ttft_s=None if sweep.ttft_s is None else sweep.ttft_s * loop.ttft_p50_s / ttft_s,
    )


def in_closed_loop(
    sweep: Sweep, cost: CostModel, option: EngineOption, token_budget: int
) -> ClosedLoop:
    """The closed form of each row, with the memory of the largest batch cap."""
    return closed_loop(
        cost,
        sweep.concurrency,
        sweep.prompt_tokens,
        sweep.output_tokens,
        tier=option.tier,
        kv_tokens=option.kv_tokens(LARGEST_CAP, token_budget),
        token_budget=token_budget,
        sequence_kv=option.sequence_kv,
    )


def played(
    sweep: Sweep, cost: CostModel, option: EngineOption, token_budget: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median TTFT and mean TPOT of each row in the reference simulator, s, float64[rows]."""
    timer = TabulatedTimer(cost, option.tier)
    ttft_s, tpot_s = np.empty(len(sweep)), np.empty(len(sweep))
    told = np.full(len(sweep), np.nan) if sweep.requests is None else sweep.requests
    waves = np.where(np.isfinite(told), told / sweep.concurrency, _WAVES).clip(1.0, _MOST_WAVES)
    counts = np.maximum(np.round(waves * sweep.concurrency), 8).astype(int)
    for row, (level, prompt, output, count) in enumerate(
        zip(sweep.concurrency, sweep.prompt_tokens, sweep.output_tokens, counts, strict=True)
    ):
        equal = Trace(
            np.zeros(count),
            np.full(count, round(prompt), np.int32),
            np.full(count, max(round(output), 2), np.int32),
        )
        by = ServedBy(
            option.kv_tokens(LARGEST_CAP, token_budget),
            batch_cap=LARGEST_CAP,
            token_budget=token_budget,
            tier=option.tier,
            concurrency=max(round(level), 1),
            sequence_kv=option.sequence_kv,
        )
        log = simulate(equal, timer, by)
        ttft_s[row], tpot_s[row] = np.median(log["ttft_s"]), log["tpot_s"].mean()
    return ttft_s, tpot_s
