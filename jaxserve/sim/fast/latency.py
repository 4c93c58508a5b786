"""Latency distributions from tallies: TTFT and ITL quantiles, shares inside their objectives."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up, largest, stage, staged
from jaxserve.sim.fast.lines import OLDEST_AGE, count_older_than
from jaxserve.sim.fast.prompt_work import mean_of_points
from jaxserve.sim.fast.tick_state import TINY, Tally
from jaxserve.sim.fast.waiting_times import Wait, carrying_share

TTFT_EDGES_S = (0.01 * 10 ** (np.arange(25) / 6)).astype(np.float32)
"""float32[25], edges of the TTFT histogram, 10 ms to 100 s, six a decade."""

_LOG_EDGE_RATIO = np.float32(np.log(10.0) / 6.0)
_OCTAVE_OF_EDGES = np.float32(6.0 * np.log10(2.0))
_LOGISTIC_SCALE = np.sqrt(3.0) / np.pi  # a logistic with this scale has unit variance
_TPOT_SPREAD_FLOOR = 0.06
_FEW_REQUESTS = 0.1
_NORMAL_OF_LOG_ODDS = 1.702  # Haley's constant: the logistic of 1.702 z is close to P(Z < z)
_PAGE_LINEAR, _PAGE_CUBIC = 1.5976, 0.070565992  # Page, Applied Statistics 26 (1977)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FirstTokenDelay:
    """Delay of a first token beyond the queueing that ages show; float32[F, ...] each, seconds.

    The prompts of a class are P parts: one, or those that a prefix cache finds and the others.
    """

    least_s: jax.Array
    """shortest possible delay."""
    mean_s: jax.Array
    """float32[P, F, ...], mean of the random part on top."""
    variance_s2: jax.Array
    """float32[P, F, ...], variance of the random part, s^2."""
    wait: Wait
    """wait for a slot, KV or a prefill in progress, on top of both."""
    queued_s: jax.Array
    """mean delay of a request that had queued before."""
    queued_points_s: jax.Array | None = None
    """float32[P or 3, F, ...], ``queued_s`` of the parts, or of three prompts whose weights are
    ``POINT_WEIGHTS`` where there is one part; None where the mean stands for all."""
    shares: jax.Array | None = None
    """float32[P, F, ...], of the prompts in each part; None for one part."""


def ttft_exceeded(
    live: jax.Array,
    admitted: jax.Array,
    admitted_by_age: jax.Array,
    delay: FirstTokenDelay,
    thresholds_s: jax.Array,
    tick_s: jax.Array,
) -> jax.Array:
    """First tokens that came later than each threshold.

    A request that was served in the tick of its arrival has the delay and perhaps the wait for a
    prefill in progress; a request that had queued has its age.

    Args:
      live: bool, see ``jaxserve.arrays.batching.stage``.
      admitted: float32[F, ...], requests admitted in the window.
      admitted_by_age: float32[F, A, ...], by age at admission, see ``jaxserve.sim.fast.lines``.
      delay: delay beyond queueing.
      thresholds_s: float32[F, S, ...], s.
      tick_s: float32[...], seconds per tick.

    Returns:
      float32[F, S, ...].
    """

    # Queued requests: TTFT > x where age > x - delay. They are served half-way through a tick on
    # average, so half a tick older than at its start.
    def queued_longer(queued_s: jax.Array) -> jax.Array:
        waited_ticks = (thresholds_s - queued_s[:, None]) / tick_s + 0.5
        return stage(live, count_older_than, admitted_by_age, jnp.maximum(waited_ticks, 1.0))

    if delay.queued_points_s is None:
        older = queued_longer(delay.queued_s)
    else:
        longer = jnp.stack([queued_longer(s) for s in delay.queued_points_s])
        weights = None if delay.shares is None else delay.shares[:, :, None]
        older = mean_of_points(longer, weights)
    # Requests served at once: TTFT = least + lognormal with the moments of the delay's random part,
    # and with probability ``wait.share`` those of the wait as well.
    wait, exceeded = delay.wait, older
    direct = admitted - admitted_by_age[:, 1]
    for part, (mean_s, variance_s2) in enumerate(zip(delay.mean_s, delay.variance_s2, strict=True)):
        at_once = _lognormal(live, mean_s, variance_s2)
        after_wait = _lognormal(live, mean_s + wait.mean_s, variance_s2 + wait.variance_s2)
        count = direct if delay.shares is None else direct * delay.shares[part]
        exceeded = _direct_or_queued(
            live, (count, delay.least_s, wait.share), at_once, after_wait, exceeded, thresholds_s
        )
    return exceeded


@staged
def _direct_or_queued(
    direct: tuple[jax.Array, jax.Array, jax.Array],
    at_once: tuple[jax.Array, jax.Array],
    after_wait: tuple[jax.Array, jax.Array],
    older: jax.Array,
    thresholds_s: jax.Array,
) -> jax.Array:
    """float32[F, S, ...]: count x P(delay > threshold) of direct requests, and queued ones."""
    count, least_s, wait_share = direct
    log_beyond = jnp.log(jnp.maximum(thresholds_s - least_s[:, None], 1e-9))
    exceeds = _lognormal_exceeds(at_once, log_beyond)
    exceeds = exceeds + wait_share * (_lognormal_exceeds(after_wait, log_beyond) - exceeds)
    return count[:, None] * exceeds + older


@staged
def _lognormal(mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log of the median of a lognormal, and one over the standard deviation of its logarithm.

    A sum of uniform, exponential and prompt-length parts has about this shape: the 99th percentile
    of a uniform and an exponential part of equal means comes out within 5 %.
    """
    # sigma^2 = log(1 + variance / mean^2), median = mean exp(-sigma^2 / 2).
    mean = jnp.maximum(mean, 1e-4)
    log_variance = jnp.maximum(jnp.log1p(variance / mean**2), 1e-4)
    return jnp.log(mean) - 0.5 * log_variance, jax.lax.rsqrt(log_variance)


def _lognormal_exceeds(lognormal: tuple[jax.Array, jax.Array], log_values: jax.Array) -> jax.Array:
    """P(X > value) of a lognormal X from logarithms float32[F, S, ...] of values."""
    log_median, scale = lognormal
    return _normal_exceeds((log_values - log_median[:, None]) * scale[:, None])


def _normal_exceeds(place: jax.Array) -> jax.Array:
    """P(Z > place) of a standard normal within 1.4e-4, in a quarter of the time of erfc."""
    # 1 / (1 + exp(a z + b z^3)): a logistic of an odd cubic (Page 1977).
    place = jnp.clip(place, -6.0, 6.0)
    return 1.0 / (1.0 + jnp.exp(place * (_PAGE_LINEAR + _PAGE_CUBIC * place**2)))


@staged
def itl_quantile(
    tally: Tally,
    itl_s: jax.Array,
    prefill_gpus: jax.Array,
    split: jax.Array,
    probability: jax.Array | float,
) -> jax.Array:
    """Quantile p of the time between a sequence's decode steps, s.

    Iterations that only decode take about the same time. A share c of the iterations carries
    prefill as well, which adds a lognormal time. If c is below 1 - p, the quantile is an iteration
    that only decodes; else it is the quantile 1 - (1 - p) / c of the others, whose odds are
    c / (1 - p) - 1. In a window of few iterations chance decides between the two, so the
    result is their mean: a quantile that jumped would differ from one compiled program to another.

    Args:
      tally: sums over the window's ticks.
      itl_s: float32[...], mean inter-token latency, s.
      prefill_gpus: float32[...], GPUs that prefill, see ``WindowPlan``.
      split: bool[...], whether prefill and decode run on different GPUs.
      probability: p, at least a half.
    """
    # Mean time that prefills add to an iteration, and the share c of iterations that carry one.
    longer = 1.0 - probability
    steps = jnp.maximum(tally.steps, TINY)
    decode_only_s = tally.decode_only_s / steps
    mean_added_s = jnp.maximum(itl_s - decode_only_s, 0.0)
    requests = add_up(tally.admitted)
    carrying = carrying_share(tally.prefills, requests, prefill_gpus * tally.steps)
    # No iteration carries more than a full chunk. Recomputed contexts are not among the requests:
    # where there are hardly any others, every iteration carries some of them.
    few = _FEW_REQUESTS
    full_s = (tally.prefills.full_s + few * mean_added_s) / (requests + few) + TINY
    carrying = jnp.where(split, 0.0, jnp.clip(carrying, mean_added_s / full_s, 1.0))
    added_s = mean_added_s / jnp.maximum(carrying, longer)

    # Relative variance of the added time: a Poisson number of prompts shares an iteration, so
    # E[sum^2] = E[one^2] + E[sum]^2. Times between 0 and ``full_s`` have at most full_s / mean - 1.
    each_s = tally.prefills.added_s / jnp.maximum(prefill_gpus * tally.steps, TINY)
    square_s2 = tally.stall_s2 / steps
    variance = carrying * (1.0 + square_s2 / jnp.maximum(each_s**2, 1e-12)) - 1.0
    variance = jnp.minimum(variance, full_s / jnp.maximum(added_s, TINY) - 1.0)
    variance = jnp.maximum(variance, 1e-3)
    # Sampling: the share of n iterations that carry prefill deviates by sqrt(p (1 - p) / n). The
    # quantile is decode + P(c > 1 - p) x lognormal quantile of the added time.
    deviation = jnp.sqrt(probability * longer / (steps + 1.0))
    odds = jnp.clip((carrying - longer) / longer, deviation / longer, probability / longer)
    place = jnp.exp(jnp.sqrt(jnp.log1p(variance)) * _normal_quantile(jnp.log(odds)))
    carries = jax.nn.sigmoid(_NORMAL_OF_LOG_ODDS * (carrying - longer) / deviation)
    prefill_s = jnp.minimum(added_s * jax.lax.rsqrt(1.0 + variance) * place, full_s)
    return decode_only_s + carries * prefill_s


def _normal_quantile(log_odds: jax.Array) -> jax.Array:
    """Quantile of a standard normal at a probability with these log-odds: within 0.01 of
    probability below the median (Haley), within 1.4e-4 above it (Page)."""
    # Above the median the cubic a z + b z^3 = log-odds is solved by the hyperbolic sine.
    linear, cubic = np.float32(_PAGE_LINEAR), np.float32(_PAGE_CUBIC)
    scale = np.sqrt(linear / (3.0 * cubic))
    above = 2.0 * scale * jnp.sinh(jnp.arcsinh(1.5 * log_odds / (linear * scale)) / 3.0)
    return jnp.where(log_odds > 0.0, above, log_odds / _NORMAL_OF_LOG_ODDS)


def tpot_met_share(
    tpot_s: jax.Array,
    limit_s: jax.Array,
    output_tokens: jax.Array,
    acceptance_spread: jax.Array,
    stall_s2_per_s: jax.Array,
) -> jax.Array:
    """Share of the finishing requests whose mean time per output token is inside the limit.

    Prefills of others stall a sequence at random moments, and drafted tokens are accepted by
    chance. Both spread a request's mean over its tokens.

    Args:
      tpot_s: float32[F], mean time per output token over requests, s.
      limit_s: float32[F], objective, s.
      output_tokens: float32[F], mean output.
      acceptance_spread: float32[F], relative variance of a request's steps times its tokens.
      stall_s2_per_s: squared prefill stalls per second on one GPU, s.

    Returns:
      float32[F] in 0..1.
    """
    # Stalls are a compound Poisson process: over a life of L seconds their variance is L x (sum of
    # squared stalls per second), relative to L^2. TPOT is taken as log-logistic with that spread.
    life_s = jnp.maximum(tpot_s * output_tokens, 1e-3)
    spread = jnp.sqrt(
        stall_s2_per_s / life_s + acceptance_spread / output_tokens + _TPOT_SPREAD_FLOOR**2
    )
    margin = jnp.log(limit_s / jnp.maximum(tpot_s, 1e-6))
    return jax.nn.sigmoid(margin / (_LOGISTIC_SCALE * spread))


def longest_ttft_s(tick_s: float) -> float:
    """Longest TTFT that the fast simulator resolves, s: waits beyond the oldest age of its lines,
    or the last edge of the histogram, are known to be longer and no more.

    Args:
      tick_s: seconds of a scheduler tick.
    """
    return min(float(OLDEST_AGE * tick_s), float(TTFT_EDGES_S[-1]))


def ttft_quantile(exceeded: jax.Array, count: jax.Array, probability: float) -> jax.Array:
    """Quantile of the time to first token, s; the lowest edge where there are no first tokens.

    Args:
      exceeded: float32[len(TTFT_EDGES_S), ...], first tokens later than each edge.
      count: float32[...], first tokens.
      probability: of the quantile, 0..1.
    """
    # Between two edges P(TTFT > x) falls by a power of x, as over a tail that spans several edges.
    later = 1.0 - probability
    share = exceeded / jnp.maximum(count, 1e-9)
    above = share > later
    edges = len(TTFT_EDGES_S)
    index = add_up(above.astype(jnp.float32))
    start = -largest(jnp.where(above, -share, -1.0))
    # Where no first token is later than the next edge, its share has no logarithm.
    end = jnp.maximum(largest(jnp.where(above, 0.0, share)), 0.1 * later)
    place = jnp.clip(jnp.log(start / later) / jnp.maximum(jnp.log(start / end), 1e-9), 0.0, 1.0)
    # The intervals below the first edge and above the last are an octave wide.
    octave = (index == 0) | (index == edges)
    from_edge = jnp.where(index == 0, -_OCTAVE_OF_EDGES, index - 1.0)
    width = jnp.where(octave, _OCTAVE_OF_EDGES, 1.0)
    value = TTFT_EDGES_S[0] * jnp.exp((from_edge + place * width) * _LOG_EDGE_RATIO)
    return jnp.where(count > 0.0, value, TTFT_EDGES_S[0])
