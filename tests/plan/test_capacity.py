"""Rates in closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.plan.capacity import (
    Limits,
    WindowWork,
    best_limits,
    decode_share,
    fewest_replicas,
    least_replicas,
    rates,
    split_limits,
    usual_in_flight,
)
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import EngineOption, engine_options
from jaxserve.plan.play import PlannedDeployment
from jaxserve.sim.traffic.traces import Trace


@cache
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


@cache
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


def test_a_split_divides_replicas_by_their_load() -> None:
    """Longer prompts want more replicas that prefill; objectives that a prompt or a token alone
    exceeds leave none."""
    inputs = _inputs(0.02)
    option = _option(inputs)
    found = [
        split_limits(option, replace(inputs, trace=steady_traffic(5, prompt, 100)[0]))
        for prompt in (500, 4000)
    ]
    assert found[0] and found[1]
    assert 0 < found[0].prefill_share < found[1].prefill_share < 1
    assert found[0].requests_per_s > found[1].requests_per_s
    assert split_limits(option, _inputs(0.001)) is None
    assert split_limits(option, replace(inputs, objective=PlanObjective(0.005, 0.02))) is None


@given(share=st.floats(0.001, 0.999), replicas=st.integers(2, 64), other=st.integers(2, 64))
def test_both_roles_have_a_replica(share: float, replicas: int, other: int) -> None:
    """Whatever the share and the number, also where the number changes later."""
    prefill = Limits(256, 8192, 1.0, 1.0, share).prefill_replicas(replicas)
    assert 1 <= prefill < replicas
    inputs = _inputs()
    deployment = PlannedDeployment(_option(inputs), replicas, 256, 8192, prefill)
    assert 1 <= deployment.of(other).prefill < other
    assert deployment.of(replicas) == deployment


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


def test_a_burst_needs_the_replicas_that_its_requests_allow() -> None:
    """Half of the requests come in a tenth of the time: more may miss, fewer replicas suffice."""
    arrival_s = np.sort(np.append(np.linspace(0, 5400, 1000), np.linspace(4800, 5400, 1000)))
    tokens = np.full(2000, 100, np.int32)
    trace = Trace(arrival_s, tokens, tokens)
    work = WindowWork.of(trace)

    def needed(attainment: float, running: int = 0, most: int = 16) -> int:
        return fewest_replicas(work, PlanObjective(1.0, 0.1, attainment), 0.2, running, most)

    # A minute of the burst brings 111 requests, and a replica finishes 12.2 of them in time.
    assert (needed(0.99), needed(0.74), needed(0.5)) == (9, 5, 1)
    # Requests that still run when the minute ends may be in time as well.
    assert (needed(0.99, running=12), needed(0.99, running=512)) == (5, 1)
    assert needed(0.99, most=8) == 9
