"""Fits to load tests as the reference simulator plays them."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

from jaxserve.plan.as_played import fit_as_played, played
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import EngineOption, engine_options
from jaxserve.sim.fit.load_test import fit_sweep
from jaxserve.sim.fit.sweep import Sweep

BUDGET = 2048


@pytest.fixture(scope="module")
def option() -> EngineOption:
    """An H100 by its published constants."""
    inputs = PlanInputs(
        "llama-3.1-8b", *steady_traffic(1, 500, 50), PlanObjective(1, 0.05),
        {"h100-sxm-80gb": 3.5}, max_gpus=1, formats=("bf16",), kv_formats=("bf16",),
    )  # fmt: skip
    return engine_options(inputs)[0][0]


@pytest.mark.slow
def test_the_fit_gives_what_is_played(option: EngineOption) -> None:
    """The rows are played with constants that the fit does not know. The fitted engine, played,
    gives the rows again, and other rows too; a fit by the closed form alone misses them."""
    truth = dataclasses.replace(
        option.cost,
        weight_read_s=tuple(1.15 * each for each in option.cost.weight_read_s),
        linear_s_per_token=tuple(1.3 * each for each in option.cost.linear_s_per_token),
    )

    def rows(levels: tuple[int, ...], prompts: tuple[int, ...]) -> Sweep:
        pairs = np.array([(level, prompt) for level in levels for prompt in prompts], float)
        asked = Sweep(
            pairs[:, 0], pairs[:, 1], np.full(len(pairs), 64.0), np.ones(len(pairs)), None
        )
        _, tpot_s = played(asked, truth, option, BUDGET)
        return dataclasses.replace(asked, tpot_s=tpot_s)

    shown, others = rows((1, 8, 32), (256, 1024, 3000)), rows((4, 16), (600, 2000))
    fit = partial(fit_sweep, gpu=option.machine[0], model=option.machine[1], source="rows")

    def off(report, sweep: Sweep) -> float:
        _, tpot_s = played(sweep, report.table.metadata.cost_model, option, BUDGET)
        return float(np.abs(tpot_s / sweep.tpot_s - 1.0).mean())

    report, plain = fit_as_played(shown, option, BUDGET, fit), fit(shown)
    assert off(report, shown) < 0.02
    assert off(report, others) < 0.02
    assert off(report, others) < 0.7 * off(plain, others)
