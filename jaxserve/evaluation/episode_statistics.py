"""What an episode came to, and how sure a mean over episodes is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from jaxserve.env import ServeEnv
from jaxserve.sim.fast.latency import ttft_quantile
from jaxserve.spaces import OBSERVATION_BOUNDS
from jaxserve.types import TimeStep

CONFIDENCE = 0.95
_RESAMPLES = 2000
_BOOTSTRAP_SEED = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodeStatistics:
    """float64[E] each, one entry per episode."""

    objective: NDArray[np.float64]
    """mean reward per window: what the task is about."""
    goodput_rps: NDArray[np.float64]
    """requests per second that met all their SLOs."""
    slo_attainment: NDArray[np.float64]
    """those over all arrivals, 0..1."""
    ttft_p50_s: NDArray[np.float64]
    """median time to first token, s; NaN when no request got one."""
    ttft_p99_s: NDArray[np.float64]
    """99th percentile of the same, s."""
    itl_s: NDArray[np.float64]
    """inter-token latency averaged over output tokens, s; NaN when there were none."""
    cost_usd: NDArray[np.float64]
    """GPU time and energy of the episode, US dollars."""
    usd_per_1k_good_tokens: NDArray[np.float64]
    """US dollars per 1,000 output tokens of good requests; capped like the observation."""
    rejected_share: NDArray[np.float64]
    """arrivals turned away, 0..1."""
    preemptions: NDArray[np.float64]
    """sequences whose KV was evicted."""
    peak_memory_gib: NDArray[np.float64]
    """largest memory of a GPU, GiB."""
    oom_restarts: NDArray[np.float64]
    """out-of-memory restarts."""
    switches: NDArray[np.float64]
    """changes of tier or split that took effect."""


STATISTICS = tuple(field.name for field in dataclasses.fields(EpisodeStatistics))


@dataclass(frozen=True)
class Interval:
    """A mean over episodes with its 95 % interval; all NaN when no episode has a value."""

    mean: float
    low: float
    high: float


def episode_statistics(env: ServeEnv, timesteps: TimeStep) -> EpisodeStatistics:
    """Statistics of stacked TimeSteps, leaves [E, T, ...] as ``rollout`` returns them."""
    columns = _columns(env, timesteps)
    return EpisodeStatistics(
        **{name: np.asarray(value, np.float64) for name, value in columns.items()}
    )


def interval(values: NDArray[np.float64]) -> Interval:
    """Mean and 95 % interval by the BCa bootstrap, the same at every call; NaNs are left out.

    One episode, or episodes that are all equal, give an interval of no width: there is nothing to
    resample.
    """
    values = values[~np.isnan(values)]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan)
    mean = float(np.mean(values))
    if np.ptp(values) <= 1e-9 * max(abs(mean), 1e-9):
        return Interval(mean, mean, mean)
    found = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


def intervals(statistics: EpisodeStatistics) -> dict[str, Interval]:
    """Every statistic's interval, by name."""
    return {name: interval(getattr(statistics, name)) for name in STATISTICS}


@jax.jit
def _columns(env: ServeEnv, timesteps: TimeStep) -> dict[str, jax.Array]:
    metrics = timesteps.metrics
    windows = timesteps.reward.shape[1]

    def count(by_class: jax.Array) -> jax.Array:
        return jnp.sum(by_class, axis=(1, 2))

    arrivals = jnp.maximum(count(metrics.arrivals), 1e-9)
    good = count(metrics.good)
    good_tokens = count(metrics.good * env.workload.classes.output_tokens)
    tokens = jnp.sum(metrics.tokens, axis=1)
    cost = jnp.sum(metrics.cost_usd, axis=1)
    exceeded = jnp.sum(metrics.ttft_exceeded, axis=1).T
    answered = count(metrics.first_tokens)

    def ttft(probability: float) -> jax.Array:
        return jnp.where(answered > 0.0, ttft_quantile(exceeded, answered, probability), jnp.nan)

    in_force = jnp.stack([metrics.tier, metrics.prefill_gpus])
    changed = jnp.any(in_force[:, :, 1:] != in_force[:, :, :-1], axis=0)
    return {
        "objective": jnp.mean(timesteps.reward, axis=1),
        "goodput_rps": good / (windows * env.window_s),
        "slo_attainment": good / arrivals,
        "ttft_p50_s": ttft(0.5),
        "ttft_p99_s": ttft(0.99),
        "itl_s": jnp.sum(metrics.itl_s * metrics.tokens, axis=1) / tokens,
        "cost_usd": cost,
        "usd_per_1k_good_tokens": jnp.minimum(
            1000.0 * cost / jnp.maximum(good_tokens, 1e-9),
            OBSERVATION_BOUNDS["estimated_cost_per_1k"].high,
        ),
        "rejected_share": count(metrics.rejected) / arrivals,
        "preemptions": jnp.sum(metrics.preemptions, axis=1),
        "peak_memory_gib": jnp.max(metrics.memory_gib, axis=1),
        "oom_restarts": jnp.sum(metrics.oom, axis=1),
        "switches": jnp.sum(changed, axis=1),
    }
