"""Rates in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.plan.capacity import (
    best_limits,
    decode_share,
    least_replicas,
    rates,
    usual_in_flight,
)
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import EngineOption, engine_options
from jaxserve.sim.traffic.traces import Trace


def _inputs(tpot_s: float = 0.05, draft: str | None = None) -> PlanInputs:
    prices = {"h100-sxm-80gb": 3.0}
    return PlanInputs(
        "llama-3.1-8b",
        *steady_traffic(5, 1000, 100),
        PlanObjective(1.0, tpot_s),
        prices,
        max_gpus=2,
        draft=draft,
    )


def _option(inputs: PlanInputs) -> EngineOption:
    return engine_options(inputs)[0][0]


def test_a_tighter_objective_bears_less() -> None:
    """The rate falls with the objective on TPOT, and no limits are left out for it."""
    loose, tight = _inputs(0.05), _inputs(0.012)
    rates_of = [best_limits(_option(each), each)[0].requests_per_s for each in (loose, tight)]
    assert rates_of[0] > rates_of[1] > 0
    assert best_limits(_option(loose), _inputs(0.001))[0].requests_per_s == 0


def test_drafts_bear_more_where_tokens_must_be_fast() -> None:
    """And an engine of the same GPU and formats without them is the one that they are compared
    with."""
    inputs = _inputs(0.009, "sharegpt/eagle")
    plain, drafted = engine_options(inputs)[0][:2]
    assert plain.name + ", drafts sharegpt/eagle" == drafted.name
    most = [best_limits(each, inputs)[0].requests_per_s for each in (plain, drafted)]
    assert most[1] > 1.2 * most[0] > 0
    assert usual_in_flight(drafted, inputs) >= 1
    assert 0 < decode_share(drafted, inputs, 8.0, 2048) < 1


def test_rates_count_every_request() -> None:
    """The windows' rates times their lengths are the requests, whatever the last one's length."""
    for seconds in (20.0, 119.0, 130.0, 155.0):
        arrival_s = np.linspace(0, seconds, 300)
        ones = np.ones(300, np.int32)
        found = rates(Trace(arrival_s, ones, ones), 60.0)
        lengths = np.full(len(found), 60.0)
        lengths[-1] = seconds - 60.0 * (len(found) - 1)
        assert float(found @ lengths) == pytest.approx(300)


def test_least_replicas_follow_the_rate() -> None:
    """A minute of twice the rate needs twice the replicas."""
    arrival_s = np.concatenate([np.arange(60), 60 + np.arange(120) / 2])
    ones = np.ones(180, np.int32)
    assert least_replicas(Trace(arrival_s.astype(float), ones, ones), 0.51).tolist() == [2, 4]
