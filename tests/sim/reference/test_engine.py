"""One engine of the reference simulator: scheduling, KV blocks, speculation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from tests.sim.reference.doubles import ACCEPTANCE, LinearTimer


def burst(count, prompt=100, output=20, gap_s=0.0, **fields):
    return [Request(i, i * gap_s, prompt, output, **fields) for i in range(count)]


REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 150), st.integers(1, 40), st.integers(0, 2)),
    min_size=1,
    max_size=14,
)


def make(rows):
    return [
        Request(i, start * 0.01, prompt, output, priority=priority)
        for i, (start, prompt, output, priority) in enumerate(sorted(rows))
    ]


def naive_run(requests, timer, knobs, config):
    """The same scheduler written without aggregates: every sequence, every block, every step."""
    size, capacity = config.block_tokens, knobs.kv_capacity_tokens // config.block_tokens
    order = {True: lambda r: (r.priority, r.arrival_s, r.id), False: lambda r: (r.arrival_s, r.id)}
    order = order[knobs.priority_routing]
    upcoming = sorted(requests, key=lambda r: (r.arrival_s, r.id))
    waiting, running = [], []  # running: dicts in admission order
    made = {r.id: 0 for r in requests}
    first, finish, now = {}, {}, 0.0

    def used():
        return sum(sequence["blocks"] for sequence in running)

    while upcoming or waiting or running:
        while upcoming and upcoming[0].arrival_s <= now:
            waiting.append(upcoming.pop(0))
        waiting.sort(key=order)
        parts, preempted, room, i = [], False, config.token_budget, 0
        while i < len(running) and room > 0:
            sequence = running[i]
            chunk = min(room, sequence["target"] - sequence["done"])
            needed = -(-(sequence["done"] + chunk) // size)
            while sequence in running and used() - sequence["blocks"] + needed > capacity:
                victim = running[-1]
                if knobs.priority_routing:
                    victim = max(running, key=lambda s: order(s["request"]))
                i -= running.index(victim) < i
                room += sum(part for served, part in parts if served is victim)
                parts = [part for part in parts if part[0] is not victim]
                running.remove(victim)
                waiting.append(victim["request"])
                preempted = True
            if sequence not in running:
                break
            sequence["blocks"] = needed
            parts.append((sequence, chunk))
            room -= chunk
            i += 1
        waiting.sort(key=order)
        while waiting and not preempted and room > 0 and len(running) < knobs.batch_cap:
            request = waiting[0]
            target = request.prompt_tokens + made[request.id]
            if -(-target // size) > capacity:
                waiting.pop(0)
                continue
            if used() + -(-target // size) > capacity:
                break
            waiting.pop(0)
            chunk = min(room, target)
            running.append(
                {"request": request, "target": target, "done": 0, "blocks": -(-chunk // size)}
            )
            parts.append((running[-1], chunk))
            room -= chunk
        if not parts:
            if preempted:
                continue
            if not upcoming:
                break
            now = upcoming[0].arrival_s
            continue
        decoding = [sequence for sequence, _ in parts if sequence.get("decodes")]
        now += timer.iteration_s(
            decode_seqs=len(decoding),
            kv_tokens=sum(sequence["target"] for sequence in decoding),
            chunks=tuple((c, s["done"]) for s, c in parts if not s.get("decodes")),
        )
        for sequence, chunk in parts:
            sequence["done"] += chunk
            if sequence["done"] < sequence["target"]:
                continue
            # A token is sampled; its KV is what the next step computes.
            request = sequence["request"]
            sequence |= {"target": sequence["target"] + 1, "decodes": True}
            made[request.id] += 1
            first.setdefault(request.id, now)
            if made[request.id] == request.output_tokens:
                finish[request.id] = now
                running.remove(sequence)
    return first, finish


@settings(max_examples=200)
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


@settings(max_examples=60)
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


def served(engine, steps, arrivals=()):
    """{request: tokens} of each of the next steps; ``arrivals`` come after the first."""
    seen = []
    for _ in range(steps):
        assert engine.start(0.0) is not None
        seen.append({request.id: tokens for request, tokens in engine.batch})
        engine.finish(0.0)
        for request in arrivals:
            engine.waiting.push(request)
        arrivals = ()
    return seen


def make_engine(requests, knobs, **settings_):
    engine = Engine(LinearTimer(), knobs, SchedulerSettings(**settings_), np.random.default_rng(0))
    for request in requests:
        engine.waiting.push(request)
    return engine


def test_a_sequence_that_preempts_itself_ends_the_step():
    """As in vLLM: those admitted after it wait for the next step, although they have blocks."""
    first = [Request(0, 0.0, 1, 20, priority=0), Request(1, 0.0, 14, 20, priority=2)]
    engine = make_engine(first, GpuKnobs(8, 64, priority_routing=True))
    steps = served(engine, 5, arrivals=[Request(2, 0.1, 20, 20, priority=1)])
    assert steps[1] == {0: 1, 1: 1, 2: 20}
    assert steps[3] == {0: 1} and first[1].preemptions == 1
    assert steps[4] == {0: 1, 2: 1}


def test_decodes_beyond_the_token_budget_wait():
    """Those admitted last; nobody is admitted meanwhile."""
    engine = make_engine(burst(6, prompt=4, output=9), GpuKnobs(8, 10_000), token_budget=12)
    served(engine, 1)
    assert served(engine, 1) == [{0: 1, 1: 1, 2: 1, 3: 4, 4: 4, 5: 1}]
    engine.settings = SchedulerSettings(token_budget=2)
    assert served(engine, 2) == [{0: 1, 1: 1}, {0: 1, 1: 1}]


def test_a_prompt_takes_blocks_chunk_by_chunk():
    """Admitted if all of it fits, it holds what is computed; decodes can have the rest."""
    engine = make_engine(burst(2, prompt=64, output=9), GpuKnobs(8, 112), token_budget=64)
    served(engine, 1)
    assert (engine.pool.used, engine.running) == (4, 1)
    engine = make_engine(burst(1, prompt=64, output=9), GpuKnobs(8, 112), token_budget=20)
    for blocks in (2, 3, 4, 4):
        served(engine, 1)
        assert engine.pool.used == blocks


def test_the_watermark_does_not_keep_out_the_only_request():
    """A request that would leave fewer blocks free than the watermark is admitted alone."""
    engine = make_engine(burst(2, prompt=144, output=2), GpuKnobs(8, 160), watermark=0.5)
    assert served(engine, 1) == [{0: 144}]


def test_preempted_requests_return_in_the_order_of_admission():
    """First come first served: also where that is not the order in which they arrived."""
    queue = WaitingQueue()
    for i in range(4):
        queue.push(Request(i, float(i), 10, 1))
    late, early = Request(9, 9.0, 10, 1), Request(8, 8.0, 10, 1)
    queue.put_back(early)
    queue.put_back(late)
    assert [request.id for request in queue.drain()] == [9, 8, 0, 1, 2, 3]


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


@settings(deadline=None, max_examples=60)
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


def test_same_seed_same_log_other_seed_other_log():
    """Speculation is the only randomness of an engine, and it comes from the seed."""

    def run(seed):
        requests = burst(20, acceptance=ACCEPTANCE)
        return run_requests(requests, LinearTimer(), GpuKnobs(8, 10_000, 3), seed=seed)

    assert run(1).tobytes() == run(1).tobytes()
    assert np.any(run(1)["finish_s"] != run(2)["finish_s"])


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


def test_watermark_keeps_blocks_free_at_admission():
    """Admission stops short of the last blocks so that running sequences can grow."""
    timer = LinearTimer()
    settings_ = SchedulerSettings(watermark=0.25)
    run_requests(burst(20, prompt=160, output=2), timer, GpuKnobs(64, 1600), settings_)
    assert len(timer.seen[0][2]) == 7


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
    ],
)
def test_bad_input_is_named(build, message):
    """Errors name the field that is wrong."""
    with pytest.raises(InputError, match=message):
        build()


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
