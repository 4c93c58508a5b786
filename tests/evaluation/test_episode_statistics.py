"""Episode statistics are the sums they claim to be, and their intervals cover."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.evaluation.episode_statistics import (
    EpisodeStatistics,
    EpisodeSums,
    episode_statistics,
    interval,
    intervals,
    statistics_of,
    worst_class,
    worst_hour,
)
from jaxserve.seeds import episode_keys
from jaxserve.sim.fast.latency import TTFT_EDGES_S, ttft_quantile
from jaxserve.spaces import make_action
from jaxserve.types import TimeStep, WindowMetrics
from tests.sizes import EPISODES

ENV = jaxserve.make("adversarial_multitenant")


@functools.cache
def played() -> Rollout:
    """Busy episodes with a switch in each."""
    policy = StaticPolicy(make_action(batch_cap=64, quantization_tier=1))
    return rollout(ENV, policy, episode_keys(EPISODES, "validation"))


def timesteps() -> TimeStep:
    """Their windows."""
    return played().timesteps


@functools.cache
def found() -> EpisodeStatistics:
    """Their statistics."""
    return episode_statistics(ENV, played())


def float64(metrics: WindowMetrics) -> WindowMetrics:
    """With as many digits as NumPy has."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), metrics)


def test_counts() -> None:
    """Rates, shares and totals of an episode agree with sums over its windows."""
    metrics = float64(timesteps().metrics)
    good, arrivals = metrics.good.sum((1, 2)), metrics.arrivals.sum((1, 2))
    undecided = (metrics.waiting + metrics.running - metrics.overdue)[:, -1].sum(1)
    seconds = int(ENV.horizon) * ENV.window_s
    expected = {
        "objective": np.asarray(timesteps().reward).mean(1),
        "goodput_rps": good / seconds,
        "slo_attainment": good / (arrivals - undecided),
        "undecided_share": undecided / arrivals,
        "rejected_share": metrics.rejected.sum((1, 2)) / arrivals,
        "cost_usd": metrics.cost_usd.sum(1),
        "usd_per_hour": metrics.cost_usd.sum(1) * 3600.0 / seconds,
        "usd_per_month": metrics.cost_usd.sum(1) * 3600.0 / seconds * 730.0,
        "preemptions": metrics.preemptions.sum(1),
        "peak_memory_gib": metrics.memory_gib.max(1),
        "oom_restarts": metrics.oom.sum(1),
        "itl_s": (metrics.itl_s * metrics.tokens).sum(1) / metrics.tokens.sum(1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            getattr(found(), name), values, rtol=1e-4, atol=1e-6, err_msg=name
        )
    good_tokens = (metrics.good * np.asarray(ENV.workload.classes.output_tokens)).sum((1, 2))
    np.testing.assert_allclose(
        found().usd_per_1k_good_tokens, 1000.0 * metrics.cost_usd.sum(1) / good_tokens, rtol=1e-4
    )


def test_a_run_is_one_long_episode() -> None:
    """Its shares, rates and prices are ratios of sums over all episodes, its quantiles those of
    all first tokens, and neither is the mean over the episodes."""
    metrics, run = float64(timesteps().metrics), intervals(found())
    good, arrivals = metrics.good.sum(), metrics.arrivals.sum()
    undecided = (metrics.waiting + metrics.running - metrics.overdue)[:, -1].sum()
    good_tokens = (metrics.good * np.asarray(ENV.workload.classes.output_tokens)).sum()
    exceeded = jnp.asarray(metrics.ttft_exceeded.sum((0, 1)), jnp.float32)
    count = jnp.float32(metrics.first_tokens.sum())
    expected = {
        "slo_attainment": good / (arrivals - undecided),
        "undecided_share": undecided / arrivals,
        "itl_s": (metrics.itl_s * metrics.tokens).sum() / metrics.tokens.sum(),
        "usd_per_1k_good_tokens": 1000.0 * metrics.cost_usd.sum() / good_tokens,
        "ttft_p50_s": float(ttft_quantile(exceeded, count, 0.5)),
        "ttft_p99_s": float(ttft_quantile(exceeded, count, 0.99)),
    }
    for name, value in expected.items():
        assert run[name].mean == pytest.approx(value, rel=1e-4), name
        assert run[name].low < run[name].mean < run[name].high, name
        assert run[name].mean != pytest.approx(getattr(found(), name).mean(), rel=1e-4), name


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


def test_changes_are_those_of_any_knob_from_window_to_window() -> None:
    """Two knobs turned at once are two changes, the first window is none, and a setting that holds
    never changes."""
    np.testing.assert_array_equal(found().changes_per_minute, 0.0)
    caps, tiers = (
        np.array(getattr(played().actions, name)) for name in ("batch_cap", "quantization_tier")
    )
    caps[:, 10:], caps[:, 20:], tiers[:, 20:] = 32, 48, 2
    turned = dataclasses.replace(played().actions, batch_cap=caps, quantization_tier=tiers)
    changed = episode_statistics(ENV, dataclasses.replace(played(), actions=turned))
    minutes = int(ENV.horizon) * ENV.window_s / 60.0
    np.testing.assert_allclose(changed.changes_per_minute, 3.0 / minutes)
    assert intervals(changed)["changes_per_minute"].mean == pytest.approx(3.0 / minutes)


def silent(**metrics: float) -> Rollout:
    """The same episodes with nothing in them, but for some metrics of every window."""
    nothing = jax.tree.map(jnp.zeros_like, timesteps())
    values = {
        name: jnp.full_like(getattr(nothing.metrics, name), value)
        for name, value in metrics.items()
    }
    metrics = dataclasses.replace(nothing.metrics, **values)
    return dataclasses.replace(played(), timesteps=dataclasses.replace(nothing, metrics=metrics))


def test_nobody_answered() -> None:
    """Without requests there is no latency, no share and no price of a good token; without good
    ones among those that ended the share is 0."""
    empty = episode_statistics(ENV, silent(cost_usd=0.01))
    run = intervals(empty)
    for name in ("ttft_p50_s", "ttft_p99_s", "itl_s", "slo_attainment", "usd_per_1k_good_tokens"):
        assert np.isnan(getattr(empty, name)).all() and np.isnan(run[name].mean), name
    assert worst_class(empty.sums, {"all": slice(None)}) is None
    assert np.isnan(worst_hour(empty.sums).slo_attainment)
    rejected = episode_statistics(ENV, silent(arrivals=1.0, rejected=1.0))
    assert (rejected.slo_attainment == 0.0).all() and (rejected.undecided_share == 0.0).all()
    waiting = episode_statistics(ENV, silent(waiting=1.0, overdue=0.25))
    assert np.isnan(waiting.slo_attainment).all()


def some_sums(seconds: float, **columns: Sequence[float]) -> EpisodeSums:
    """Episodes of one traffic class with 100 first tokens each, all late by their ``p99``."""
    count = len(next(iter(columns.values())))
    values = {name: np.zeros(count) for name in EpisodeSums.__dataclass_fields__}
    values |= {name: np.zeros((count, 1)) for name in ("arrivals", "decided", "good")}
    values |= {"seconds": np.full(count, seconds), "first_tokens": np.full(count, 100.0)}
    values["ttft_exceeded"] = 100.0 * np.greater.outer(columns.pop("ttft_s"), TTFT_EDGES_S)
    for name, column in columns.items():
        values[name] = np.reshape(column, values[name].shape)
    return EpisodeSums(**values)


def test_the_worst_hour() -> None:
    """Episodes are put together in their order to about an hour each, requests before shares; with
    less than two hours of traffic the worst episode is named."""
    good, ttft_s = [10.0, 0.0, 8.0, 8.0, 10.0, 4.0], [0.1, 0.1, 0.1, 5.0, 0.1, 0.1]
    columns = {"good": good, "decided": [10.0, 2.0, 10.0, 10.0, 10.0, 10.0], "ttft_s": ttft_s}
    hours = worst_hour(some_sums(1800.0, **columns))
    assert (hours.span, hours.slo_attainment) == ("hour", pytest.approx(14.0 / 20.0))
    assert hours.ttft_p99_s > 4.0
    episodes = worst_hour(some_sums(1100.0, **columns))
    assert (episodes.span, episodes.slo_attainment) == ("episode", 0.0)
    # A third of an hour each: of ten, the first hour has four and the others three.
    thirds = {name: values[:4] + values for name, values in columns.items()}
    found = worst_hour(some_sums(1200.0, **thirds))
    assert (found.span, found.slo_attainment) == ("hour", pytest.approx(22.0 / 30.0))


def test_the_worst_class() -> None:
    """The classes of a kind count together, over all episodes, and kinds without requests not."""
    sums = dataclasses.replace(
        some_sums(100.0, ttft_s=[0.1, 0.1]),
        good=np.array([[9.0, 1.0, 4.0, 0.0], [9.0, 0.0, 4.0, 0.0]]),
        decided=np.array([[10.0, 2.0, 5.0, 0.0], [10.0, 0.0, 5.0, 0.0]]),
    )
    kinds = {"voice": slice(0, 2), "code": slice(2, 3), "none": slice(3, 4)}
    assert worst_class(sums, kinds) == ("code", pytest.approx(0.8))
    kinds["short"] = slice(1, 2)
    assert worst_class(sums, kinds) == ("short", pytest.approx(0.5))


def test_few_good_tokens_have_a_price() -> None:
    """Where they all come from one of the episodes, resamples without any leave the price without
    an upper bound; fewer than one token have none."""
    sums = dataclasses.replace(
        some_sums(100.0, ttft_s=[0.1] * 8),
        cost_usd=np.full(8, 0.5),
        good_tokens=np.array([1000.0, *[0.0] * 7]),
    )
    price = intervals(statistics_of(sums))["usd_per_1k_good_tokens"]
    assert price.mean == pytest.approx(4.0)
    assert price.low < 4.0 and price.high == np.inf
    hardly = dataclasses.replace(sums, good_tokens=1e-6 * sums.good_tokens)
    assert np.isnan(intervals(statistics_of(hardly))["usd_per_1k_good_tokens"].mean)


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
