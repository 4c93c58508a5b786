"""Who is admitted to an engine and who is preempted for KV blocks, and what prefixes share."""

import math

import numpy as np

from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from tests.sim.reference.engine_inputs import burst, make_engine, served
from tests.sim.reference.simulator_inputs import LinearTimer


def test_preemption_recomputes_prompt_and_output():
    """The newest sequence loses its KV and later prefills everything that it had."""
    timer = LinearTimer()
    requests = [Request(0, 0.0, 64, 80), Request(1, 0.0, 64, 80)]
    log = run_requests(requests, timer, GpuKnobs(8, 160))
    assert log["preemptions"].tolist() == [0, 1]
    recomputed = [chunk for _, _, chunks, _, _ in timer.seen[1:] for chunk, _ in chunks]
    # Ten blocks: both hold five after 16 tokens; the 17th needs one more.
    assert recomputed == [64 + 17]
    assert np.all(log["output_tokens"] == 80) and np.all(np.isfinite(log["finish_s"]))


def test_preempted_request_returns_before_later_arrivals():
    """A preempted sequence is at the front of the queue, not at its end."""
    requests = [Request(0, 0.0, 64, 80), Request(1, 0.0, 64, 80), Request(2, 0.1, 16, 1)]
    log = run_requests(requests, LinearTimer(), GpuKnobs(2, 160))
    assert log["preemptions"][1] == 1
    assert log["first_token_s"][2] > log["finish_s"][0]


def test_preempted_requests_return_in_the_order_of_admission():
    """First come first served: also where that is not the order in which they arrived."""
    queue = WaitingQueue()
    for i in range(4):
        queue.push(Request(i, float(i), 10, 1))
    late, early = Request(9, 9.0, 10, 1), Request(8, 8.0, 10, 1)
    queue.put_back(early)
    queue.put_back(late)
    assert [request.id for request in queue.drain()] == [9, 8, 0, 1, 2, 3]


def test_priority_preempts_the_least_important_sequence():
    """Under priority order the victim is the lowest class, although it was admitted first."""
    requests = [Request(0, 0.0, 64, 80, priority=2), Request(1, 0.0, 64, 80, priority=0)]
    log = run_requests(requests, LinearTimer(), GpuKnobs(8, 160, priority_routing=True))
    assert log["preemptions"].tolist() == [1, 0]


def test_an_iteration_that_preempts_admits_nobody():
    """Blocks freed by preemption go to running sequences before the queue sees them."""
    requests = [
        Request(0, 0.0, 64, 80, priority=0),
        Request(1, 0.0, 64, 80, priority=2),
        Request(2, 0.1, 16, 5, priority=1),
    ]
    timer = LinearTimer()
    run_requests(requests, timer, GpuKnobs(2, 160, priority_routing=True))
    alone = next(i for i, seen in enumerate(timer.seen[1:], 1) if seen[0] == 1)
    assert timer.seen[alone][2] == ()
    assert timer.seen[alone + 1][2] == ((16, 0),)


def test_a_sequence_that_preempts_itself_ends_the_step():
    """As in vLLM: those admitted after it wait for the next step, although they have blocks."""
    first = [Request(0, 0.0, 1, 20, priority=0), Request(1, 0.0, 14, 20, priority=2)]
    engine = make_engine(first, GpuKnobs(8, 64, priority_routing=True))
    steps = served(engine, 5, arrivals=[Request(2, 0.1, 20, 20, priority=1)])
    assert steps[1] == {0: 1, 1: 1, 2: 20}
    assert steps[3] == {0: 1} and first[1].preemptions == 1
    assert steps[4] == {0: 1, 2: 1}


def test_lowering_kv_capacity_preempts_until_it_fits():
    """A smaller KV pool preempts as soon as a sequence asks for a block, and loses no request."""
    engine = make_engine(burst(8, prompt=100, output=50), GpuKnobs(8, 1600))
    served(engine, 1)
    engine.set_knobs(GpuKnobs(8, 480))
    # 100 tokens are in seven blocks, and the seventh is full after 112.
    served(engine, 12)
    assert engine.pool.used == 56
    served(engine, 1)
    assert engine.pool.used <= 30 and engine.running + len(engine.waiting) == 8
    assert engine.counters.preemptions >= 4


def test_a_prompt_takes_blocks_chunk_by_chunk():
    """Admitted if all of it fits, it holds what is computed; decodes can have the rest."""
    engine = make_engine(burst(2, prompt=64, output=9), GpuKnobs(8, 112), token_budget=64)
    served(engine, 1)
    assert (engine.pool.used, engine.running) == (4, 1)
    engine = make_engine(burst(1, prompt=64, output=9), GpuKnobs(8, 112), token_budget=20)
    for blocks in (2, 3, 4, 4):
        served(engine, 1)
        assert engine.pool.used == blocks


def test_watermark_keeps_blocks_free_at_admission():
    """Admission stops short of the last blocks so that running sequences can grow."""
    timer = LinearTimer()
    settings_ = SchedulerSettings(watermark=0.25)
    run_requests(burst(20, prompt=160, output=2), timer, GpuKnobs(64, 1600), settings_)
    assert len(timer.seen[0][2]) == 7


def test_the_watermark_does_not_keep_out_the_only_request():
    """A request that would leave fewer blocks free than the watermark is admitted alone."""
    engine = make_engine(burst(2, prompt=144, output=2), GpuKnobs(8, 160), watermark=0.5)
    assert served(engine, 1) == [{0: 144}]


def test_a_prompt_longer_than_the_pool_does_not_block_the_queue():
    """What can never fit is rejected, and the next request is served."""
    requests = [Request(0, 0.0, 1000, 5), Request(1, 0.0, 50, 5)]
    log = run_requests(requests, LinearTimer(), GpuKnobs(8, 160))
    assert log["rejected"].tolist() == [True, False]
    assert math.isnan(log["finish_s"][0]) and math.isfinite(log["finish_s"][1])


def test_an_output_longer_than_the_pool_is_lost():
    """A sequence that outgrows the whole pool ends, counted as lost."""
    (row,) = run_requests(burst(1, prompt=100, output=500), LinearTimer(), GpuKnobs(8, 160))
    assert row["lost"] and not row["rejected"] and math.isnan(row["finish_s"])


def test_prefix_cache_shortens_recomputation():
    """With prefix caching a preempted sequence recomputes only what others have overwritten."""

    def recomputed(caching):
        timer = LinearTimer()
        requests = [Request(0, 0.0, 64, 40), Request(1, 0.0, 64, 80)]
        settings_ = SchedulerSettings(prefix_caching=caching)
        run_requests(requests, timer, GpuKnobs(8, 160), settings_)
        return sum(chunk for _, _, chunks, _, _ in timer.seen for chunk, _ in chunks) - 128

    assert recomputed(False) == 64 + 17
    assert 0 < recomputed(True) < recomputed(False)


def test_requests_share_a_prompt_that_runs():
    """A prompt that begins like one in the batch takes blocks and time only for what differs."""
    timer = LinearTimer()
    requests = [
        Request(i, 0.1 * i, 160, 50, prefix_ids=np.array([7, 8, 20 + i]), prefix_tokens=64)
        for i in range(3)
    ]
    log = run_requests(requests, timer, GpuKnobs(8, 4096), SchedulerSettings(prefix_caching=True))
    assert log["cached_tokens"].tolist() == [0, 128, 128]
    chunks = [chunk for *_, chunks, _, _ in timer.seen for chunk in chunks]
    assert chunks == [(160, 0), (32, 128), (32, 128)]


def test_a_repeated_prompt_computes_its_last_block_again():
    """The logits of the last token are needed; a draft wants a block more."""
    for depth, found in ((0, 144), (2, 128)):
        requests = [
            Request(i, 5.0 * i, 160, 2, prefix_ids=np.arange(10), prefix_tokens=16)
            for i in range(2)
        ]
        settings_ = SchedulerSettings(prefix_caching=True)
        knobs = GpuKnobs(8, 4096, speculation_depth=depth)
        log = run_requests(requests, LinearTimer(), knobs, settings_)
        assert log["cached_tokens"].tolist() == [0, found]
