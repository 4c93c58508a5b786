"""Waiting times that mean counts do not show: for a slot, for KV, for the prefills of others.

A tick advances mean counts and knows no iterations. A real batch varies around its mean and may be
full where the mean has room; and a request may arrive in the middle of another one's prefill. Each
of these is a wait with a probability, a mean and a variance.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up

ROUTING_MIXED = 0.5
"""Exponent r in u**(n**r), the probability that a request is sent to a GPU which is prefilling,
where each of n GPUs prefills for a share u of the time.

Random routing has r = 0: a request finds its GPU busy with probability u. The router of a colocated
deployment sees the tokens on each GPU, of which prefills are one part and decode batches the other.
The value is calibrated on stationary traffic of the reference simulator with 2 and 4 GPUs.
"""
ROUTING_SPLIT = 0.65
"""Exponent r where GPUs only prefill, so that the router sees the idle ones. Erlang's formula for 2
and 4 servers that are busy for 0.4 to 0.8 of the time gives 0.61 to 0.69."""
_MAX_PREFILL_SHARE = 0.9  # share of the time; beyond, the fluid queues
_MAX_WAIT_S = 10.0  # the fluid queues for longer ones
_NORMAL_PEAK = np.float32(1.0 / np.sqrt(2.0 * np.pi))
_NORMAL_TAIL_A, _NORMAL_TAIL_B = 0.339, 5.51


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Wait:
    """Waiting time of a random request; float32[...] each."""

    share: jax.Array
    """probability of having to wait."""
    mean_s: jax.Array
    """mean wait of the requests that wait, s."""
    variance_s2: jax.Array
    """variance of their wait, s^2."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WaitTally:
    """Sums over the waits of a window's requests; float32[...] each."""

    count: jax.Array
    """requests that wait."""
    wait_s: jax.Array
    """sum of waits, s."""
    wait_s2: jax.Array
    """sum of squared waits, s^2."""


def add_wait(tally: WaitTally, wait: Wait, requests: jax.Array) -> WaitTally:
    """The tally with ``requests`` float32[...] added, each of which may have the ``wait``."""
    waiting = requests * wait.share
    return WaitTally(
        count=tally.count + waiting,
        wait_s=tally.wait_s + waiting * wait.mean_s,
        wait_s2=tally.wait_s2 + waiting * (wait.mean_s**2 + wait.variance_s2),
    )


def mean_wait(tally: WaitTally, requests: jax.Array) -> Wait:
    """The wait of a random one of ``requests``, float32[...]."""
    count = jnp.maximum(tally.count, 1e-6)
    mean_s = tally.wait_s / count
    return Wait(
        share=tally.count / requests,
        mean_s=mean_s,
        variance_s2=jnp.maximum(tally.wait_s2 / count - mean_s**2, 0.0),
    )


def either_wait(first: Wait, second: Wait) -> Wait:
    """The wait of a request that has two independent reasons to wait."""
    # P(either) = 1 - (1 - p)(1 - q); the moments are those of the mixture weighted by p and q.
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
    """The wait for a limited resource that mean demand does not show.

    Demand is normal around its mean d. By the mean, max(d - limit, 0) of it waits; in truth
    E[(demand - limit)+] does. The difference depends only on how far d is from the limit, not on
    the side.

    Args:
      mean: float32[...], mean demand of all requests, waiting ones included, without the limit.
      variance: float32[...], its variance.
      limit: float32[...], amount of the resource.
      need: float32[...], amount that a request takes.
      freed: float32[...], amount that becomes free in a tick.
      tick_s: float32[...], seconds per tick.
    """
    # Distance of the mean from the limit in standard deviations, on either side.
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-6))
    place = jnp.abs(limit - mean) / deviation
    # P(Z > x) = density(x) / ((1 - a) x + a sqrt(x^2 + b)) within 0.3 % (Borjesson and Sundberg,
    # IEEE Trans. Commun. 27, 1979), so that E[(Z - x)+] / P(Z > x) = a (sqrt(x^2 + b) - x).
    root = jnp.sqrt(place**2 + _NORMAL_TAIL_B)
    density = _NORMAL_PEAK * jnp.exp(-0.5 * place**2)
    share = density / ((1.0 - _NORMAL_TAIL_A) * place + _NORMAL_TAIL_A * root)
    ahead = _NORMAL_TAIL_A * deviation * (root - place) + need
    # A request waits until what is ahead of it and its own need are freed, at the rate of a
    # resource in full use; such waits are taken as exponential: variance = mean^2.
    freed = freed * jnp.maximum(limit / jnp.maximum(mean, 1e-3), 1.0)
    mean_s = jnp.minimum(ahead / jnp.maximum(freed, 1e-6) * tick_s, _MAX_WAIT_S)
    return Wait(share=share, mean_s=mean_s, variance_s2=mean_s**2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrefillTally:
    """Sums over prefills that requests may find in progress on their GPU; float32[...] each."""

    shared_s: jax.Array
    """GPU seconds of iterations that hold the end of a prompt and have room for more, s."""
    exclusive_s: jax.Array
    """GPU seconds of iterations that one long prompt fills, s."""
    wait_s2: jax.Array
    """wait of a request that arrives during a prefill, integrated over its arrival time, s^2."""
    wait_s3: jax.Array
    """squared wait, integrated over the arrival time, s^3."""
    iterations: jax.Array
    """iterations with a prefill, as if no two prompts shared one."""
    added_s: jax.Array
    """GPU seconds that prefills add to decode iterations, s."""
    full_s: jax.Array
    """GPU seconds that an iteration full of prompts adds, summed over the prefills, s."""


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
    skewed: bool = False,
) -> PrefillTally:
    """The tally with the prefills of a tick added.

    A prefill takes n iterations, of which all but the last are full. A request that arrives in a
    full iteration waits for the last one and shares it. A request that arrives in the last one
    waits for its end.

    Args:
      tally: earlier prefills of the window.
      admitted: float32[F, ...], prefills.
      prompt_spread: float32[F, ...], standard deviation of a prefill's seconds as a share of the
        mean.
      prefill_s: float32[F, ...], duration of a prefill, s.
      chunks: float32[F, ...], iterations n of a prefill.
      added_s: float32[F, ...], seconds that a prefill adds to those iterations.
      full_chunk_s: float32[...], seconds that an iteration full of prompts adds.
      skewed: whether durations are lognormal, else the mean cube is as if they were narrow.
    """
    iteration_s = prefill_s / chunks
    # Wait integrated over the arrival time, for n iterations of d seconds: d^2 / 2 in the last one
    # and n (n - 1) d^2 / 2 in those before it.
    # A request is more likely to arrive during a long prefill: E[s^2] = (1 + spread^2) E[s]^2.
    square = 1.0 + prompt_spread**2
    wait_s2 = 0.5 * square * iteration_s**2 * (chunks * (chunks - 1.0) + 1.0)
    # The mean cube of a lognormal is (1 + spread^2)^2 times its mean square times its mean.
    cubed_s = prefill_s * square**2 if skewed else prefill_s
    return PrefillTally(
        shared_s=tally.shared_s + add_up(admitted * iteration_s),
        exclusive_s=tally.exclusive_s + add_up(admitted * (prefill_s - iteration_s)),
        wait_s2=tally.wait_s2 + add_up(admitted * wait_s2),
        wait_s3=tally.wait_s3 + add_up(admitted * wait_s2 * cubed_s) * (2.0 / 3.0),
        iterations=tally.iterations + add_up(admitted * chunks),
        added_s=tally.added_s + add_up(admitted * added_s),
        full_s=tally.full_s + add_up(admitted) * full_chunk_s,
    )


def prefill_share(tally: PrefillTally, gpu_s: jax.Array) -> jax.Array:
    """Share of the GPUs' seconds ``gpu_s`` that prefill takes; more than ``_MAX_PREFILL_SHARE``
    shows in the fluid's queue."""
    return jnp.minimum(tally.added_s / jnp.maximum(gpu_s, 1e-6), _MAX_PREFILL_SHARE)


def carrying_share(tally: PrefillTally, requests: jax.Array, iterations: jax.Array) -> jax.Array:
    """Share of ``iterations`` that carry a prefill, when ``requests`` are prefilled in them.

    All but the last iteration of a long prompt are full. Prompts end in any of the others, several
    perhaps in the same one.
    """
    # N ends fall into I iterations at random, so exp(-N / I) of those not full carry none.
    iterations = jnp.maximum(iterations, 1e-6)
    full = jnp.minimum((tally.iterations - requests) / iterations, 1.0)
    return 1.0 - (1.0 - full) * jnp.exp(-requests / iterations)


def prefill_wait(
    tally: PrefillTally,
    gpus: jax.Array,
    gpu_s: jax.Array,
    step_s: jax.Array,
    requests: jax.Array,
    routing: jax.Array,
) -> Wait:
    """The wait for a prefill in progress on the GPU that a request is sent to.

    Poisson arrivals see time averages: a request finds a GPU prefilling with the share of the time
    in which that GPU prefills. With several GPUs the router avoids busy ones as far as their load
    shows it. Requests that arrive during an iteration are prefilled in the next one, so a long
    iteration makes the next one longer. If prefill takes a share r of the time, iterations are
    1 / (1 - r) times as long on average, at most by a full chunk.

    Args:
      tally: prefills of the window.
      gpus: float32[...], GPUs that prefill.
      gpu_s: float32[...], GPU seconds of the window.
      step_s: float32[...], seconds of a decode step without prefill.
      requests: float32[...], first tokens in the window.
      routing: ``ROUTING_MIXED`` or ``ROUTING_SPLIT``.
    """
    # Probability that a GPU prefills at a random moment (PASTA, Wolff, Operations Research 1982).
    gpu_s = jnp.maximum(gpu_s, 1e-6)
    exclusive = jnp.clip(tally.exclusive_s / gpu_s, 0.0, 1.0)
    # Prompts that arrive together share an iteration that has room. Each still adds its own time.
    busy = 1.0 - (1.0 - exclusive) * jnp.exp(-tally.shared_s / gpu_s)
    added = jnp.minimum(tally.added_s / gpu_s, 1.0)
    busy = jnp.maximum(busy, added)
    # Residual time of the prefill found: mean = integral of the wait / time in prefill, E[s^2] /
    # (2 E[s]) for a single iteration; its variance at least that of a uniform wait.
    met_s = jnp.maximum(tally.shared_s + tally.exclusive_s, 1e-6)
    mean_s = tally.wait_s2 / met_s
    variance_s2 = jnp.maximum(tally.wait_s3 / met_s - mean_s**2, mean_s**2 / 3.0)

    # Iterations stretch to 1 / (1 - r) of their length, and carry the prompts of their neighbours.
    share = prefill_share(tally, gpu_s)
    full_s = tally.full_s / requests
    alone_s = met_s / jnp.maximum(tally.iterations, 1e-6)
    stretched_s = jnp.maximum(jnp.minimum(alone_s / (1.0 - share), step_s + full_s), alone_s)
    company_s = jnp.minimum(share * stretched_s, full_s)
    # A prompt that waits behind the one in progress takes the room in its last iteration. A request
    # that arrives in that iteration waits for the last one of the prompt that took the room.
    behind_s = 0.5 * added**2 * tally.exclusive_s / met_s * alone_s
    return Wait(
        share=busy ** (gpus**routing),
        mean_s=mean_s + 0.5 * (stretched_s - alone_s) + company_s + behind_s,
        # The time of prompts that share the iteration is as random as an exponential one while it
        # is short, and certain when they fill the iteration.
        variance_s2=variance_s2 + company_s * jnp.minimum(company_s, full_s - company_s),
    )
