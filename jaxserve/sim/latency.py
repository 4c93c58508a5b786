"""From tallies to latency distributions: who met the TTFT and TPOT objectives."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.batching import add_up
from jaxserve.sim.waiting import count_older_than

TTFT_EDGES_S = (0.01 * 10 ** (np.arange(25) / 6)).astype(np.float32)
"""float32[25], edges of the TTFT histogram, 10 ms to 100 s, six a decade."""

_LOGISTIC_SCALE = np.sqrt(3.0) / np.pi  # a logistic with this scale has unit variance
_TPOT_SPREAD_FLOOR = 0.04
_ROUTING_EXPONENT = 0.5
_MOST_PREFILL = 0.9  # share of the time; beyond, the fluid queues
_LONGEST_WAIT_S = 10.0  # of a wait that the mean does not show; the fluid queues for longer ones


@flax.struct.dataclass
class Wait:
    """A wait that some requests have; scalars, [...]."""

    share: jax.Array
    """probability of having to wait."""
    mean_s: jax.Array
    """mean wait of those who do, s."""
    variance_s2: jax.Array
    """its variance, s^2."""


@flax.struct.dataclass
class WaitTally:
    """Waits of a window's requests; scalars, [...]."""

    count: jax.Array
    """requests that wait."""
    wait_s: jax.Array
    """sum of their waits, s."""
    wait_s2: jax.Array
    """sum of the squares, s^2."""


def add_wait(tally: WaitTally, wait: Wait, requests: jax.Array) -> WaitTally:
    """Adds ``requests`` that each may wait."""
    waiting = requests * wait.share
    return WaitTally(
        count=tally.count + waiting,
        wait_s=tally.wait_s + waiting * wait.mean_s,
        wait_s2=tally.wait_s2 + waiting * (wait.mean_s**2 + wait.variance_s2),
    )


def mean_wait(tally: WaitTally, requests: jax.Array) -> Wait:
    """The wait of a random one of ``requests``."""
    count = jnp.maximum(tally.count, 1e-6)
    mean_s = tally.wait_s / count
    return Wait(
        share=tally.count / requests,
        mean_s=mean_s,
        variance_s2=jnp.maximum(tally.wait_s2 / count - mean_s**2, 0.0),
    )


def either_wait(first: Wait, second: Wait) -> Wait:
    """Two independent reasons to wait as one."""
    share = 1.0 - (1.0 - first.share) * (1.0 - second.share)
    divisor = jnp.maximum(first.share + second.share, 1e-6)
    mean_s = (first.share * first.mean_s + second.share * second.mean_s) / divisor
    square_s2 = (
        first.share * (first.mean_s**2 + first.variance_s2)
        + second.share * (second.mean_s**2 + second.variance_s2)
    ) / divisor
    return Wait(
        share=share, mean_s=mean_s, variance_s2=jnp.maximum(square_s2 - mean_s**2, 0.0)
    )


def blocked_wait(
    mean: jax.Array,
    variance: jax.Array,
    limit: jax.Array,
    need: jax.Array | float,
    freed: jax.Array,
    tick_s: jax.Array,
) -> Wait:
    """The wait for a limited resource that a fluid, which knows mean demand only, does not show.

    Demand is normal around its mean. A fluid of mean d has max(d - limit, 0) waiting, the real queue
    E[(demand - limit)+] on average; the difference is the same on both sides of the limit.

    Args:
      mean, variance: of what all requests, waiting ones included, would use without the limit.
      limit: what there is.
      need: what a request takes.
      freed: what becomes free in a tick.
      tick_s: seconds per tick.
    """
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-6))
    place = jnp.abs(limit - mean) / deviation
    share = 0.5 * jax.lax.erfc(place * np.sqrt(0.5).astype(np.float32))
    density = np.float32(1.0 / np.sqrt(2.0 * np.pi)) * jnp.exp(-0.5 * place**2)
    missing = deviation * jnp.maximum(density - place * share, 0.0)
    ahead = missing / jnp.maximum(share, 1e-6) + need
    # At the limit, more is freed than below it.
    freed = freed * jnp.maximum(limit / jnp.maximum(mean, 1e-3), 1.0)
    mean_s = jnp.minimum(ahead / jnp.maximum(freed, 1e-6) * tick_s, _LONGEST_WAIT_S)
    return Wait(share=share, mean_s=mean_s, variance_s2=mean_s**2)


@flax.struct.dataclass
class PrefillTally:
    """What requests that arrive during a window may meet on their GPU; scalars, [...]."""

    shared_s: jax.Array
    """GPU seconds of iterations with a prefill and room for more, s."""
    exclusive_s: jax.Array
    """GPU seconds of iterations that one long prompt fills, s."""
    wait_s2: jax.Array
    """wait of a request that arrives then, summed over the moments at which it can, s^2."""
    wait_s3: jax.Array
    """the same of the squared wait, s^3."""
    iterations: jax.Array
    """iterations with a prefill, if each were alone in its own."""
    added_s: jax.Array
    """what prefills add to iterations, s."""
    full_s: jax.Array
    """sum over prefills of what an iteration full of prompts adds, s."""


def empty_prefills(zero: jax.Array) -> PrefillTally:
    """A tally of zeros of the shape of ``zero``."""
    return PrefillTally(*[zero] * 7)


def add_prefills(
    tally: PrefillTally,
    admitted: jax.Array,
    prompt_spread: jax.Array,
    prefill_s: jax.Array,
    chunks: jax.Array,
    added_s: jax.Array,
    full_chunk_s: jax.Array,
) -> PrefillTally:
    """Adds the prefills of a tick.

    Who arrives in one of the first n - 1 of a prefill's n iterations waits for the last one, in
    which there is room again, and shares it; who arrives in the last one waits for its end.

    Args:
      admitted: float32[F, ...], prefills.
      prompt_spread: float32[F, ...], see ``TrafficClasses``.
      prefill_s: float32[F, ...], duration of one.
      chunks: float32[F, ...], n.
      added_s: float32[F, ...], what it adds to those iterations.
      full_chunk_s: float32[...], what an iteration full of prompts adds.
    """
    iteration_s = prefill_s / chunks
    # Long prefills are met more often than short ones.
    square = 1.0 + prompt_spread**2
    wait_s2 = 0.5 * square * iteration_s**2 * (chunks * (chunks - 1.0) + 1.0)
    return PrefillTally(
        shared_s=tally.shared_s + add_up(admitted * iteration_s),
        exclusive_s=tally.exclusive_s + add_up(admitted * (prefill_s - iteration_s)),
        wait_s2=tally.wait_s2 + add_up(admitted * wait_s2),
        wait_s3=tally.wait_s3 + add_up(admitted * wait_s2 * prefill_s) * (2.0 / 3.0),
        iterations=tally.iterations + add_up(admitted * chunks),
        added_s=tally.added_s + add_up(admitted * added_s),
        full_s=tally.full_s + add_up(admitted) * full_chunk_s,
    )


def prefill_share(tally: PrefillTally, gpu_s: jax.Array) -> jax.Array:
    """Share of the GPUs' time that prefill adds; beyond ``_MOST_PREFILL`` the fluid queues."""
    return jnp.minimum(tally.added_s / jnp.maximum(gpu_s, 1e-6), _MOST_PREFILL)


def prefill_wait(
    tally: PrefillTally,
    gpus: jax.Array,
    gpu_s: jax.Array,
    step_s: jax.Array,
    requests: jax.Array,
) -> Wait:
    """The wait for a prefill in progress on the GPU that a request is sent to.

    Poisson arrivals see time averages: a GPU is found busy in proportion to the time it prefills.
    With several GPUs the router avoids busy ones as far as their load shows it. Whoever comes while
    an iteration runs is prefilled in the next, so that iterations stretch each other: with a share
    r of the time added by prefill, by 1 / (1 - r) on average, up to a full chunk.

    Args:
      gpus: GPUs that prefill.
      gpu_s: GPU seconds of the window.
      step_s: decode step without prefill.
      requests: first tokens in the window.
    """
    gpu_s = jnp.maximum(gpu_s, 1e-6)
    exclusive = jnp.clip(tally.exclusive_s / gpu_s, 0.0, 1.0)
    # Iterations with room are shared by prompts that come together.
    busy = 1.0 - (1.0 - exclusive) * jnp.exp(-tally.shared_s / gpu_s)
    met_s = jnp.maximum(tally.shared_s + tally.exclusive_s, 1e-6)
    mean_s = tally.wait_s2 / met_s
    variance_s2 = jnp.maximum(tally.wait_s3 / met_s - mean_s**2, mean_s**2 / 3.0)

    share = prefill_share(tally, gpu_s)
    full_s = tally.full_s / requests
    alone_s = met_s / jnp.maximum(tally.iterations, 1e-6)
    stretched_s = jnp.maximum(jnp.minimum(alone_s / (1.0 - share), step_s + full_s), alone_s)
    company_s = jnp.minimum(share * stretched_s, full_s)
    return Wait(
        share=busy ** (gpus**_ROUTING_EXPONENT),
        mean_s=mean_s + 0.5 * (stretched_s - alone_s) + company_s,
        variance_s2=variance_s2 + company_s**2,
    )


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
