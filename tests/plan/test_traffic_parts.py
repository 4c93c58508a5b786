"""The parts of the traffic that a plan plays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxserve.plan import played_traffic, traffic_parts
from jaxserve.plan.attainment import Attained, missed
from jaxserve.plan.inputs import PlanObjective
from jaxserve.plan.traffic_parts import MOST_PLAYED, PlayedTraffic, busiest, traffic_to_play
from jaxserve.sim.reference.request import LOG_DTYPE
from jaxserve.sim.traffic.prompt_blocks import PromptBlocks
from jaxserve.sim.traffic.traces import Trace


def _trace(count: int, seconds: float, seed: int = 0) -> Trace:
    """Arrivals whose rate rises to the tenth fold for a hundredth of the time, forty times."""
    rng = np.random.default_rng(seed)
    arrival_s = rng.uniform(0, seconds, count)
    crowded = rng.random(count) < 0.09
    times = rng.integers(0, 40, crowded.sum()) + 0.6 + 0.01 * rng.random(crowded.sum())
    arrival_s[crowded] = seconds * times / 40
    arrival_s.sort()
    prompt = rng.integers(100, 2000, count).astype(np.int32)
    outputs = rng.integers(20, 80, count).astype(np.int32)
    return Trace(arrival_s - arrival_s[0], prompt, outputs)


def _logs(traffic: PlayedTraffic, late: float) -> list[np.ndarray]:
    """Logs in which requests of busy minutes miss their objective, and a share of the others."""
    logs = []
    for part in traffic.parts:
        log = np.zeros(len(part.trace), LOG_DTYPE)
        log["arrival_s"] = part.trace.arrival_s
        log["output_tokens"] = part.trace.output_tokens
        chance = np.modf(part.trace.prompt_tokens * 0.6180339)[0]
        log["ttft_s"] = np.where(part.busy | (chance < late), 2.0, 0.1)
        log["finish_s"] = log["arrival_s"] + 3.0
        logs.append(log)
    return logs


def test_the_busiest_parts_are_disjoint() -> None:
    long = _trace(7200, 3600)
    parts = busiest(long)
    requests = [set(range(part.start, part.stop)) for part in parts]
    assert len(parts) == 3 and len(set.union(*requests)) == sum(map(len, requests))
    assert len(set.union(*requests)) < 0.3 * len(long)
    assert busiest(_trace(120, 60)) == [slice(0, 120)]


def test_short_traffic_is_played_whole() -> None:
    trace = _trace(5000, 3600)
    whole, screen = traffic_to_play(trace, 0.99)
    (part,) = whole.parts
    assert len(part.trace) == whole.requests == len(trace) and whole.description is None
    assert screen.bound and sum(len(each.trace) for each in screen.parts) < len(trace)


@pytest.mark.parametrize("count", [5_000, MOST_PLAYED + 1])
def test_prompts_before_a_part_are_remembered(count: int) -> None:
    """A part has the requests just before it where the traffic tells shared prefixes."""
    trace = _trace(count, 36_000)
    assert all(part.before is None for part in traffic_to_play(trace, 0.99)[1].parts)
    names = np.arange(count)
    shared = dataclasses.replace(trace, blocks=PromptBlocks(2048, names, np.arange(count + 1)))
    for part in traffic_to_play(shared, 0.99)[1].parts:
        assert part.trace.blocks is not None
        first = int(part.trace.blocks.names[0])
        if part.before is None:
            assert first == 0
        else:
            assert part.before.blocks is not None and part.before.blocks.names[-1] == first - 1


def test_a_sample_stands_for_all_requests() -> None:
    trace = _trace(6 * MOST_PLAYED, 14 * 86_400.0)
    for traffic in traffic_to_play(trace, 0.99):
        played = sum(len(part.trace) for part in traffic.parts)
        assert played < 0.5 * len(trace)
        stood_for = sum(weight.sum() for weight in traffic.weights)
        if traffic.bound:  # the busiest windows alone
            assert 0.1 * len(trace) < stood_for < 0.5 * len(trace)
        else:
            assert stood_for == pytest.approx(len(trace), rel=0.02)
        assert traffic.strata is not None and traffic.description is not None
    # A part begins before its window: these requests are played and not counted.
    assert sum((~part.counted).any() for part in traffic.parts) > len(traffic.parts) // 2


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 0.01])
def test_a_sample_tells_the_share_of_misses(late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interval has the share over the whole traffic in at least 9 of 10 traces; the upper bound
    that screens is below the share in at most one."""
    inside = below = 0
    for seed in range(10):
        trace = _trace(6 * MOST_PLAYED, 14 * 86_400.0, seed)
        sampled, screened = traffic_to_play(trace, 0.99)
        with monkeypatch.context() as patched:
            patched.setattr(traffic_parts, "MOST_PLAYED", len(trace))
            whole, _ = traffic_to_play(trace, 0.99)
        objective = PlanObjective(1.0, 0.1)
        true, found, bound = (
            Attained.of([missed(log, objective) for log in _logs(each, late)], each)
            for each in (whole, sampled, screened)
        )
        share = sampled.shared(1, 4)
        of_share = Attained.of([missed(log, objective) for log in _logs(share, late)], share)
        assert of_share.sampling == pytest.approx(found.sampling, rel=0.5, abs=1e-3)
        assert found.sampling > 0.0 or found.attainment == pytest.approx(true.attainment, abs=1e-3)
        inside += abs(found.attainment - true.attainment) <= found.chance
        below += bound.attainment < true.attainment
    assert inside >= 9 and below <= 1


def test_a_slice_of_blocks_is_that_of_its_mask() -> None:
    blocks = PromptBlocks(16, np.arange(6), np.array([0, 2, 2, 5, 6]))
    part, masked = blocks.chosen(slice(1, 3)), blocks.chosen(np.array([False, True, True, False]))
    assert (part.names == masked.names).all() and (part.starts == masked.starts).all()


@pytest.mark.parametrize(("busy_s", "cut"), [(0.0, False), (4800.0, True)])
def test_queues_older_than_what_is_played_are_said(busy_s: float, cut: bool) -> None:
    """Eight days at two requests a second, and at four for eighty minutes of them."""
    rng = np.random.default_rng(0)
    steady = rng.uniform(0, 691_200, 1_382_400)
    more = rng.uniform(90_000, 90_000 + busy_s, int(2 * busy_s))
    arrival_s = np.sort(np.concatenate([steady, more]))
    lengths = [np.full(len(arrival_s), tokens, np.int32) for tokens in (500, 50)]
    sample, _ = traffic_to_play(Trace(arrival_s - arrival_s[0], *lengths), 0.99)
    assert (sample.cut > 0) == cut
    assert sample.description is not None
    assert ("at most 15 minutes" in sample.description) == cut


def test_the_page_names_the_sizes() -> None:
    """docs/plan.md has the numbers by which traffic is sampled."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert f"more than {MOST_PLAYED:,} requests" in text
    assert f"up to {traffic_parts._REMEMBERED:,} requests before it" in text
    assert f"or {traffic_parts._WINDOW_REQUESTS} requests" in text
    assert f"of {traffic_parts._WINDOW_S / 60:.0f} minutes or" in text.replace("five", "5")
    assert f"{played_traffic._PLAYED_REQUESTS:,} requests of a mean window" in text
    assert (traffic_parts._LEAD, traffic_parts._MOST_LEAD) == (0.5, 3.0)
    assert "half a window at least, three windows at most" in text
