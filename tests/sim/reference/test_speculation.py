"""Speculation in an engine: tokens by the acceptance table, verification in the budget."""

import numpy as np
import pytest

from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from tests.sim.reference.engine_inputs import burst
from tests.sim.reference.simulator_inputs import ACCEPTANCE, LinearTimer


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_speculation_advances_by_the_mean_of_the_acceptance_table(depth):
    """Tokens per verify step average to the table's entry for the depth."""
    requests = burst(40, prompt=16, output=2000, acceptance=ACCEPTANCE)
    timer = LinearTimer()
    engine = Engine(
        timer, GpuKnobs(64, 10**6, depth), SchedulerSettings(), np.random.default_rng(5)
    )
    for request in requests:
        engine.waiting.push(request)
    now = 0.0
    for _ in range(200):
        end_s = engine.start(now)
        assert end_s is not None
        now = end_s
        engine.finish(now)
    counters = engine.counters
    steps = sum(sequences for _, sequences in counters.decodes)
    assert counters.drafted == depth * steps
    per_step = 1 + counters.draft_accepted / steps
    assert per_step == pytest.approx(ACCEPTANCE[depth], rel=0.02)


def test_speculated_tokens_enter_the_context():
    """When every draft is kept, depth + 1 tokens join the context and the last step is cut."""
    timer = LinearTimer()
    requests = burst(2, prompt=100, output=12, gap_s=1.0, acceptance=np.arange(1.0, 10.0))
    run_requests(requests, timer, GpuKnobs(8, 10_000, 3))
    assert [kv for _, kv, _, _, _ in timer.seen] == 2 * [0, 101, 105, 109]


def test_rejected_drafts_cost_time_and_gain_nothing():
    """Without an acceptance table speculation only slows the engine down."""
    plain = run_requests(burst(4), LinearTimer(), GpuKnobs(8, 10_000, 0))
    drafted = run_requests(burst(4), LinearTimer(), GpuKnobs(8, 10_000, 4))
    assert np.all(drafted["tpot_s"] > plain["tpot_s"])


def test_deep_verification_leaves_prefill_a_share_of_the_budget():
    """Verified tokens above the token budget do not starve admissions."""
    timer = LinearTimer()
    requests = burst(20, prompt=64, output=40)
    run_requests(requests, timer, GpuKnobs(64, 10_000, 8), SchedulerSettings(token_budget=128))
    crowded = [chunks for decoding, _, chunks, _, _ in timer.seen if decoding * 9 >= 128]
    assert max(sum(chunk for chunk, _ in chunks) for chunks in crowded) == 16


def test_depths_follow_the_sequences_of_the_iteration_before():
    """As vLLM drafts at the end of an iteration, by the sequences in it and at most the knob."""
    timer, depths = LinearTimer(), (4, 4, 3, 2, 1, 0)
    requests = burst(12, prompt=300, output=60, gap_s=0.02, acceptance=ACCEPTANCE)
    settings = SchedulerSettings(token_budget=400, depths=depths)
    log = run_requests(requests, timer, GpuKnobs(64, 10_000, 3), settings)
    assert np.isfinite(log["finish_s"]).all()
    crowds = [decoding + len(chunks) for decoding, _, chunks, _, _ in timer.seen]
    drafted = [depth for *_, depth, _ in timer.seen]
    assert drafted[1:] == [min(3, depths[min(crowd, 6) - 1]) for crowd in crowds[:-1]]
    assert set(drafted) == {0, 1, 2, 3}


def test_one_depth_for_all_is_the_knob():
    """A table of one depth plays as the knob alone does."""

    def run(**table):
        requests = burst(20, acceptance=ACCEPTANCE)
        settings = SchedulerSettings(**table)
        return run_requests(requests, LinearTimer(), GpuKnobs(8, 10_000, 3), settings)

    assert run().tobytes() == run(depths=(3,)).tobytes() == run(depths=(8, 8)).tobytes()


def test_same_seed_same_log_other_seed_other_log():
    """Speculation is the only randomness of an engine, and it comes from the seed."""

    def run(seed):
        requests = burst(20, acceptance=ACCEPTANCE)
        return run_requests(requests, LinearTimer(), GpuKnobs(8, 10_000, 3), seed=seed)

    assert run(1).tobytes() == run(1).tobytes()
    assert np.any(run(1)["finish_s"] != run(2)["finish_s"])


def test_progress_is_recorded_when_asked_for():
    """Every sequence's tokens so far, speculated ones included."""
    engine = Engine(
        LinearTimer(), GpuKnobs(8, 1600, 2), SchedulerSettings(), np.random.default_rng(0)
    )
    for request in burst(3, prompt=10, output=50, acceptance=ACCEPTANCE):
        engine.waiting.push(request)
    now = 0.0
    for _ in range(6):
        now = engine.start(now)
        engine.finish(now)
    engine.decoding.record_generated()
    assert (
        sum(request.generated for request in engine.decoding.sequences)
        == engine.counters.tokens
        > 18
    )
