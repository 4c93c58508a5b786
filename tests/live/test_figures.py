"""One rule counts requests, wherever they were served."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.live.figures import (
    Figures,
    _mean_of_tail,
    of_outcomes,
    of_reference,
    of_windows,
    summarise,
    undecided_at_end,
)
from jaxserve.live.player import RequestOutcome
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.sim.reference.request import LOG_DTYPE


def outcome(
    arrival_s: float, ttft_s: float | None, tpot_s: float | None, tokens: int, good: bool
) -> RequestOutcome:
    error = "gone" if ttft_s is None else None
    return RequestOutcome(
        "chat", arrival_s, 0.0, 10, tokens + 1, ttft_s, tpot_s, tokens, good, error
    )


times = st.floats(0.001, 3.0)
outcomes = st.lists(
    st.builds(outcome, st.floats(0, 9), times, times, st.integers(1, 20), st.booleans()),
    max_size=20,
)


def test_what_counts() -> None:
    """Good requests that end in time; first tokens in time; tokens of requests that end in time."""
    served = [
        outcome(0.0, 1.0, 0.5, 4, True),  # ends at 3
        outcome(1.0, 2.0, 1.0, 2, False),  # ends at 5
        outcome(8.0, 1.0, 0.5, 4, True),  # ends at 11: undecided at 10
        outcome(9.5, 1.0, None, 0, True),  # first token at 10.5: undecided likewise
        outcome(5.0, None, None, 0, False),
    ]
    found = of_outcomes(served, 10.0)
    assert found.goodput_rps == pytest.approx(0.1)
    assert found.slo_attainment == pytest.approx(1 / 3)
    assert found.ttft_mean_s == pytest.approx((1 + 2 + 1) / 3)
    assert found.itl_mean_s == pytest.approx((2 + 2) / 6)


@given(outcomes)
def test_who_sends_counts_alike(served: list[RequestOutcome]) -> None:
    """What ``send`` prints is what a study says of the same requests, late ones included."""
    for late in ([], [outcome(9.9, 0.2, 0.01, 4, True), outcome(9.0, 0.5, 0.5, 4, True)]):
        found = dataclasses.asdict(summarise([*served, *late], 10.0))
        wanted = dataclasses.asdict(of_outcomes([*served, *late], 10.0))
        assert repr({name: found[name] for name in wanted}) == repr(wanted)


def test_a_summary() -> None:
    """Quantiles are over the first tokens in time; what failed is counted."""
    served = [outcome(2.0 * i, 0.1 * (i + 1), 0.1, 4, True) for i in range(5)]
    late, failed = outcome(9.9, 5.0, 0.1, 4, True), outcome(5.0, None, None, 0, False)
    found = summarise([*served, late, failed], 10.0)
    assert (found.requests, found.errors, found.late_p99_s) == (7, 1, 0.0)
    assert found.goodput_rps == pytest.approx(0.5)
    assert found.ttft_p50_s == pytest.approx(found.ttft_mean_s) == pytest.approx(0.3)
    assert found.ttft_p99_s == pytest.approx(0.496)
    empty = summarise([], 10.0)
    assert empty.requests == 0 and empty.goodput_rps == 0.0 and math.isnan(empty.ttft_p50_s)


@given(outcomes)
def test_a_log_of_the_simulator_counts_alike(served: list[RequestOutcome]) -> None:
    """The same requests as its rows give the same figures."""
    log = np.zeros(len(served), LOG_DTYPE)
    for name in ("arrival_s", "ttft_s", "tpot_s", "output_tokens"):
        log[name] = [getattr(each, name) for each in served]
    good = np.array([each.good for each in served], bool)
    assert repr(of_reference(log, good, 0.0, 10.0)) == repr(of_outcomes(served, 10.0))


def test_open_requests_of_the_simulators_are_undecided() -> None:
    """Unless they are overdue; those of a log are told apart by the last window."""
    rows = [outcome(0.0, 1.0, 0.5, 4, True), outcome(1.0, 1.0, 1.0, 2, False)]
    log = np.zeros(4, LOG_DTYPE)
    for name in ("arrival_s", "ttft_s", "tpot_s", "output_tokens"):
        log[name][:2] = [getattr(each, name) for each in rows]
    log["ttft_s"][2:] = log["tpot_s"][2:] = np.nan
    env = jaxserve.make("static_workload")
    idle = jax.tree.map(lambda leaf: leaf[None], idle_metrics(len(env.slo.ttft_s)))
    first = idle.arrivals.at[0, 0]
    metrics = idle.replace(
        arrivals=first.set(4.0),
        good=first.set(1.0),
        waiting=first.set(2.0),
        overdue=first.set(1.0),
    )
    assert undecided_at_end(metrics) == 1.0
    good = np.array([True, False, False, False])
    assert of_reference(log, good, 1.0, 10.0).slo_attainment == pytest.approx(1 / 3)
    assert of_windows(env, metrics).slo_attainment == pytest.approx(1 / 3)


@given(outcomes, st.sampled_from([0.5, 2.0, 8.0]))
def test_the_gpus_time(served: list[RequestOutcome], factor: float) -> None:
    """An episode that was played more slowly has the figures of one that was not."""

    def slow(value: float | None) -> float | None:
        return None if value is None else factor * value

    longer = [
        dataclasses.replace(
            each,
            arrival_s=factor * each.arrival_s,
            ttft_s=slow(each.ttft_s),
            tpot_s=slow(each.tpot_s),
        )
        for each in served
    ]
    found, wanted = of_outcomes(longer, 10 * factor), of_outcomes(served, 10.0)
    for name, value in dataclasses.asdict(found.in_gpu_time(factor)).items():
        assert value == pytest.approx(getattr(wanted, name), nan_ok=True)


def test_nobody_served() -> None:
    """No figure is made up."""
    found = of_outcomes([outcome(1.0, None, None, 0, False)], 10.0)
    assert found.goodput_rps == found.slo_attainment == 0.0
    assert math.isnan(found.ttft_mean_s) and math.isnan(found.itl_mean_s)
    assert repr(of_outcomes([], 10.0)) == repr(Figures(0.0, 0.0, math.nan, math.nan))


@given(st.floats(0.02, 20.0), st.floats(1.5, 3.0))
def test_the_mean_of_a_histogram(median_s: float, spread: float) -> None:
    """Within 10 % of the mean of log-uniform times that it counts."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    times_s = median_s * spread ** (2 * quantiles - 1)
    later = (times_s > TTFT_EDGES_S[:, None]).mean(axis=1)
    assert _mean_of_tail(later) == pytest.approx(times_s.mean(), rel=0.1)
