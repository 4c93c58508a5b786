"""From tallies to latency distributions: who met the TTFT and TPOT objectives."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.waiting import count_older_than
from jaxserve.sim.waits import Wait

TTFT_EDGES_S = (0.01 * 10 ** (np.arange(25) / 6)).astype(np.float32)
"""float32[25], edges of the TTFT histogram, 10 ms to 100 s, six a decade."""

_LOGISTIC_SCALE = np.sqrt(3.0) / np.pi  # a logistic with this scale has unit variance
_TPOT_SPREAD_FLOOR = 0.04


@flax.struct.dataclass
class FirstTokenDelay:
    """What a first token takes beyond the queueing that ages show; per class, [F, ...], seconds."""

    least_s: jax.Array
    """shortest possible."""
    mean_s: jax.Array
    """mean of the random part on top."""
    variance_s2: jax.Array
    """its variance, s^2."""
    wait: Wait
    """what may come on top of that."""
    queued_s: jax.Array
    """mean delay of a request that had queued before."""


def ttft_exceeded(
    admitted: jax.Array,
    admitted_by_age: jax.Array,
    delay: FirstTokenDelay,
    thresholds_s: jax.Array,
    tick_s: jax.Array,
) -> jax.Array:
    """How many first tokens came later than each threshold.

    A request that was served in the tick it arrived in pays the delay and perhaps the wait for a
    prefill in progress; one that had queued pays its age.

    Args:
      admitted: float32[F, ...].
      admitted_by_age: float32[F, A, ...], see ``jaxserve.sim.waiting``.
      thresholds_s: float32[F, S, ...].
      tick_s: seconds per tick.

    Returns:
      float32[F, S, ...].
    """
    queued = admitted_by_age[:, 1]
    wait = delay.wait
    beyond_s = thresholds_s - delay.least_s[:, None]
    at_once = _lognormal_exceeds(delay.mean_s, delay.variance_s2, beyond_s)
    after_wait = _lognormal_exceeds(
        delay.mean_s + wait.mean_s, delay.variance_s2 + wait.variance_s2, beyond_s
    )
    direct = at_once + wait.share * (after_wait - at_once)
    # Served half-way through the tick on average, so half a tick more than at its start.
    waited_ticks = (thresholds_s - delay.queued_s[:, None]) / tick_s + 0.5
    return (admitted - queued)[:, None] * direct + count_older_than(
        admitted_by_age, jnp.maximum(waited_ticks, 1.0)
    )


def _lognormal_exceeds(mean: jax.Array, variance: jax.Array, values: jax.Array) -> jax.Array:
    """P(X > value) of a lognormal X; mean and variance [F, ...], values [F, S, ...].

    A sum of uniform, exponential and prompt-length parts has about this shape: the 99th percentile
    of a uniform and an exponential part of equal means comes out within 5 %.
    """
    mean = jnp.maximum(mean, 1e-4)
    log_variance = jnp.maximum(jnp.log1p(variance / mean**2), 1e-4)
    log_median = jnp.log(mean) - 0.5 * log_variance
    place = (jnp.log(jnp.maximum(values, 1e-9)) - log_median[:, None]) * jax.lax.rsqrt(
        2.0 * log_variance
    )[:, None]
    return 0.5 * jax.lax.erfc(place)


def tpot_met_share(
    tpot_s: jax.Array, limit_s: jax.Array, stall_s2_per_s: jax.Array, output_tokens: jax.Array
) -> jax.Array:
    """Share of the finishing requests whose mean time per output token is inside the limit.

    Prefills of others stall a sequence at random moments: over a life of L seconds the stalls
    have a variance of L * (sum of squared stalls per second), which spreads the mean over n tokens.
    The spread is taken as logistic in log TPOT.

    Args:
      tpot_s: float32[F], mean over requests, s.
      limit_s: float32[F], s.
      stall_s2_per_s: squared prefill stalls per second on one GPU, s.
      output_tokens: float32[F].

    Returns:
      float32[F] in 0..1.
    """
    life_s = jnp.maximum(tpot_s * output_tokens, 1e-3)
    spread = jnp.sqrt(stall_s2_per_s / life_s + _TPOT_SPREAD_FLOOR**2)
    margin = jnp.log(limit_s / jnp.maximum(tpot_s, 1e-6))
    return jax.nn.sigmoid(margin / (_LOGISTIC_SCALE * spread))


def histogram_quantile(histogram: jax.Array, probability: float) -> jax.Array:
    """Quantile of a TTFT histogram (float32[26], counts), seconds.

    Inside a bin the share of first tokens that come later is taken to fall by a power of the time,
    as it does over a tail that spans several bins. An empty histogram gives the lowest edge.
    """
    total = jnp.maximum(jnp.sum(histogram), 1e-9)
    later = 1.0 - probability
    above = 1.0 - jnp.cumsum(histogram) / total
    index = jnp.clip(jnp.sum(above > later), 0, len(histogram) - 1)
    start = jnp.where(index > 0, above[jnp.maximum(index - 1, 0)], 1.0)
    # Where the bin is the last with any, its end has no logarithm.
    end = jnp.maximum(above[index], 0.1 * later)
    fraction = jnp.log(start / later) / jnp.maximum(jnp.log(start / end), 1e-9)
    edges = np.log(np.concatenate([TTFT_EDGES_S[:1] / 2, TTFT_EDGES_S, TTFT_EDGES_S[-1:] * 2]))
    edges = jnp.asarray(edges, jnp.float32)
    place = jnp.clip(fraction, 0.0, 1.0)
    value = jnp.exp(edges[index] + place * (edges[index + 1] - edges[index]))
    return jnp.where(jnp.sum(histogram) > 0.0, value, TTFT_EDGES_S[0])
