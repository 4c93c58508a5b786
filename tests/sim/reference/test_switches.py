"""The reference deployment when GPUs change: new tiers, new roles, split pools, crashes."""

import itertools

import numpy as np
import pytest

from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs, ReferenceSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.sim.reference.simulator_inputs import ROOMY, LinearTimer, RowLimit, poisson, windows


def test_tier_change_rolls_over_one_gpu_at_a_time():
    """Half of two GPUs is away for twice the restart time; sequences are recomputed, none lost."""
    config = ReferenceSettings(num_gpus=2, restart_s=2.0)
    timer = LinearTimer()
    simulator = ReferenceSimulator(config, timer, ROOMY, poisson(30, 20, output=(150, 200)))
    windows(simulator, ROOMY, 5)
    fast = Knobs(64, 100_000, tier=1)
    stats = windows(simulator, fast, 8)
    away_s = sum(2 * (1 - window.capacity) for window in stats)
    assert away_s == pytest.approx(4.0, abs=0.1)
    assert min(window.capacity for window in stats) == pytest.approx(0.5)
    assert sum(window.preemptions for window in stats) > 20
    assert sum(window.lost for window in stats) == 0
    tiers = np.concatenate([window.completions["tier"] for window in stats])
    assert set(tiers) == {0, 1}
    assert {tier for *_, tier in timer.seen[-50:]} == {1}
    recomputed = [w.completions for w in stats if np.any(w.completions["preemptions"] > 0)]
    assert recomputed
    # The first GPU is back after 2 s, and from then on half of them have the new tier.
    assert [window.tier for window in stats] == [0] * 2 + [1] * 6


def test_a_single_gpu_is_out_of_service_while_it_restarts():
    """With one GPU a tier change is an outage, after which the queue is served."""
    simulator = ReferenceSimulator(
        ReferenceSettings(restart_s=3.0), LinearTimer(), ROOMY, poisson(5, 10)
    )
    windows(simulator, ROOMY, 2)
    stats = windows(simulator, Knobs(64, 100_000, tier=2), 20)
    assert [round(w.capacity, 1) for w in stats[:4]] == [0.0, 0.0, 0.0, 1.0]
    assert stats[1].tokens == stats[2].tokens == 0
    assert stats[-1].waiting == stats[-1].running == 0


def test_flapping_tiers_finish_each_roll_and_lose_capacity():
    """A roll that has begun is completed, so changing the tier every window mostly restarts."""
    config = ReferenceSettings(num_gpus=2, restart_s=2.0)
    simulator = ReferenceSimulator(config, LinearTimer(), ROOMY, poisson(10, 30))
    plan = itertools.cycle([Knobs(64, 100_000, tier=1), ROOMY])
    capacity = [simulator.advance(i + 1.0, next(plan)).capacity for i in range(24)]
    assert np.mean(capacity) == pytest.approx(0.5, abs=0.1)


def test_split_change_takes_away_only_the_gpus_that_change():
    """One of three GPUs becomes a prefill GPU: one outage of the re-role time."""
    config = ReferenceSettings(num_gpus=3, rerole_s=1.5, restart_s=50.0)
    timer = LinearTimer()
    simulator = ReferenceSimulator(config, timer, ROOMY, poisson(20, 30))
    windows(simulator, ROOMY, 3)
    split = Knobs(64, 100_000, prefill_gpus=1)
    stats = windows(simulator, split, 5)
    assert sum(3 * (1 - window.capacity) for window in stats) == pytest.approx(1.5, abs=0.1)
    # For most of the second window the GPU is away; the split begins when it is back.
    assert [window.prefill_gpus for window in stats] == [0, 0, 1, 1, 1]
    seen = len(timer.seen)
    windows(simulator, split, 3)
    assert not any(decoding and chunks for decoding, _, chunks, _, _ in timer.seen[seen:])
    windows(simulator, ROOMY, 5)
    seen = len(timer.seen)
    windows(simulator, ROOMY, 3)
    assert any(decoding and chunks for decoding, _, chunks, _, _ in timer.seen[seen:])


def test_split_pools_isolate_decoding_from_prefill():
    """No iteration mixes the two, and long prompts no longer stretch a neighbour's tokens."""

    def run(prefill_gpus):
        knobs = Knobs(64, 200_000, prefill_gpus=prefill_gpus)
        timer = LinearTimer(token_s=0.00005)
        requests = poisson(6, 60, prompt=(2000, 6000), output=(60, 61))
        simulator = ReferenceSimulator(ReferenceSettings(num_gpus=2), timer, knobs, requests)
        windows(simulator, knobs, 120)
        mixed = sum(bool(b and chunks) for b, _, chunks, _, _ in timer.seen)
        return mixed, simulator.log()

    mixed, colocated = run(0)
    assert mixed > 100
    mixed, split = run(1)
    assert mixed == 0
    assert np.percentile(split["tpot_s"], 99) < 0.6 * np.percentile(colocated["tpot_s"], 50)
    assert split["ttft_s"].mean() > colocated["ttft_s"].mean()


def test_kv_moves_at_link_bandwidth():
    """The first decode step waits for the transfer of the prompt's KV."""
    config = ReferenceSettings(num_gpus=2, kv_bytes_per_token=1e5, link_bytes_per_s=1e8)
    knobs = Knobs(8, 10_000, prefill_gpus=1)
    simulator = ReferenceSimulator(
        config, LinearTimer(0.01, 0.0), knobs, [Request(0, 0.0, 1000, 11)]
    )
    windows(simulator, knobs, 3)
    (row,) = simulator.log()
    assert row["ttft_s"] == pytest.approx(0.01)
    assert row["finish_s"] - row["first_token_s"] == pytest.approx(1.0 + 10 * 0.01)


def test_a_decode_pool_without_room_holds_prefill_back():
    """KV that nobody can take stays on the prefill GPU, which then stops admitting."""
    config = ReferenceSettings(num_gpus=2)
    knobs = Knobs(2, 1600, prefill_gpus=1)
    requests = [Request(i, 0.0, 400, 300) for i in range(12)]
    simulator = ReferenceSimulator(config, LinearTimer(), knobs, requests)
    first = simulator.advance(1.0, knobs)
    assert len(first.first_tokens) < 9
    assert first.running + first.waiting == 12
    stats = windows(simulator, knobs, 120)
    assert sum(w.completed for w in stats) == 12


@pytest.mark.parametrize("tier_of_split", [0, 1])
def test_transfers_survive_restarts_of_either_end(tier_of_split):
    """KV in transfer is sent again or recomputed when a GPU restarts, and its blocks return."""
    config = ReferenceSettings(num_gpus=2, restart_s=0.5, rerole_s=0.5, link_bytes_per_s=1e8)
    split = Knobs(64, 20_000, prefill_gpus=1)
    requests = [Request(i, 0.0, 100, 30) for i in range(10)]
    simulator = ReferenceSimulator(config, LinearTimer(), split, requests)
    assert simulator.advance(0.2, split).running == 10
    # A new tier restarts both ends; a new split only the prefill GPU, while its KV is moving.
    then = Knobs(64, 20_000, tier=tier_of_split, prefill_gpus=1 if tier_of_split else 0)
    windows(simulator, then, 1)
    stats = windows(simulator, then, 10)[-1]
    assert np.all(np.isfinite(simulator.log()["finish_s"]))
    assert stats.kv_occupancy == 0.0


def test_kv_on_its_way_to_a_crashed_gpu_is_sent_again():
    """A decode GPU that runs out of memory loses its batch, not the KV still being sent to it."""
    config = ReferenceSettings(num_gpus=2, oom_restart_s=0.5, link_bytes_per_s=1e8)
    split = Knobs(64, 20_000, prefill_gpus=1)
    requests = [Request(i, 0.02 * i, 100, 200) for i in range(9)]
    simulator = ReferenceSimulator(config, LinearTimer(), split, requests, memory=RowLimit(4))
    stats = windows(simulator, split, 20)
    log = simulator.log()
    assert log["lost"].sum() == 5
    assert np.isfinite(log["finish_s"]).sum() == 4
    assert stats[-1].kv_occupancy == 0.0


def test_kv_that_fits_no_decoding_gpu_does_not_block_the_others():
    """A sequence whose next step is longer than a decoding GPU's pool is lost, the rest go on."""
    knobs = Knobs(8, 320, prefill_gpus=1)
    requests = [Request(0, 0.0, 320, 5), Request(1, 0.0, 100, 5)]
    simulator = ReferenceSimulator(ReferenceSettings(num_gpus=2), LinearTimer(), knobs, requests)
    stats = windows(simulator, knobs, 3)
    assert simulator.log()["lost"].tolist() == [True, False]
    assert np.isfinite(simulator.log()["finish_s"][1])
    assert stats[-1].kv_occupancy == 0.0 and stats[-1].running == 0
    assert sum(window.oom_restarts for window in stats) == 0


def test_out_of_memory_loses_what_was_running():
    """The crash drops the batch, keeps the queue, and costs the restart time."""
    config = ReferenceSettings(oom_restart_s=2.0)
    requests = [Request(i, 0.01 * i, 50, 400) for i in range(20)]
    simulator = ReferenceSimulator(
        config, LinearTimer(), Knobs(8, 10_000), requests, memory=RowLimit(16)
    )
    before = simulator.advance(1.0, Knobs(8, 10_000))
    assert (before.running, before.lost) == (8, 0)
    crash = simulator.advance(2.0, Knobs(8, 10_000, speculation_depth=4))
    assert crash.lost == 8 and crash.running == 0 and crash.waiting == 12
    assert (before.oom_restarts, crash.oom_restarts) == (0, 1)
    assert crash.peak_memory_bytes == 1.1
    after = windows(simulator, Knobs(8, 10_000), 20)
    assert after[0].capacity < 0.01
    log = simulator.log()
    assert log["lost"].sum() == 8 and np.isfinite(log["finish_s"]).sum() == 12
