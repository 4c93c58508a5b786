"""Episode statistics are the sums they claim to be, and their intervals cover."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.evaluation.episode_statistics import (
    EpisodeStatistics,
    episode_statistics,
    interval,
    intervals,
)
from jaxserve.seeds import episode_keys
from jaxserve.sim.fast.latency import ttft_quantile
from jaxserve.spaces import make_action
from jaxserve.types import TimeStep
from tests.sizes import EPISODES

ENV = jaxserve.make("adversarial_multitenant")


@functools.cache
def timesteps() -> TimeStep:
    """Busy episodes with a switch in each."""
    policy = StaticPolicy(make_action(batch_cap=64, quantization_tier=1))
    return rollout(ENV, policy, episode_keys(EPISODES, "validation")).timesteps


@functools.cache
def found() -> EpisodeStatistics:
    """Their statistics."""
    return episode_statistics(ENV, timesteps())


def test_counts() -> None:
    """Rates, shares and totals agree with sums over the windows."""
    metrics = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timesteps().metrics)
    good, arrivals = metrics.good.sum((1, 2)), metrics.arrivals.sum((1, 2))
    seconds = int(ENV.horizon) * ENV.window_s
    expected = {
        "objective": np.asarray(timesteps().reward).mean(1),
        "goodput_rps": good / seconds,
        "slo_attainment": good / arrivals,
        "rejected_share": metrics.rejected.sum((1, 2)) / arrivals,
        "cost_usd": metrics.cost_usd.sum(1),
        "preemptions": metrics.preemptions.sum(1),
        "peak_memory_gib": metrics.memory_gib.max(1),
        "oom_restarts": metrics.oom.sum(1),
        "itl_s": (metrics.itl_s * metrics.tokens).sum(1) / metrics.tokens.sum(1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found(), name), values, rtol=1e-4, err_msg=name)
    good_tokens = (metrics.good * np.asarray(ENV.workload.classes.output_tokens)).sum((1, 2))
    np.testing.assert_allclose(
        found().usd_per_1k_good_tokens, 1000.0 * metrics.cost_usd.sum(1) / good_tokens, rtol=1e-4
    )


def test_ttft_is_that_of_all_requests() -> None:
    """Quantiles are of all first tokens of an episode, not means of window quantiles."""
    metrics = timesteps().metrics
    exceeded = np.asarray(metrics.ttft_exceeded).sum(1)
    counts = np.asarray(metrics.first_tokens).sum((1, 2))
    for name, probability in (("ttft_p50_s", 0.5), ("ttft_p99_s", 0.99)):
        expected = [
            float(ttft_quantile(jnp.asarray(row), jnp.asarray(count), probability))
            for row, count in zip(exceeded, counts, strict=True)
        ]
        np.testing.assert_allclose(getattr(found(), name), expected, rtol=1e-4)
    assert (found().ttft_p50_s < found().ttft_p99_s).all()


def test_switches_are_counted_when_they_take_effect() -> None:
    """One change from FP16 to INT8 in every episode."""
    np.testing.assert_array_equal(found().switches, 1.0)


def test_nobody_answered() -> None:
    """Without first tokens there is no latency, and dollars per good token are at their bound."""
    silent = jax.tree.map(jnp.zeros_like, timesteps())
    spent = jnp.full_like(silent.metrics.cost_usd, 0.01)
    metrics = dataclasses.replace(silent.metrics, cost_usd=spent)
    empty = episode_statistics(ENV, dataclasses.replace(silent, metrics=metrics))
    for name in ("ttft_p50_s", "ttft_p99_s", "itl_s"):
        assert np.isnan(getattr(empty, name)).all()
    assert (empty.usd_per_1k_good_tokens == 1000.0).all()
    assert (empty.slo_attainment == 0.0).all()
    assert np.isnan(intervals(empty)["ttft_p50_s"].mean)


def test_interval_is_near_the_t_interval() -> None:
    """On normal data the bootstrap agrees with theory, and says the same at every call."""
    values = np.random.default_rng(1).normal(3.0, 0.5, 60)
    low, high = stats.t.interval(0.95, 59, values.mean(), stats.sem(values))
    result = interval(values)
    assert result == interval(values)
    assert result.mean == pytest.approx(values.mean())
    assert result.low == pytest.approx(low, abs=0.03)
    assert result.high == pytest.approx(high, abs=0.03)


def test_interval_covers() -> None:
    """Of skewed samples of 20 episodes about 95 % of the intervals hold the true mean."""
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        result = interval(generator.gamma(4.0, 0.25, 20))
        hits += result.low <= 1.0 <= result.high
    assert 174 <= hits <= 199


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.3, 0.3]])
def test_interval_without_spread(values: list[float]) -> None:
    """One episode, or equal ones, give the mean itself."""
    result = interval(np.array(values))
    assert result.low == result.mean == result.high == pytest.approx(0.3)


def test_interval_leaves_nan_out() -> None:
    """Episodes without a value do not spoil the mean of the others."""
    assert interval(np.array([1.0, np.nan, 3.0])).mean == 2.0
    assert np.isnan(interval(np.array([np.nan])).low)
