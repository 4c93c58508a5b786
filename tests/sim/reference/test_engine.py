"""One engine of the reference simulator: scheduling, in order, within its limits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.machine.memory import SequenceKv
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from tests.examples_drawn import MANY
from tests.sim.reference.engine_inputs import REQUESTS, burst, make, make_engine, served
from tests.sim.reference.naive_scheduler import naive_run
from tests.sim.reference.simulator_inputs import ACCEPTANCE, LinearTimer


@MANY
@given(
    REQUESTS, st.integers(1, 6), st.integers(8, 40), st.booleans(), st.sampled_from([3, 24, 2048])
)
def test_matches_a_naive_scheduler(rows, cap, blocks, by_priority, budget):
    """Counters, aggregates and heaps give the schedule of the plain algorithm, event by event."""
    knobs = GpuKnobs(cap, blocks * 16, priority_routing=by_priority)
    config = SchedulerSettings(token_budget=budget)
    timer, plain = LinearTimer(), LinearTimer()
    log = run_requests(make(rows), timer, knobs, config)
    first, finish = naive_run(make(rows), plain, knobs, config)
    assert timer.seen == [(b, k, c, 0, 0) for b, k, c, _, _ in plain.seen]
    for row in log:
        if row["id"] in finish:
            assert row["finish_s"] == pytest.approx(finish[row["id"]], rel=1e-12)
            assert row["first_token_s"] == pytest.approx(first[row["id"]], rel=1e-12)
        else:
            assert row["rejected"] or row["lost"]


@given(
    REQUESTS,
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([24, 2048]),
)
def test_every_iteration_respects_batch_cap_blocks_and_budget(
    rows, cap, blocks, depth, by_priority, caching, budget
):
    """No schedule, speculating or not, exceeds a limit or leaves a request unaccounted for."""
    requests = make(rows)
    for request in requests:
        request.acceptance = ACCEPTANCE
    knobs = GpuKnobs(cap, blocks * 16, depth, 0, by_priority)
    config = SchedulerSettings(token_budget=budget, prefix_caching=caching)
    timer = LinearTimer()
    engine = Engine(timer, knobs, config, np.random.default_rng(0))
    for request in requests:
        engine.waiting.push(request)
    now = 0.0
    while (end_s := engine.start(now)) is not None:
        assert 0 <= engine.pool.used <= engine.pool.capacity
        assert 0 < engine.running <= cap
        sequences, _, chunks, _, _ = timer.seen[-1]
        prompt_tokens = sum(chunk for chunk, _ in chunks)
        assert prompt_tokens <= max(budget - sequences * (depth + 1), budget // 8)
        now = end_s
        engine.finish(now)
    assert engine.pool.used == 0 and engine.running == 0 and not engine.waiting
    for request in requests:
        assert (request in engine.counters.completed) + request.rejected + request.lost == 1
        if request in engine.counters.completed:
            assert 0.0 <= request.first_scheduled_s < request.first_token_s
            assert request.generated == request.output_tokens
            assert request.first_token_s <= request.finish_s
    rejected_needs = [r.prompt_tokens for r in requests if r.rejected]
    assert all(-(-tokens // 16) > blocks for tokens in rejected_needs)


def test_first_come_first_served():
    """Equal requests start in the order in which they arrived."""
    log = run_requests(burst(30, gap_s=0.001), LinearTimer(), GpuKnobs(4, 10_000))
    assert np.all(np.diff(log["first_scheduled_s"]) >= 0)
    assert np.all(np.diff(log["first_token_s"]) >= 0)


def test_one_request_takes_one_iteration_per_token():
    """TTFT is the prefill iteration, TPOT one decode iteration."""
    timer = LinearTimer(base_s=0.01, token_s=0.0001)
    (row,) = run_requests(burst(1, prompt=100, output=11), timer, GpuKnobs(8, 10_000))
    assert row["ttft_s"] == pytest.approx(0.01 + 100 * 0.0001)
    assert row["tpot_s"] == pytest.approx(0.01 + 0.0001)
    assert len(timer.seen) == 11


def test_decode_reads_the_context_it_has_written():
    """KV tokens of decode step i: the prompt and the i tokens sampled before it."""
    timer = LinearTimer()
    run_requests(burst(1, prompt=100, output=4), timer, GpuKnobs(8, 10_000))
    assert [kv for _, kv, _, _, _ in timer.seen] == [0, 101, 102, 103]


def test_long_prompts_are_prefilled_in_chunks_beside_decodes():
    """Chunks take what decoding leaves of the token budget and carry on from their prefix."""
    timer = LinearTimer()
    requests = [Request(0, 0.0, 10, 50), Request(1, 0.011, 1000, 2)]
    run_requests(requests, timer, GpuKnobs(8, 10_000), SchedulerSettings(token_budget=401))
    mixed = [chunks for decoding, _, chunks, _, _ in timer.seen if decoding == 1 and chunks]
    assert mixed == [((400, 0),), ((400, 400),), ((200, 800),)]


def test_md1_waiting_matches_pollaczek_khinchine():
    """Prompts that fill an iteration alone are an M/D/1 queue: W = S + rho S / (2 (1 - rho))."""
    service_s, rho, count = 0.02, 0.7, 40_000
    gaps = np.random.default_rng(1).exponential(service_s / rho, count)
    requests = [Request(i, float(t), 256, 1) for i, t in enumerate(np.cumsum(gaps))]
    timer = LinearTimer(base_s=service_s, token_s=0.0)
    log = run_requests(requests, timer, GpuKnobs(1000, 10**6), SchedulerSettings(token_budget=256))
    expected_s = service_s + rho * service_s / (2 * (1 - rho))
    assert log["ttft_s"].mean() == pytest.approx(expected_s, rel=0.03)


def test_priority_order_conserves_mean_ttft_and_helps_the_high_class():
    """Priority moves waiting between classes that look alike; it does not create or remove it."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / 44, 6000))
    classes = rng.integers(0, 3, len(arrivals))

    def run(by_priority):
        requests = [
            Request(i, float(t), 512, 8, priority=int(c))
            for i, (t, c) in enumerate(zip(arrivals, classes, strict=True))
        ]
        timer = LinearTimer(base_s=0.002, token_s=0.00004)
        return run_requests(requests, timer, GpuKnobs(64, 10**6, priority_routing=by_priority))

    fcfs, priority = run(False), run(True)
    assert priority["ttft_s"].mean() == pytest.approx(fcfs["ttft_s"].mean(), rel=0.05)
    high, low = classes == 0, classes == 2
    assert priority["ttft_s"][high].mean() < 0.75 * fcfs["ttft_s"][high].mean()
    assert priority["ttft_s"][low].mean() > 1.2 * fcfs["ttft_s"][low].mean()


def test_decodes_beyond_the_token_budget_wait():
    """Those admitted last; nobody is admitted meanwhile."""
    engine = make_engine(burst(6, prompt=4, output=9), GpuKnobs(8, 10_000), token_budget=12)
    served(engine, 1)
    assert served(engine, 1) == [{0: 1, 1: 1, 2: 1, 3: 4, 4: 4, 5: 1}]
    engine.settings = SchedulerSettings(token_budget=2)
    assert served(engine, 2) == [{0: 1, 1: 1}, {0: 1, 1: 1}]


@given(REQUESTS, st.integers(0, 3), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_an_aborted_request_leaves_nothing_behind(rows, depth, by_priority, caching, chance):
    """Wherever it is: its blocks are free again, and all others are served to the end."""
    requests = make(rows)
    knobs = GpuKnobs(4, 416, depth, priority_routing=by_priority)
    config = SchedulerSettings(token_budget=64, prefix_caching=caching)
    engine = Engine(LinearTimer(), knobs, config, np.random.default_rng(0))
    for request in requests:
        engine.waiting.push(request)
    now, aborted = 0.0, set()
    while (end_s := engine.start(now)) is not None:
        engine.finish(end_s)
        now = end_s
        here = [*engine.decoding.sequences, *engine.prefilling, *engine.waiting]
        if here and chance.random() < 0.3:
            gone = chance.choice(here)
            engine.abort(gone)
            aborted.add(gone.id)
    completed = {request.id for request in engine.counters.completed}
    assert completed | aborted == {request.id for request in requests}
    assert not completed & aborted
    assert engine.pool.used == engine.load_tokens == engine.running == len(engine.waiting) == 0


def test_queue_orders():
    """One queue serves by arrival or by (priority, arrival) and can switch between them."""
    requests = [
        Request(i, t, 10 + i, 1, priority=p)
        for i, (t, p) in enumerate([(0.3, 0), (0.1, 2), (0.2, 1), (0.2, 0)])
    ]
    queue = WaitingQueue()
    for request in requests:
        queue.push(request)
    assert queue.prefill_tokens == 46
    assert queue.peek().id == 1
    queue.set_order(True)
    assert [r.id for r in queue.drain()] == [3, 0, 2, 1]
    assert queue.prefill_tokens == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Request(0, -1.0, 1, 1), "arrival_s"),
        (lambda: Request(0, math.nan, 1, 1), "arrival_s"),
        (lambda: Request(0, 0.0, 0, 1), "prompt_tokens"),
        (lambda: Request(0, 0.0, 1, 0), "output_tokens"),
        (lambda: Request(0, 0.0, 1, 1, acceptance=np.ones(3)), "acceptance"),
        (lambda: GpuKnobs(0, 100), "batch_cap"),
        (lambda: GpuKnobs(1, 0), "kv_capacity_tokens"),
        (lambda: GpuKnobs(1, 100, 9), "speculation_depth"),
        (lambda: GpuKnobs(1, 100, 0, 3), "tier"),
        (lambda: SchedulerSettings(token_budget=0), "token_budget"),
        (lambda: SchedulerSettings(watermark=1.0), "watermark"),
        (lambda: SchedulerSettings(depths=(3, 9)), "depths"),
    ],
)
def test_bad_input_is_named(build, message):
    """Errors name the field that is wrong."""
    with pytest.raises(InputError, match=message):
        build()


@given(
    REQUESTS,
    st.integers(1, 6),
    st.integers(8, 60),
    st.sampled_from([(32.0, 2.5, 0.0), (0.0, 0.0, 40.0), (48.0, 1.0, 20.0)]),
)
def test_windows_and_states_take_blocks(rows, cap, blocks, sequence):
    """Whatever a sequence holds beside its tokens fits the pool and is given back; sequences that
    can never fit are turned away."""
    config = SchedulerSettings(sequence_kv=SequenceKv(*sequence))
    knobs = GpuKnobs(cap, blocks * 16)
    requests = make(rows)
    log = run_requests(requests, LinearTimer(), knobs, config)
    for row, request in zip(log[np.argsort(log["id"])], requests, strict=True):
        most = request.prompt_tokens + request.output_tokens - 1
        fits = config.blocks(most) <= blocks
        assert fits == (not (row["rejected"] or row["lost"]))
    tokens = np.arange(1, 200)
    assert (config.blocks(tokens) == [config.blocks(int(each)) for each in tokens]).all()
