"""From tallies to latency distributions: who met the TTFT and TPOT objectives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.waiting import count_older_than

TTFT_EDGES_S = (0.01 * 10 ** (np.arange(25) / 6)).astype(np.float32)
"""float32[25], edges of the TTFT histogram, 10 ms to 100 s, six a decade."""

_LOGISTIC_SCALE = np.sqrt(3.0) / np.pi  # a logistic with this scale has unit variance
_TPOT_SPREAD_FLOOR = 0.04


def ttft_exceeded(
    admitted: jax.Array,
    admitted_by_age: jax.Array,
    first_token_s: jax.Array,
    tail_s: jax.Array,
    thresholds_s: jax.Array,
    tick_s: jax.Array,
) -> jax.Array:
    """How many first tokens came later than each threshold.

    A request that was served in the tick it arrived in pays the fixed delay and an exponential
    tail; one that had queued pays its age at the start of the serving tick on top.

    Args:
      admitted: float32[F].
      admitted_by_age: float32[F, A], see ``jaxserve.sim.waiting``.
      first_token_s: float32[F], own prefill and fixed delays, s.
      tail_s: float32[F], mean of the random delay inside a tick, s.
      thresholds_s: float32[F, S].
      tick_s: seconds per tick.

    Returns:
      float32[F, S].
    """
    queued = admitted_by_age[:, 1]
    beyond = thresholds_s - first_token_s[:, None]
    direct = (admitted - queued)[:, None] * jnp.exp(
        -jnp.maximum(beyond, 0.0) / jnp.maximum(tail_s[:, None], 1e-6)
    )
    # Served half-way through the tick on average, so half a tick more than at its start.
    waited_ticks = (beyond - tail_s[:, None]) / tick_s + 0.5
    return direct + count_older_than(admitted_by_age, jnp.maximum(waited_ticks, 1.0))


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
    """Quantile of a TTFT histogram (float32[26], counts), seconds; log-linear inside a bin.

    An empty histogram gives the lowest edge.
    """
    total = jnp.sum(histogram)
    below = jnp.cumsum(histogram)
    target = probability * jnp.maximum(total, 1e-9)
    index = jnp.clip(jnp.sum(below < target), 0, len(histogram) - 1)
    before = jnp.where(index > 0, below[jnp.maximum(index - 1, 0)], 0.0)
    fraction = jnp.clip((target - before) / jnp.maximum(histogram[index], 1e-9), 0.0, 1.0)
    edges = jnp.log(jnp.concatenate([jnp.array([TTFT_EDGES_S[0] / 2]), jnp.asarray(TTFT_EDGES_S), jnp.array([TTFT_EDGES_S[-1] * 2])]))
    value = jnp.exp(edges[index] + fraction * (edges[index + 1] - edges[index]))
    return jnp.where(total > 0.0, value, TTFT_EDGES_S[0])
