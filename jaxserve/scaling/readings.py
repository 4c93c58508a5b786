"""Readings of a fleet at the end of a window, as a metrics server tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up
from jaxserve.scaling.history import Reading
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.types import WindowMetrics

TTFT_BUCKETS_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30,
    45, 60, 120, 180, 240, 300, 360, 480, 600,
)  # fmt: skip
"""Upper bounds of llm-d's histogram of TTFT, s (llm-d/llm-d-router, GeneralLatencyBuckets)."""
TPOT_BUCKETS_S = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6,
    0.8, 1, 1.5, 2, 3, 4.5, 6,
)  # fmt: skip
"""The same of TPOT (llm-d/llm-d-router, tpotBuckets)."""


def first_reading(serving: float | jax.Array) -> Reading:
    """Reading of an idle fleet."""
    idle: dict[str, Any] = dict.fromkeys(Reading.__dataclass_fields__, jnp.float32(0.0))
    return Reading(**idle | {"serving": jnp.asarray(serving, jnp.float32)})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Latencies:
    """Latencies of the last minute's windows, the newest first."""

    exceeded: jax.Array
    """float32[N, E], first tokens later than each edge."""
    first_tokens: jax.Array
    """float32[N]"""
    completed: jax.Array
    """float32[N, F]"""
    tpot_s: jax.Array
    """float32[N, F], mean time per output token of each class."""


def no_latencies(class_count: int, window_s: float) -> Latencies:
    """Latencies before any request."""
    count = max(round(60.0 / window_s), 1)
    by_class = jnp.zeros((count, class_count))
    return Latencies(jnp.zeros((count, len(TTFT_EDGES_S))), jnp.zeros(count), by_class, by_class)


def read_window(
    latencies: Latencies,
    metrics: WindowMetrics,
    prompt_tokens: jax.Array,
    window_s: float,
) -> tuple[Reading, Latencies]:
    """Reading at the end of a window, and the last minute's latencies with it.

    Args:
      latencies: latencies of the windows before.
      metrics: metrics of the window.
      prompt_tokens: float32[F], mean prompt of each class.
      window_s: seconds of the window.
    """
    newest = Latencies(
        metrics.ttft_exceeded, add_up(metrics.first_tokens), metrics.completed, metrics.tpot_s
    )
    latencies = jax.tree.map(
        lambda new, old: jnp.concatenate([new[None], old[:-1]]), newest, latencies
    )
    first = jnp.sum(latencies.first_tokens)
    late = jnp.sum(latencies.exceeded, axis=0) / jnp.maximum(first, 1e-9)
    edges = jnp.log(jnp.asarray(TTFT_BUCKETS_S))
    ttft_above = jnp.interp(edges, jnp.log(jnp.asarray(TTFT_EDGES_S)), late, left=1.0)
    done, tpot_s = latencies.completed.ravel(), latencies.tpot_s.ravel()
    above = tpot_s[None, :] > jnp.asarray(TPOT_BUCKETS_S)[:, None]
    ended = jnp.sum(done)
    tpot_above = jnp.sum(jnp.where(above, done, 0.0), axis=1) / jnp.maximum(ended, 1e-9)
    reading = Reading(
        waiting=add_up(metrics.waiting),
        running=add_up(metrics.running),
        kv_usage=metrics.kv_occupancy,
        waiting_tokens=add_up(metrics.waiting * prompt_tokens),
        arrivals_rps=add_up(metrics.arrivals) / window_s,
        ttft_p90_s=jnp.where(first > 0.5, histogram_quantile(TTFT_BUCKETS_S, ttft_above), 0.0),
        tpot_p90_s=jnp.where(ended > 0.5, histogram_quantile(TPOT_BUCKETS_S, tpot_above), 0.0),
        coming_wait_s=add_up(metrics.waiting) * window_s / jnp.maximum(newest.first_tokens, 1.0),
        serving=metrics.replicas_ready,
        starting=metrics.replicas_starting,
    )
    return reading, latencies


def histogram_quantile(
    buckets: Sequence[float], above: jax.Array, quantile: float = 0.9
) -> jax.Array:
    """Quantile as Prometheus tells it of a histogram: between two bounds the samples are spread
    evenly, and beyond the last bound the answer is that bound.

    Latencies that lie close together are told apart no better than by their bucket: all of 24 ms
    in the bucket from 20 to 40 ms have a 90th percentile of 38 ms. Rules act on that figure.

    Args:
      buckets: rising upper bounds.
      above: float32[len(buckets)], share of the samples above each bound.
    """
    upper = jnp.asarray(buckets, jnp.float32)
    lower = jnp.concatenate([jnp.zeros(1), upper[:-1]])
    before = jnp.concatenate([jnp.ones(1), above[:-1]])
    inside = (before > 1.0 - quantile) & (above <= 1.0 - quantile)
    place = (before - (1.0 - quantile)) / jnp.maximum(before - above, 1e-9)
    found = jnp.sum(jnp.where(inside, lower + (upper - lower) * jnp.clip(place, 0.0, 1.0), 0.0))
    return jnp.where(jnp.any(inside), found, upper[-1])
