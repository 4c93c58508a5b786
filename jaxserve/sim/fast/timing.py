"""Iteration times of a tick: of decode steps under the batch as it is, and of prefills."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, staged
from jaxserve.sim.fast.tick_state import TINY, Conditions, PromptWork, Queues, Timing, WindowPlan
from jaxserve.sim.machine.cost_model import MIN_CHUNK_SHARE
from jaxserve.sim.table.lookup import (
    batch_weights,
    itl_s,
    prefill_added_s_per_token,
    prefill_s_per_token,
)


@staged
def find_timing(
    conditions: Conditions, queues: Queues, queued: jax.Array, arrivals: jax.Array
) -> Timing:
    """Iteration times under the batch as it is, and the prefill time that they leave.

    Args:
      conditions: plan of the window, deployment and traffic classes.
      queues: running sequences and their KV tokens, float32[F, ...] each.
      queued: float32[F, ...], waiting requests at the start of the tick.
      arrivals: float32[F, ...], requests that arrive in the tick.
    """
    plan, deployment = conditions.plan, conditions.deployment
    running = add_up(queues.running)
    batch = running / plan.decode_gpus
    context = add_up(queues.context) / jnp.maximum(running, TINY)
    # More sequences are on GPUs with large batches than on those with small ones, so the batch that
    # a sequence is part of exceeds the average GPU's by variance / mean. That is 1 for a Poisson
    # batch, of which half is left when the arrivals are known, and nothing for a batch at its cap.
    met = batch + 0.5 * jnp.minimum(batch, 1.0) * jnp.maximum(1.0 - batch / plan.batch_cap, 0.0)
    step_s = plan.time_scale * itl_s(plan.table, met, context)
    # Chunked prefill: an iteration takes the token budget less the batch's verified positions.
    backlog = add_up(plan.work.tokens * queued) / plan.prefill_gpus
    fresh = add_up(plan.work.tokens * arrivals) / plan.prefill_gpus
    beside_batch = jnp.where(plan.split, 0.0, jnp.minimum(batch, 1.0))
    verified = jnp.where(plan.split, 0.0, batch * plan.verify_tokens)
    chunk_room = jnp.maximum(
        deployment.token_budget - verified, MIN_CHUNK_SHARE * deployment.token_budget
    )
    full_chunk_s = (
        plan.time_scale * chunk_room * prefill_added_s_per_token(plan.table, batch, chunk_room)
    )
    # Running sequences go first; the rest of each iteration's token budget is prefill.
    prefill_share = 1.0 - beside_batch * step_s / (step_s + full_chunk_s)
    return Timing(
        batch=batch,
        step_s=step_s,
        beside_batch=beside_batch,
        chunk_room=chunk_room,
        full_chunk_s=full_chunk_s,
        packed=jnp.minimum(backlog + fresh * jnp.minimum(step_s / plan.tick_s, 1.0), chunk_room),
        prefill_room_s=plan.prefill_gpus * plan.up_s * prefill_share,
    )


def alive_share(progress: jax.Array) -> jax.Array:
    """Mean share of a tick in which a running request is still running.

    Lives are exponential and the tick is ``progress`` mean lives long, which gives
    (1 - exp(-progress)) / progress. The series is cheaper than XLA's ``expm1``, which branches.
    """
    series = 1.0 - progress * (0.5 - progress * (1.0 / 6.0))
    return jnp.where(
        progress < 0.05, series, (1.0 - jnp.exp(-progress)) / jnp.maximum(progress, 0.05)
    )


@staged
def prefill_seconds(plan: WindowPlan, timing: Timing) -> jax.Array:
    """float32[F, ...]: GPU seconds that the prefill of one prompt of each class takes.

    Beside a decode batch these are the seconds that it adds to the batch's iterations. Short
    prompts share an iteration, and each pays its tokens' share of the packed chunk. Beside a batch
    that is more than it would pay alone: together they take the linear layers out of the
    memory-bound range. On an idle GPU it is less: they share one pass over the weights.
    """
    weights = batch_weights(timing.batch)
    single = add_up(weights[:, None] * plan.added_s_per_token)
    together = prefill_added_s_per_token(plan.table, timing.batch, timing.packed)
    tokens = plan.work.tokens
    beside_s = tokens * jnp.maximum(single, together)
    shared_s = tokens * prefill_s_per_token(plan.table, timing.packed)
    shares = tokens < timing.packed
    alone_s = jnp.where(shares, jnp.minimum(plan.alone_s, shared_s), plan.alone_s)
    return plan.time_scale * (
        timing.beside_batch * beside_s + (1.0 - timing.beside_batch) * alone_s
    )


def held_s(own_s: jax.Array, iterations: jax.Array, timing: Timing) -> jax.Array:
    """Seconds that a prefill holds its slot: its own time and the decode steps between its chunks.

    Args:
      own_s: float32[...], GPU seconds of the prefill.
      iterations: float32[...], iterations of the prefill, see ``chunks``.
      timing: iteration times of the tick.
    """
    return own_s + timing.beside_batch * timing.step_s * iterations


def gpu_share(plan: WindowPlan, own_s: jax.Array) -> jax.Array:
    """float32[F, ...]: share of a prefill of ``own_s`` float32[F, ...] GPU seconds that one GPU
    does in a tick."""
    return jnp.minimum(plan.tick_s / jnp.maximum(own_s, TINY), 1.0)


def chunks(work: PromptWork, timing: Timing) -> jax.Array:
    """float32[F, ...]: iterations that a prefill of each class takes.

    A prompt that fits into an iteration takes one. A longer one ends at a random point of its last
    iteration, so it takes half an iteration more than it fills.
    """
    return 1.0 + jnp.maximum(work.tokens / timing.chunk_room - 0.5, 0.0)
