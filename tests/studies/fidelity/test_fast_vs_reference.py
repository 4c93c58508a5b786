"""The fast simulator against the reference simulator: scenarios and how errors are summed up."""

import dataclasses

import numpy as np
import pytest

from jaxserve.spaces import REQUIRED_KNOBS
from jaxserve.studies.fidelity.fast_vs_reference import (
    BARS,
    ScenarioOutcome,
    SimulatorComparison,
    compare,
    comparison_table,
    fidelity_rows,
)
from jaxserve.studies.fidelity.scenarios import (
    Scenario,
    Traffic,
    environment,
    scenario_grid,
    workload_at,
)

REFERENCE = ScenarioOutcome(
    arrivals=200.0,
    completed=100.0,
    good=80.0,
    tpot_s=0.02,
    itl_p50_s=0.02,
    ttft_p50_s=0.1,
    ttft_p99_s=1.0,
    engine_ttft_p50_s=0.08,
    engine_ttft_p99_s=0.95,
)


def compared(**changes: float) -> SimulatorComparison:
    """A scenario in which the fast simulator differs by some figures."""
    scenario = Scenario(Traffic("static_workload"), 0.6, {"batch_cap": 64})
    return SimulatorComparison(scenario, 5.0, dataclasses.replace(REFERENCE, **changes), REFERENCE)


def test_errors_have_their_sign_and_unit() -> None:
    """Percent of the reference, attainment in points of all requests."""
    changes = dict(completed=103.0, good=76.0, tpot_s=0.019, itl_p50_s=0.021, ttft_p99_s=1.2)
    changes["engine_ttft_p50_s"] = 0.088
    errors = compared(**changes).errors()
    assert tuple(errors) == tuple(BARS)
    assert list(errors.values()) == pytest.approx([3.0, -5.0, 5.0, -2.0, 0.0, 20.0, 10.0, 0.0])


def test_rows_judge_means_and_for_ttft_medians() -> None:
    """One outlier in TTFT is reported, but does not fail the check."""
    comparisons = [compared(), compared(), compared(ttft_p50_s=0.3, completed=109.3)]
    rows = {
        row.check.removeprefix("fast vs reference: "): row for row in fidelity_rows(comparisons)
    }
    assert rows["TTFT p50"].measured == pytest.approx(0.0) and rows["TTFT p50"].passed
    assert "worst +200.0: static_workload load 0.6 batch_cap=64" in rows["TTFT p50"].detail
    assert rows["throughput"].measured == pytest.approx(3.1) and not rows["throughput"].passed


def test_summary_counts_every_scenario_in_each_grouping() -> None:
    """All, by load, by traffic and by knobs."""
    lines = comparison_table([compared(), compared(completed=102.0)]).splitlines()[2:]
    names = [line.split("|")[1].strip() for line in lines]
    assert names == ["all (2)", "load 0.6 (2)", "static_workload (2)", "batch_cap=64 (2)"]


def test_scenarios_differ() -> None:
    """Every combination once, each with a name of its own."""
    names = [scenario.name for scenario in scenario_grid()]
    assert len(set(names)) == len(names) > 100


@pytest.mark.parametrize("task", ["bursty_workload", "trace_replay"])
def test_traffic_comes_at_the_rate_asked_for(task: str) -> None:
    """Drawn traffic by its regimes' rates, recorded traffic by its counts."""
    traffic = Traffic(task)
    env = environment(traffic)
    assert np.asarray(env.knob_active)[: len(REQUIRED_KNOBS)].all()
    rate_rps = 2.0 * float(env.reward.expected_requests_per_s)
    workload = workload_at(env, traffic, rate_rps, seed=0, windows=80)
    if workload.replay_counts is None:
        twice = 2.0 * env.workload.regimes.rate_rps
        np.testing.assert_allclose(workload.regimes.rate_rps, twice, rtol=1e-6)
    else:
        assert workload.replay_counts.shape[0] == 80
        arrived_rps = float(workload.replay_counts.sum()) / (80 * env.window_s)
        assert arrived_rps == pytest.approx(rate_rps, rel=0.15)


@pytest.mark.slow
def test_both_simulators_agree_on_a_calm_scenario() -> None:
    """At a third of the capacity nothing is lost, and neither are the requests compared."""
    scenario = Scenario(Traffic("static_workload"), 0.3, {"batch_cap": 64})
    (found,) = compare([scenario], windows=20, seeds=1, workers=1)
    assert found.fast.arrivals == found.reference.arrivals > 0.0
    assert abs(found.errors()["throughput"]) < 5.0
    assert abs(found.errors()["TPOT"]) < 10.0
    for outcome in (found.fast, found.reference):
        front_end_s = outcome.ttft_p50_s - outcome.engine_ttft_p50_s
        assert 0.01 < front_end_s < 0.03


@pytest.mark.deep
def test_the_median_inter_token_latency_is_that_of_the_requests() -> None:
    """Over all knobs and loads of a task the fast simulator's is within the bar of ``BARS``.

    It is the bar of the mean time per token: controllers hold both against the same objective.
    """
    scenarios = [s for s in scenario_grid() if s.traffic == Traffic("static_workload")]
    found = compare(scenarios, windows=40, seeds=1)
    errors = np.abs([comparison.errors()["ITL p50"] for comparison in found])
    assert errors.mean() < BARS["ITL p50"][0]
