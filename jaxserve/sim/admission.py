"""Who enters the batch in a tick: slots, KV and prefill time, and what competes for them.

Arrays have class axes first and the batch axis last; the functions are stages of
``jaxserve.sim.tick``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.sim.batching import add_up
from jaxserve.sim.cost_model import MIN_CHUNK_SHARE
from jaxserve.sim.deployment import Deployment
from jaxserve.sim.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.table import (
    batch_weights,
    itl_s,
    prefill_added_s_per_token,
    prefill_s_per_token,
)
from jaxserve.sim.tick_state import (
    TINY,
    Admission,
    Queues,
    Room,
    Timing,
    WindowPlan,
)
from jaxserve.sim.waits import blocked_wait, either_wait
from jaxserve.sim.workload import TrafficClasses


def find_timing(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    queues: Queues,
    queued: jax.Array,
    arrivals: jax.Array,
) -> Timing:
    """Iteration times under the batch as it is, and the prefill time that they leave.

    Args:
      queued: float32[F, ...], requests that wait already.
      arrivals: float32[F, ...], requests that arrive in the tick.
    """
    running = add_up(queues.running)
    batch = running / plan.decode_gpus
    context = add_up(queues.context) / jnp.maximum(running, TINY)
    # A sequence meets more others than the average GPU holds: of a Poisson batch's variance, which
    # that takes, the fluid shows half.
    met = batch + 0.5 * jnp.minimum(batch, 1.0) * jnp.maximum(1.0 - batch / plan.batch_cap, 0.0)
    step_s = plan.time_scale * itl_s(plan.table, met, context)
    prompt = classes.prompt_tokens
    backlog = add_up(prompt * queued) / plan.prefill_gpus
    fresh = add_up(prompt * arrivals) / plan.prefill_gpus
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
    """(1 - exp(-progress)) / progress: the mean share of an interval that a memoryless request
    lives which has ``progress`` mean lives to go in it. Cheaper than ``expm1`` where XLA has it as
    a polynomial with branches."""
    series = 1.0 - progress * (0.5 - progress * (1.0 / 6.0))
    return jnp.where(
        progress < 0.05, series, (1.0 - jnp.exp(-progress)) / jnp.maximum(progress, 0.05)
    )


def prefill_seconds(plan: WindowPlan, classes: TrafficClasses, timing: Timing) -> jax.Array:
    """float32[F, ...]: GPU seconds that the prefill of one prompt of each class takes.

    Beside a decode batch that is what it adds to the batch's iterations. Short prompts that share
    an iteration cost what the packed chunk costs per token: beside a batch more than each would
    alone, because the linear layers leave the memory-bound range, and on an idle GPU less, because
    they share the pass over the weights.
    """
    weights = batch_weights(timing.batch)
    single = add_up(weights[:, None] * plan.added_s_per_token)
    together = prefill_added_s_per_token(plan.table, timing.batch, timing.packed)
    beside_s = classes.prompt_tokens * jnp.maximum(single, together)
    shared_s = classes.prompt_tokens * prefill_s_per_token(plan.table, timing.packed)
    shares = classes.prompt_tokens < timing.packed
    alone_s = jnp.where(shares, jnp.minimum(plan.alone_s, shared_s), plan.alone_s)
    return plan.time_scale * (
        timing.beside_batch * beside_s + (1.0 - timing.beside_batch) * alone_s
    )


def chunks(classes: TrafficClasses, timing: Timing) -> jax.Array:
    """float32[F, ...]: iterations that a prefill of each class takes.

    A prompt that fits into an iteration shares it; a longer one ends anywhere in its last one.
    """
    return 1.0 + jnp.maximum(classes.prompt_tokens / timing.chunk_room - 0.5, 0.0)


def find_room(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    queued: jax.Array,
    arrivals: jax.Array,
) -> Room:
    """Batch slots and KV tokens that are or become free in the tick.

    Sequences that finish make room at once, not at the next tick. How many do depends on the time
    that prefill steals from them, and that on how many are admitted into the room they make: with
    n admitted of s prefill seconds each, and `flow` freed where nothing is stolen,

        n = room + flow (1 - n s / GPU seconds)    for the scarcest of slots and KV.

    Where KV is short, the prompt at the head of the line waits until there is enough for all of
    it: on average half of it is free on every GPU and of no use.

    The fluid knows the arrivals but only the mean of what they become. Given the arrivals, the
    number still running varies by half its mean (a binomial variance, averaged over the ages of
    exponential lives), the KV they hold also with their lengths, and where such a batch would
    exceed a limit, an arrival waits although the mean batch would let it in.
    """
    running = add_up(queues.running)
    used = add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running)
    slots = jnp.maximum(plan.decode_gpus * plan.batch_cap - running, 0.0)
    kv_room = plan.kv_tokens - used
    progress = plan.up_s / timing.step_s / plan.decode_steps
    completed = queues.running * progress * alive_share(progress)
    each = queues.context / jnp.maximum(queues.running, TINY)
    slot_flow = add_up(completed)
    growth = plan.decode_tokens * classes.output_growth
    kv_flow = add_up(completed * (each + BLOCK_SLACK_TOKENS - growth))

    candidates = queued + arrivals
    count = jnp.maximum(add_up(candidates), TINY)
    tokens = candidates * (classes.prompt_tokens + BLOCK_SLACK_TOKENS)
    mean_s = add_up(candidates * own_s) / count
    mean_kv = add_up(tokens) / count
    square = 1.0 + classes.prompt_spread**2
    head_tokens = add_up(tokens * classes.prompt_tokens * square) / jnp.maximum(
        add_up(tokens), TINY
    )
    # A request holds its slot and its KV while it is prefilled, which the running do not show. As
    # many are in prefill as finish in the time that it takes.
    iterations = add_up(candidates * chunks(classes, timing)) / count
    prefill_s = mean_s + timing.beside_batch * timing.step_s * iterations
    in_prefill = jnp.where(plan.split, 0.0, slot_flow * prefill_s / plan.tick_s)
    slots = slots - in_prefill
    kv_room = kv_room - in_prefill * mean_kv

    # KV is short only for those whom slots and prefill time would let in.
    others_fit = jnp.minimum(
        jnp.maximum(slots + slot_flow, 0.0), timing.prefill_room_s / jnp.maximum(mean_s, TINY)
    )
    reach = jnp.minimum(others_fit / count, 1.0)
    wanted = reach * add_up(tokens) + add_up(queues.preempted_context)
    kv_free = jnp.maximum(kv_room + kv_flow, 0.0)
    kv_starved = jnp.maximum(wanted - kv_free, 0.0) / jnp.maximum(wanted, TINY)

    spread = (classes.prompt_spread * classes.prompt_tokens) ** 2 + 0.25 * plan.decode_tokens**2
    for_slot = blocked_wait(
        running + add_up(queued + queues.preempted),
        0.5 * running,
        plan.decode_gpus * plan.batch_cap - 0.5,
        1.0,
        slot_flow,
        plan.tick_s,
    )
    for_kv = blocked_wait(
        used + add_up(reach * queued * classes.prompt_tokens + queues.preempted_context),
        add_up(queues.running * (0.5 * each**2 + spread)),
        plan.kv_tokens - 0.5 * mean_kv,
        mean_kv,
        kv_flow,
        plan.tick_s,
    )
    kv_starved = jnp.maximum(kv_starved, for_kv.share)
    kv_room = kv_room - 0.5 * kv_starved * plan.decode_gpus * head_tokens

    gpu_s = jnp.maximum(plan.prefill_gpus * plan.up_s, TINY)
    stolen_each = jnp.where(plan.split, 0.0, mean_s / gpu_s)
    admitted = jnp.minimum(count, timing.prefill_room_s / jnp.maximum(mean_s, TINY))
    for room, flow, need in ((slots, slot_flow, 1.0), (kv_room, kv_flow, mean_kv)):
        fits = (room + flow) / jnp.maximum(need + jnp.maximum(flow, 0.0) * stolen_each, TINY)
        admitted = jnp.minimum(admitted, jnp.maximum(fits, 0.0))
    left = 1.0 - jnp.minimum(admitted * stolen_each, 1.0)
    return Room(
        slots=jnp.maximum(slots + left * slot_flow, 0.0),
        kv=jnp.maximum(kv_room + left * kv_flow, 0.0),
        kv_starved=kv_starved,
        blocked=either_wait(for_slot, for_kv),
    )


def readmit(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    room: Room,
) -> Admission:
    """Preempted sequences come back first, recomputed like prompts; the rest is for new ones.

    In a split nothing keeps a prompt from its prefill but the KV of those that have been prefilled
    and wait for a decoding GPU.
    """
    recompute_s = queues.recompute_context * (own_s / classes.prompt_tokens)
    blocks = queues.preempted_context + BLOCK_SLACK_TOKENS * queues.preempted
    share = jnp.minimum(
        jnp.minimum(1.0, room.slots / jnp.maximum(add_up(queues.preempted), TINY)),
        jnp.minimum(
            room.kv / jnp.maximum(add_up(blocks), TINY),
            timing.prefill_room_s / jnp.maximum(add_up(recompute_s), TINY),
        ),
    )
    used_s = share * add_up(recompute_s)
    slots = room.slots - share * add_up(queues.preempted)
    kv_room = room.kv - share * add_up(blocks)
    room_s = timing.prefill_room_s - used_s
    prefill_kv_room = plan.prefill_kv_tokens - (1.0 - share) * add_up(blocks)
    usage = [
        jnp.where(plan.split, 0.0, 1.0 / jnp.maximum(slots, TINY)),
        (classes.prompt_tokens + BLOCK_SLACK_TOKENS)
        / jnp.maximum(jnp.where(plan.split, prefill_kv_room, kv_room), TINY),
        own_s / jnp.maximum(room_s, TINY),
    ]
    return Admission(
        own_s=own_s,
        returning=share * queues.preempted,
        returning_context=share * queues.preempted_context,
        recomputed=share * queues.recompute_context,
        recompute_s=used_s,
        usage=jnp.stack(jnp.broadcast_arrays(*usage)),
        join_room=jnp.stack([slots, kv_room]),
        kv_starved=jnp.where(plan.split, 0.0, room.kv_starved),
        blocked=dataclasses.replace(
            room.blocked, share=jnp.where(plan.split, 0.0, room.blocked.share)
        ),
    )


def joining_share(
    plan: WindowPlan, classes: TrafficClasses, admission: Admission, admitted: jax.Array
) -> jax.Array:
    """Share of the prefilled requests that decode at once; in a split the rest waits for room."""
    blocks = add_up(admitted * (classes.prompt_tokens + BLOCK_SLACK_TOKENS))
    need = jnp.stack([add_up(admitted), blocks])
    fits = jnp.clip(admission.join_room / jnp.maximum(need, TINY), 0.0, 1.0)
    return jnp.where(plan.split, jnp.minimum(fits[0], fits[1]), 1.0)


def reject(
    plan: WindowPlan,
    deployment: Deployment,
    waiting: jax.Array,
    arrivals: jax.Array,
    preempted: jax.Array,
) -> jax.Array:
    """float32[F, ...]: a full queue turns the newest away."""
    newest = jnp.minimum(waiting, arrivals)
    queued = add_up(waiting) + jnp.where(plan.split, 0.0, add_up(preempted))
    overflow = queued - deployment.queue_capacity
    return newest * jnp.clip(overflow / jnp.maximum(add_up(newest), TINY), 0.0, 1.0)
