"""The reference deployment: router, queue, front end, priority, and windows that add up."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import (
    Knobs,
    ReferenceSettings,
    SchedulerSettings,
    ShiftedExponentialFrontEnd,
)
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.sim.reference.simulator_inputs import (
    ACCEPTANCE,
    ROOMY,
    LinearTimer,
    RowLimit,
    poisson,
    windows,
)

KNOBS = st.builds(
    Knobs,
    batch_cap=st.sampled_from([1, 4, 32]),
    kv_capacity_tokens=st.sampled_from([300, 1200, 20_000]),
    speculation_depth=st.sampled_from([0, 3]),
    tier=st.integers(0, 2),
    priority_routing=st.booleans(),
    prefill_gpus=st.integers(0, 2),
)


@given(
    st.lists(KNOBS, min_size=1, max_size=12),
    st.integers(0, 5),
    st.sampled_from([5.0, 60.0]),
    st.sampled_from([None, 12]),
    st.sampled_from([3e7, 5e9]),
)
def test_requests_are_conserved_under_any_knobs(plan, seed, rate, rows, link):
    """At every boundary: arrivals = completed + running + waiting + rejected + lost."""
    memory = None if rows is None else RowLimit(rows)
    config = ReferenceSettings(
        num_gpus=3,
        queue_capacity=40,
        restart_s=1.3,
        rerole_s=0.7,
        oom_restart_s=0.9,
        link_bytes_per_s=link,
    )
    requests = poisson(rate, len(plan), seed)
    simulator = ReferenceSimulator(config, LinearTimer(), ROOMY, requests, seed, memory)
    totals, waited = np.zeros(4, int), 0
    for i, knobs in enumerate([*plan, *[ROOMY] * 60]):
        stats = simulator.advance(i + 1.0, knobs)
        totals += (stats.arrivals, stats.completed, stats.rejected, stats.lost)
        assert totals[0] == totals[1:].sum() + stats.running + stats.waiting
        assert stats.completed == len(stats.completions)
        assert 0.0 <= stats.capacity <= 1.0 and stats.kv_occupancy >= 0.0
        assert np.all(stats.first_tokens["first_token_s"] <= i + 1)
        # The queue takes no more than 40, but for those that a GPU had begun.
        assert stats.waiting <= max(40, waited) + stats.preemptions + 3 * 32
        waited = stats.waiting
    log = simulator.log()
    assert totals[0] == len(log) == len(requests)
    # With room to breathe everything is served in the end; a crash may keep recurring.
    if memory is None:
        assert stats.running == stats.waiting == 0
        done = np.isfinite(log["finish_s"])
        assert np.all(done ^ log["rejected"] ^ log["lost"])
        assert np.all(log["first_token_s"][done] <= log["finish_s"][done])


def test_one_gpu_deployment_is_the_engine():
    """Router and windows change nothing for one GPU: the same times as without them."""
    requests, twins = poisson(20, 20), poisson(20, 20)
    simulator = ReferenceSimulator(
        ReferenceSettings(queue_capacity=10_000), LinearTimer(), ROOMY, requests
    )
    windows(simulator, ROOMY, 100)
    alone = run_requests(twins, LinearTimer(), ROOMY)
    np.testing.assert_allclose(simulator.log()["finish_s"], alone["finish_s"], rtol=1e-12)
    np.testing.assert_allclose(simulator.log()["ttft_s"], alone["ttft_s"], rtol=1e-9)


def test_windows_do_not_depend_on_where_they_are_cut():
    """Control points only observe: many short windows and one long window agree."""
    logs = []
    for count, seconds in ((50, 1.0), (1, 50.0)):
        simulator = ReferenceSimulator(
            ReferenceSettings(num_gpus=2), LinearTimer(), ROOMY, poisson(30, 40), seed=4
        )
        windows(simulator, ROOMY, count, seconds)
        logs.append(simulator.log())
    assert logs[0].tobytes() == logs[1].tobytes()


def test_same_seed_same_log():
    """A run is a function of traffic, knobs and seed."""

    def run(seed):
        knobs = Knobs(64, 100_000, speculation_depth=3)
        config = ReferenceSettings(num_gpus=2, front_end=ShiftedExponentialFrontEnd(0.02, 0.01))
        simulator = ReferenceSimulator(config, LinearTimer(), knobs, poisson(30, 10), seed)
        windows(simulator, knobs, 20)
        return simulator.log().tobytes()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_router_balances_identical_gpus():
    """Four GPUs serve four times the traffic with the token times of one."""

    def tpot_s(num_gpus):
        simulator = ReferenceSimulator(
            ReferenceSettings(num_gpus=num_gpus),
            LinearTimer(token_s=0.00008),
            ROOMY,
            poisson(25 * num_gpus, 40, output=(40, 60)),
        )
        windows(simulator, ROOMY, 60)
        return simulator.log()["tpot_s"]

    one, four = tpot_s(1), tpot_s(4)
    assert np.median(four) == pytest.approx(np.median(one), rel=0.1)
    # Pooling evens out bursts, so the slow end must be better, not worse.
    assert np.percentile(four, 99) < np.percentile(one, 99)


def test_full_queue_rejects():
    """Beyond the deployment's queue capacity arrivals are turned away, and only then."""
    requests = [Request(i, 0.0, 100, 5) for i in range(100)]
    knobs = Knobs(batch_cap=1, kv_capacity_tokens=10_000)
    simulator = ReferenceSimulator(
        ReferenceSettings(queue_capacity=30), LinearTimer(), knobs, requests
    )
    stats = simulator.advance(0.001, knobs)
    assert (stats.arrivals, stats.rejected, stats.waiting, stats.running) == (100, 70, 29, 1)


def test_front_end_delay_is_part_of_ttft_only():
    """The client sees the delay once; engine times and TPOT do not change."""

    def run(front_end):
        config = ReferenceSettings(num_gpus=2, front_end=front_end)
        simulator = ReferenceSimulator(config, LinearTimer(), ROOMY, poisson(40, 60), seed=7)
        windows(simulator, ROOMY, 80)
        return simulator.log()

    plain, delayed = run(ShiftedExponentialFrontEnd()), run(ShiftedExponentialFrontEnd(0.02, 0.03))
    delay_s = delayed["ttft_s"] - plain["ttft_s"]
    assert np.all(delay_s > 0)
    assert delay_s.mean() == pytest.approx(0.05, rel=0.1)
    assert np.percentile(delay_s, 99) > 2.4 * delay_s.mean()
    np.testing.assert_array_equal(delayed["tpot_s"], plain["tpot_s"])


def test_front_end_delays_do_not_depend_on_the_knobs():
    """Two policies face the same delays, request by request."""
    delays = []
    for cap in (4, 64):
        knobs = Knobs(cap, 100_000)
        requests = poisson(40, 10)
        front_end = ShiftedExponentialFrontEnd(0.02, 0.03)
        config = ReferenceSettings(queue_capacity=10**6, front_end=front_end)
        simulator = ReferenceSimulator(config, LinearTimer(), knobs, requests, seed=7)
        windows(simulator, knobs, 11)
        delays.append([request.frontend_s for request in requests])
    assert delays[0] == delays[1]


def test_priority_order_spans_the_deployment():
    """Under overload of two GPUs the high class hardly waits, and the mean stays what it was."""

    def run(by_priority):
        knobs = Knobs(16, 100_000, priority_routing=by_priority)
        requests = poisson(130, 20, seed=2, prompt=(200, 201), output=(20, 21))
        config = ReferenceSettings(num_gpus=2, queue_capacity=10**6)
        simulator = ReferenceSimulator(config, LinearTimer(0.015, 0.00002), knobs, requests)
        windows(simulator, knobs, 60)
        return simulator.log()

    fcfs, priority = run(False), run(True)
    assert fcfs["ttft_s"].mean() > 2.0
    assert priority["ttft_s"].mean() == pytest.approx(fcfs["ttft_s"].mean(), rel=0.05)
    high = priority["priority"] == 0
    assert np.median(priority["ttft_s"][high]) < 0.1 * np.median(fcfs["ttft_s"][high])


def test_window_statistics_add_up_to_the_log():
    """Tokens, first tokens, preemptions and work of the windows are those of the requests."""
    knobs = Knobs(16, 1200, speculation_depth=2)
    timer = LinearTimer()
    simulator = ReferenceSimulator(
        ReferenceSettings(num_gpus=2), timer, knobs, poisson(25, 20, output=(1, 200))
    )
    stats = windows(simulator, knobs, 120)
    log = simulator.log()
    assert np.all(np.isfinite(log["finish_s"]))
    assert sum(w.tokens for w in stats) == log["output_tokens"].sum()
    assert sum(len(w.ttft_s) for w in stats) == len(log)
    assert sum(w.preemptions for w in stats) == log["preemptions"].sum() > 0
    assert sum(w.work[0].iterations for w in stats) == len(timer.seen)
    assert sum(w.work[0].tokens for w in stats) == sum(
        3 * b + sum(chunk for chunk, _ in chunks) for b, _, chunks, _, _ in timer.seen
    )
    assert np.sort(np.concatenate([w.tpot_s for w in stats])) == pytest.approx(
        np.sort(log["tpot_s"])
    )
    kept = sum(w.draft_accepted for w in stats) / sum(w.drafted for w in stats)
    assert kept == pytest.approx((ACCEPTANCE[2] - 1) / 2, rel=0.05)


def test_requests_can_be_submitted_as_time_goes_on():
    """Traffic may come window by window, but not from the past."""
    simulator = ReferenceSimulator(ReferenceSettings(), LinearTimer(), ROOMY)
    simulator.advance(5.0, ROOMY)
    simulator.submit([Request(0, 5.5, 10, 3)])
    assert simulator.advance(6.0, ROOMY).completed == 1
    with pytest.raises(InputError, match="arrival_s"):
        simulator.submit([Request(1, 5.5, 10, 3)])


def test_cost_model_is_a_timer():
    """An H100 near idle serves at the cost model's own iteration times."""
    cost = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))
    (row,) = run_requests([Request(0, 0.0, 512, 101)], cost, ROOMY)
    assert row["ttft_s"] == pytest.approx(float(cost.prefill_alone_s(512)), rel=1e-6)
    assert row["tpot_s"] == pytest.approx(float(cost.decode_s(1, 563)), rel=1e-3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ReferenceSettings(num_gpus=0), "num_gpus"),
        (lambda: ReferenceSettings(restart_s=-1.0), "restart_s"),
        (lambda: ReferenceSettings(oom_restart_s=math.nan), "oom_restart_s"),
        (lambda: ReferenceSettings(link_bytes_per_s=0.0), "link_bytes_per_s"),
        (lambda: Knobs(8, 0), "kv_capacity_tokens"),
        (lambda: _simulator().advance(1.0, Knobs(8, 100, prefill_gpus=2)), "prefill_gpus"),
        (lambda: _simulator().advance(-1.0, ROOMY), "until_s"),
        (lambda: _simulator().advance(math.inf, ROOMY), "until_s"),
        (lambda: SchedulerSettings(block_tokens=0), "block_tokens"),
        (lambda: _simulator().submit([Request(1, 0.0, 9, 9)] * 2), "id 1"),
        (lambda: run_requests([Request(1, 0.0, 9, 9)] * 2, LinearTimer(), ROOMY), "unique"),
    ],
)
def test_bad_input_is_named(build, message):
    """Errors name the field that is wrong."""
    with pytest.raises(InputError, match=message):
        build()


def _simulator():
    return ReferenceSimulator(ReferenceSettings(num_gpus=2), LinearTimer(), ROOMY)
