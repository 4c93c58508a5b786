"""Waits shorter than queues show: for a slot or KV that happens to be taken, for others' prefills.

A tick counts mean requests and knows no iterations. What a single request meets inside a tick, or
because the real batch varies around its mean, is a wait with a probability, a mean and a variance.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.batching import add_up

ROUTING_MIXED = 0.5
"""Of n GPUs that prefill for a share u of the time, a request meets a busy one with u**(n**0.5).

Under random routing it would be 0 (a request finds its GPU busy with u). The router sees tokens, of
which a prefill is one part and the batch another: calibrated on stationary traffic of the reference
simulator with 2 and 4 GPUs.
"""
ROUTING_SPLIT = 0.65
"""The same where GPUs only prefill, so that the router sees who is idle: Erlang's formula for 2 and
4 servers that are busy for 0.4 to 0.8 of the time gives exponents of 0.61 to 0.69."""
_MOST_PREFILL = 0.9  # share of the time; beyond, the fluid queues
_LONGEST_WAIT_S = 10.0  # the fluid queues for longer ones
_NORMAL_PEAK = np.float32(1.0 / np.sqrt(2.0 * np.pi))
_NORMAL_TAIL_A, _NORMAL_TAIL_B = 0.339, 5.51


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
    return Wait(share=share, mean_s=mean_s, variance_s2=jnp.maximum(square_s2 - mean_s**2, 0.0))


def blocked_wait(
    mean: jax.Array,
    variance: jax.Array,
    limit: jax.Array,
    need: jax.Array | float,
    freed: jax.Array,
    tick_s: jax.Array,
) -> Wait:
    """The wait for a limited resource that a fluid, which knows mean demand only, does not show.

    Demand is normal around its mean. A fluid of mean d has max(d - limit, 0) waiting, the real
    queue E[(demand - limit)+] on average; the difference is the same on both sides of the limit.

    Args:
      mean, variance: of what all requests, waiting ones included, would use without the limit.
      limit: what there is.
      need: what a request takes.
      freed: what becomes free in a tick.
      tick_s: seconds per tick.
    """
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-6))
    place = jnp.abs(limit - mean) / deviation
    # P(Z > x) = density(x) / ((1 - a) x + a sqrt(x^2 + b)) within 0.3 % (Borjesson and Sundberg,
    # IEEE Trans. Commun. 27, 1979), so that E[(Z - x)+] / P(Z > x) = a (sqrt(x^2 + b) - x).
    root = jnp.sqrt(place**2 + _NORMAL_TAIL_B)
    density = _NORMAL_PEAK * jnp.exp(-0.5 * place**2)
    share = density / ((1.0 - _NORMAL_TAIL_A) * place + _NORMAL_TAIL_A * root)
    ahead = _NORMAL_TAIL_A * deviation * (root - place) + need
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
    routing: jax.Array,
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
      routing: ``ROUTING_MIXED`` or ``ROUTING_SPLIT``.
    """
    gpu_s = jnp.maximum(gpu_s, 1e-6)
    exclusive = jnp.clip(tally.exclusive_s / gpu_s, 0.0, 1.0)
    # Iterations with room are shared by prompts that come together, but each adds its own part.
    busy = 1.0 - (1.0 - exclusive) * jnp.exp(-tally.shared_s / gpu_s)
    added = jnp.minimum(tally.added_s / gpu_s, 1.0)
    busy = jnp.maximum(busy, added)
    met_s = jnp.maximum(tally.shared_s + tally.exclusive_s, 1e-6)
    mean_s = tally.wait_s2 / met_s
    variance_s2 = jnp.maximum(tally.wait_s3 / met_s - mean_s**2, mean_s**2 / 3.0)

    share = prefill_share(tally, gpu_s)
    full_s = tally.full_s / requests
    alone_s = met_s / jnp.maximum(tally.iterations, 1e-6)
    stretched_s = jnp.maximum(jnp.minimum(alone_s / (1.0 - share), step_s + full_s), alone_s)
    company_s = jnp.minimum(share * stretched_s, full_s)
    # Where a prompt waits behind the one in progress it takes what room the last iteration has, and
    # who comes in that one waits for the next prompt's last iteration.
    behind_s = 0.5 * added**2 * tally.exclusive_s / met_s * alone_s
    return Wait(
        share=busy ** (gpus**routing),
        mean_s=mean_s + 0.5 * (stretched_s - alone_s) + company_s + behind_s,
        # As random as exponential while it is short, and certain when it fills the iteration.
        variance_s2=variance_s2 + company_s * jnp.minimum(company_s, full_s - company_s),
    )
