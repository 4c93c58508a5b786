"""Runs on a sample of long traffic, beside runs on all of it."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.plan import traffic_parts
from jaxserve.plan.capacity import DEFAULT_BUDGET, DEFAULT_CAP
from jaxserve.plan.inputs import PlanInputs, PlanObjective
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment, Play, Player
from jaxserve.sim.traffic.traces import Trace

OBJECTIVE = PlanObjective(2.0, 0.1, 0.99)


def _weeks(seed: int) -> Trace:
    """Two weeks whose rate swings by the day, with an hour of long outputs each day that fill the
    KV memory until queues have grown for many minutes."""
    rng = np.random.default_rng(seed)
    seconds = 14 * 86_400
    time_s = np.arange(seconds)
    long_s = (time_s % 86_400 - 36_000) // 3600 == 0
    rate = 0.5 * (1.0 + 0.6 * np.sin(2 * np.pi * time_s / 86_400)) + 0.1 * long_s
    counts = rng.poisson(rate)
    second = np.repeat(time_s, counts)
    arrival_s = np.sort(second + rng.random(len(second)))
    long = long_s[arrival_s.astype(int)]
    prompt = rng.lognormal(7.0, 0.6, len(second)) * np.where(long, 2.0, 1.0)
    output = rng.lognormal(5.0, 0.6, len(second)) * np.where(long, 4.0, 1.0)
    whole = (np.clip(each, 1, 16_000).astype(np.int32) for each in (prompt, output))
    return Trace(arrival_s - arrival_s[0], *whole)


@pytest.mark.slow
def test_a_sample_sees_queues_that_grow_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of deployments that suffice, that nearly do and that do not, the sample says the same as all
    requests; its interval has their attainment where the answer is close."""
    inputs = PlanInputs(
        "llama-3.1-8b", _weeks(0), "weeks", OBJECTIVE, prices={"l40s-48gb": 1.1}, max_gpus=2,
        formats=("bf16",), kv_formats=("bf16",),
    )  # fmt: skip
    options, _ = engine_options(inputs)
    option = next(each for each in options if each.tensor_parallel == 1)
    deployment = PlannedDeployment(option, 1, DEFAULT_CAP, DEFAULT_BUDGET)
    plays = [Play(deployment, slowdown=factor) for factor in (1.0, 1.3, 1.6)]
    sampled = Player(inputs).play(plays)
    assert all(each.sampling > 0.0 or each.attainment == 1.0 for each in sampled)
    monkeypatch.setattr(traffic_parts, "MOST_PLAYED", len(inputs.trace))
    whole = Player(inputs).play(plays)
    verdicts = [each.attainment >= 0.99 for each in whole]
    assert 0 < sum(verdicts) < len(verdicts)
    for expected, found in zip(whole, sampled, strict=True):
        close = abs(expected.attainment - 0.99) < 0.003
        assert close or (found.attainment >= 0.99) == (expected.attainment >= 0.99)
        assert found.attainment - expected.attainment < found.chance + 0.02
