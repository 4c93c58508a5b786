"""One scheduler tick of the fast simulator: arrivals, admission, prefill, decode, eviction.

A tick (1/8 s by default) is a fluid step: counts are real numbers, requests of one class are
exchangeable, output lengths are memoryless (which by Little's law leaves every steady state
exact), and the GPUs of a pool share their load. Times come from the latency table.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxserve.sim.deployment import Deployment
from jaxserve.sim.table import (
    WindowTable,
    batch_weights,
    itl_s,
    prefill_added_s_per_token,
    prefill_s_per_token,
)
from jaxserve.sim.waiting import age_by_one_tick, fifo_cut
from jaxserve.sim.workload import TrafficClasses

PRIORITY_GROUPS = 3
BLOCK_SLACK_TOKENS = 8.0
"""Half of a 16-token KV block is empty on average."""
_TINY = 1e-6


@flax.struct.dataclass
class WindowPlan:
    """What is constant during a window: the knobs in force, resolved against the deployment."""

    table: WindowTable
    """latency table at the window's depth and tier."""
    added_log: jax.Array
    """float32[B, F], log prefill seconds per prompt token added to a batch, at class lengths."""
    alone_s: jax.Array
    """float32[F], prefill of one prompt on an idle GPU, s."""
    chunks: jax.Array
    """float32[F], iterations that one prompt's prefill takes."""
    tokens_per_step: jax.Array
    """float32[F], expected tokens per decode step."""
    context_growth: jax.Array
    """float32[F], mean KV tokens a running request holds per output token of its mean length."""
    batch_cap: jax.Array
    verify_tokens: jax.Array
    """float32, positions verified per sequence and step (depth + 1)."""
    group: jax.Array
    """int32[F], effective priority group (all 0 under first come first served)."""
    split: jax.Array
    """bool, prefill and decode run on different GPUs."""
    prefill_gpus: jax.Array
    """float32, GPUs that prefill (all of them when colocated)."""
    decode_gpus: jax.Array
    """float32, GPUs that decode (all of them when colocated)."""
    kv_tokens: jax.Array
    """float32, KV capacity of the decoding GPUs together, tokens."""
    tier: jax.Array
    restart_rate: jax.Array
    """float32, share of the running sequences that lose their KV per second to a restart."""
    time_scale: jax.Array
    """float32, slowness of this episode's hardware relative to the table."""
    tick_s: jax.Array
    """float32, seconds per tick."""
    up_s: jax.Array
    """float32, seconds of a tick in which the deployment is up at all."""


@flax.struct.dataclass
class Queues:
    """The physical state that ticks advance; all counts in requests."""

    waiting: jax.Array
    """float32[F, A], see ``jaxserve.sim.waiting``."""
    running: jax.Array
    """float32[F], decoding."""
    context: jax.Array
    """float32[F], KV tokens they hold."""
    preempted: jax.Array
    """float32[F], evicted, waiting to be recomputed."""
    preempted_context: jax.Array
    """float32[F], tokens to recompute."""


@flax.struct.dataclass
class Tally:
    """Sums over the ticks of a window."""

    rejected: jax.Array
    """float32[F]"""
    admitted: jax.Array
    """float32[F], requests prefilled."""
    admitted_by_age: jax.Array
    """float32[F, A], those that had waited at least each age."""
    completed: jax.Array
    """float32[F]"""
    first_token_s: jax.Array
    """float32[F], sum over admitted of prefill time and fixed delays, s."""
    jitter_s: jax.Array
    """float32[F], sum over admitted of the random part of the delay inside a tick, s."""
    decode_s: jax.Array
    """float32[F], time spent between first and last token by requests in service, s."""
    decode_tokens: jax.Array
    """float32[F], tokens decoded."""
    interference_s2: jax.Array
    """float32, sum of squared prefill stalls per GPU, s^2."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    preemptions: jax.Array
    """float32"""
    peak_activation_gib: jax.Array
    """float32, activations and logits at their peak, GiB."""
    work_j: jax.Array
    """float32, energy above idle, J."""


def empty_tally(class_count: int, age_count: int) -> Tally:
    """A tally of zeros."""
    vector = jnp.zeros(class_count)
    zero = jnp.float32(0.0)
    return Tally(
        rejected=vector,
        admitted=vector,
        admitted_by_age=jnp.zeros((class_count, age_count)),
        completed=vector,
        first_token_s=vector,
        jitter_s=vector,
        decode_s=vector,
        decode_tokens=vector,
        interference_s2=zero,
        steps=zero,
        preemptions=zero,
        peak_activation_gib=zero,
        work_j=zero,
    )


def advance_tick(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    queues: Queues,
    tally: Tally,
    arrivals: jax.Array,
) -> tuple[Queues, Tally]:
    """One tick. ``arrivals`` float32[F]; returns the next queues and the tally with this tick in."""
    dt = plan.up_s
    prompt = classes.prompt_tokens
    newest_before = queues.waiting[:, 0]
    waiting = age_by_one_tick(queues.waiting, arrivals)

    # The decode batch as the tick finds it.
    batch = jnp.sum(queues.running) / plan.decode_gpus
    context = jnp.sum(queues.context) / jnp.maximum(jnp.sum(queues.running), _TINY)
    step_s = plan.time_scale * itl_s(plan.table, batch, context)
    busy = jnp.minimum(batch, 1.0)

    # What prefilling costs beside that batch, and how much of it a tick can hold.
    backlog_tokens = jnp.sum(prompt * newest_before) / plan.prefill_gpus
    fresh_tokens = jnp.sum(prompt * arrivals) / plan.prefill_gpus * jnp.minimum(step_s / dt, 1.0)
    chunk_room = jnp.maximum(deployment.token_budget - batch * plan.verify_tokens, 64.0)
    packed = jnp.minimum(backlog_tokens + fresh_tokens, chunk_room)
    beside_batch = jnp.where(plan.split, 0.0, busy)
    added_s = plan.time_scale * _prefill_s(plan, prompt, batch, packed)
    own_s = beside_batch * added_s + (1.0 - beside_batch) * plan.time_scale * plan.alone_s
    full_chunk_s = (
        plan.time_scale
        * chunk_room
        * prefill_added_s_per_token(plan.table, batch, chunk_room)
    )
    prefill_share_cap = 1.0 - beside_batch * step_s / (step_s + full_chunk_s)
    prefill_room_s = plan.prefill_gpus * dt * prefill_share_cap

    # Preempted sequences come back first: they are recomputed like prompts.
    slots = jnp.maximum(plan.decode_gpus * plan.batch_cap - jnp.sum(queues.running), 0.0)
    kv_room = jnp.maximum(plan.kv_tokens - _kv_used(queues), 0.0)
    recompute_s = queues.preempted_context * (own_s / prompt)
    preempted_total = jnp.sum(queues.preempted)
    returns = jnp.minimum(
        1.0,
        jnp.minimum(
            slots / jnp.maximum(preempted_total, _TINY),
            jnp.minimum(
                kv_room
                / jnp.maximum(
                    jnp.sum(queues.preempted_context) + BLOCK_SLACK_TOKENS * preempted_total, _TINY
                ),
                prefill_room_s / jnp.maximum(jnp.sum(recompute_s), _TINY),
            ),
        ),
    )
    returning = returns * queues.preempted
    returning_context = returns * queues.preempted_context
    returned = jnp.sum(returning)
    used_s = returns * jnp.sum(recompute_s)
    slots = slots - returned
    kv_room = kv_room - jnp.sum(returning_context) - BLOCK_SLACK_TOKENS * returned

    # Admission in order, limited by batch slots, KV blocks and prefill time.
    usage = jnp.stack(
        [
            jnp.ones_like(prompt) / jnp.maximum(slots, _TINY),
            (prompt + BLOCK_SLACK_TOKENS) / jnp.maximum(kv_room, _TINY),
            own_s / jnp.maximum(prefill_room_s - used_s, _TINY),
        ]
    )
    admitted = fifo_cut(waiting, plan.group, usage, PRIORITY_GROUPS)
    admitted_by_age = jnp.minimum(waiting, admitted[:, None])
    waiting = waiting - admitted_by_age

    # A full queue turns the newest away.
    still_waiting = jnp.sum(waiting[:, 0]) + preempted_total - returned
    newest = jnp.minimum(waiting[:, 0], arrivals)
    turned_away = jnp.maximum(still_waiting - deployment.queue_capacity, 0.0)
    rejected = newest * jnp.minimum(turned_away / jnp.maximum(jnp.sum(newest), _TINY), 1.0)
    waiting = waiting.at[:, 0].add(-rejected)

    # Decode with what prefill leaves of the tick.
    prefill_s = used_s + jnp.sum(admitted * own_s)
    prefill_share = jnp.minimum(prefill_s / (plan.prefill_gpus * dt), 1.0)
    stolen = jnp.where(plan.split, 0.0, prefill_share)
    steps = dt * (1.0 - stolen) / step_s
    decode_length = jnp.maximum(classes.output_tokens - 1.0, 1.0)
    progress = steps * plan.tokens_per_step / decode_length
    # Requests join during the tick, so they decode for half of it on average.
    present = queues.running + returning + 0.5 * admitted
    finished_share = -jnp.expm1(-progress)
    completed = present * finished_share
    tokens = completed * decode_length
    alive_s = completed / jnp.maximum(progress, _TINY) * dt

    running = jnp.maximum(queues.running + returning + admitted - completed, 0.0)
    held = (queues.context + returning_context + 0.5 * admitted * prompt) / jnp.maximum(
        present, _TINY
    )
    held_context = jnp.maximum(
        queues.context
        + returning_context
        + admitted * prompt
        + tokens * plan.context_growth
        - completed * held,
        0.0,
    )
    queues = queues.replace(
        waiting=waiting,
        running=running,
        context=held_context,
        preempted=queues.preempted - returning,
        preempted_context=queues.preempted_context - returning_context,
    )
    queues, evicted = _evict(plan, queues)

    # Delays that no queue shows: own prefill, the rest of the running iteration, pile-up.
    iteration_s = step_s / jnp.maximum(1.0 - stolen, 0.02)
    pile_up_s = 0.5 * jnp.maximum(prefill_s - own_s, 0.0) / plan.prefill_gpus
    fixed_s = deployment.frontend_s + own_s + beside_batch * plan.chunks * step_s
    jitter_s = deployment.frontend_tail_s + 0.5 * beside_batch * iteration_s + pile_up_s
    rows = batch * plan.verify_tokens
    chunk_tokens = jnp.minimum(jnp.sum(admitted * prompt) / plan.prefill_gpus, chunk_room)
    memory = (
        deployment.activation_gib_per_token * (rows + chunk_tokens)
        + deployment.logits_gib_per_row * rows
    )
    prefill_tokens = jnp.sum(admitted * prompt) + jnp.sum(returning_context)
    tally = Tally(
        rejected=tally.rejected + rejected,
        admitted=tally.admitted + admitted,
        admitted_by_age=tally.admitted_by_age + admitted_by_age,
        completed=tally.completed + completed,
        first_token_s=tally.first_token_s + admitted * fixed_s,
        jitter_s=tally.jitter_s + admitted * jitter_s,
        decode_s=tally.decode_s + alive_s + queues.preempted * plan.tick_s,
        decode_tokens=tally.decode_tokens + tokens,
        interference_s2=tally.interference_s2
        + jnp.where(plan.split, 0.0, jnp.sum(admitted * own_s**2) / plan.prefill_gpus),
        steps=tally.steps + steps,
        preemptions=tally.preemptions + evicted,
        peak_activation_gib=jnp.maximum(tally.peak_activation_gib, memory),
        work_j=tally.work_j
        + deployment.joule_per_token[plan.tier]
        * (prefill_tokens + steps * jnp.sum(queues.running) * plan.verify_tokens)
        + deployment.joule_per_weight_pass[plan.tier] * steps * busy * plan.decode_gpus
        + deployment.joule_per_kv_token * steps * jnp.sum(queues.context),
    )
    return queues, tally


@flax.struct.dataclass
class ClassLookups:
    """Table values at the classes' fixed prompt lengths."""

    added_log: jax.Array
    """float32[B, F], see ``WindowPlan``."""
    alone_s: jax.Array
    """float32[F]"""
    chunks: jax.Array
    """float32[F]"""


def _prefill_s(
    plan: WindowPlan, prompt: jax.Array, batch: jax.Array, packed: jax.Array
) -> jax.Array:
    """float32[F]: seconds that one prompt of each class adds to the iterations of a batch.

    Short prompts that share an iteration cost what the packed chunk costs per token, which is more
    than each would alone: the linear layers leave the memory-bound range.
    """
    weights = batch_weights(batch)
    single = jnp.exp(jnp.sum(weights[:, None] * plan.added_log, axis=0))
    together = prefill_added_s_per_token(plan.table, batch, packed)
    return prompt * jnp.maximum(single, together)


def _kv_used(queues: Queues) -> jax.Array:
    return jnp.sum(queues.context) + BLOCK_SLACK_TOKENS * jnp.sum(queues.running)


def _evict(plan: WindowPlan, queues: Queues) -> tuple[Queues, jax.Array]:
    """Preempts what does not fit, lowest priority first, and what a restart takes down."""
    used = queues.context + BLOCK_SLACK_TOKENS * queues.running
    overflow = jnp.maximum(jnp.sum(used) - plan.kv_tokens, 0.0)
    preference = 64.0 ** plan.group
    share = jnp.clip(
        overflow * preference / jnp.maximum(jnp.sum(preference * used), _TINY)
        + plan.restart_rate * plan.tick_s,
        0.0,
        1.0,
    )
    evicted = share * queues.running
    evicted_context = share * queues.context
    queues = queues.replace(
        running=queues.running - evicted,
        context=queues.context - evicted_context,
        preempted=queues.preempted + evicted,
        preempted_context=queues.preempted_context + evicted_context,
    )
    return queues, jnp.sum(evicted)
