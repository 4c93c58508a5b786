"""What each request of the played traffic stands for, and the share of it that few replicas get."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.plan.capacity import DEFAULT_BUDGET, DEFAULT_CAP
from jaxserve.plan.inputs import PlanInputs, PlanObjective
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment, served_by
from jaxserve.plan.played_traffic import PlayedTraffic, Stratum, TrafficPart
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import simulate
from jaxserve.sim.traffic.traces import Trace


def _trace(count: int, rate: float, seed: int = 0) -> Trace:
    """Bursts: gaps between requests have a squared coefficient of variation of 10."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.gamma(0.1, 10.0 / rate, count))
    lengths = (rng.lognormal(mean, 0.8, count) for mean in (6.5, 4.5))
    whole = (np.clip(each, 1, 8_000).astype(np.int32) for each in lengths)
    return Trace(arrival_s - arrival_s[0], *whole)


def _sampled(window_requests: float, *parts: TrafficPart) -> PlayedTraffic:
    strata = (Stratum(4, 8_000), Stratum(8, 2_000))
    return PlayedTraffic(parts, 10_000, strata, 300.0, window_requests)


def test_requests_stand_for_those_of_their_stratum() -> None:
    """Two windows of one part count to different strata, what was before them to none."""
    trace = _trace(100, 10.0)
    window = np.repeat(np.array([-1, 0, -1, 1], np.int32), 25)
    part = TrafficPart(trace, window, np.zeros(100, bool), strata=(1, 0))
    (weight,) = _sampled(100, part).weights
    assert weight.sum() == pytest.approx(10_000)
    assert set(weight[25:50]) == {2_000 / 25} and set(weight[75:]) == {8_000 / 25}
    assert not weight[window < 0].any()
    assert part.sums(np.arange(100) % 5 == 0).tolist() == [5, 5]


@given(st.integers(1, 64), st.floats(1.0, 1e6), st.data())
def test_the_replicas_that_are_played_have_their_share(
    replicas: int, window_requests: float, data: st.DataObject
) -> None:
    """At least as many requests as wanted, every role in proportion, evenly spaced."""
    prefill = data.draw(st.integers(0, replicas - 1))
    numbers = np.arange(1, 501, dtype=np.int32)
    trace = Trace(numbers - 1.0, numbers, numbers)
    part = TrafficPart(trace, np.zeros(500, np.int32), np.zeros(500, bool))
    traffic = _sampled(window_requests, part)
    played = traffic.played_replicas(replicas, prefill)
    assert 1 <= played <= replicas and not prefill * played % replicas
    assert played == replicas or played / replicas * window_requests >= 5_000
    (share,) = traffic.shared(played, replicas).parts
    assert len(share.trace) == 500 * played // replicas
    assert len(share.window) == len(share.busy) == len(share.trace)
    assert set(np.diff(share.trace.prompt_tokens)) <= {replicas // played, -(-replicas // played)}
    whole = PlayedTraffic((part,), 500)
    assert whole.played_replicas(replicas, prefill) == replicas


@pytest.mark.slow
@pytest.mark.parametrize("rate", [95.0, 110.0, 125.0])
def test_few_replicas_miss_as_many(rate: float) -> None:
    """Two of twelve miss the share of requests that all miss, within a tenth of it and half a
    point: one engine has a little less company than twelve."""
    trace = _trace(60_000, rate)
    inputs = PlanInputs(
        "llama-3.1-8b", trace, "bursts", PlanObjective(2.0, 0.1), {"h100-sxm-80gb": 2.0},
        formats=("bf16",), kv_formats=("bf16",),
    )  # fmt: skip
    option = next(each for each in engine_options(inputs)[0] if each.tensor_parallel == 1)
    timer = TabulatedTimer(option.cost, option.tier)
    part = TrafficPart(trace, np.zeros(len(trace), np.int32), np.zeros(len(trace), bool))
    shares = []
    for played in (2, 12):
        (share,) = _sampled(1.0, part).shared(played, 12).parts
        by = PlannedDeployment(option, played, DEFAULT_CAP, DEFAULT_BUDGET)
        log = simulate(share.trace, timer, served_by(by, share.trace))
        shares.append(float(((log["ttft_s"] > 2.0) | (log["tpot_s"] > 0.1)).mean()))
    few, many = shares
    assert many < 1.0 and abs(few - many) <= 0.1 * many + 0.005
