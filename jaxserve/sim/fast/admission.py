"""Who enters the batch in a tick: slots, KV and prefill time, and what competes for them.

Arrays have class axes first and the batch axis last; the functions are stages of
``jaxserve.sim.fast.tick``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.ages import advance, age_sum, ages_of, still_random
from jaxserve.sim.fast.tick_state import (
    TINY,
    Admission,
    Ages,
    Conditions,
    PromptWork,
    Queues,
    Room,
    Timing,
    WindowPlan,
)
from jaxserve.sim.fast.timing import alive_share, chunks, held_s
from jaxserve.sim.fast.waiting_times import Wait, blocked_wait, either_wait
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.traffic.workload import TrafficClasses


def distinct_kv(work: PromptWork, kv: jax.Array, requests: jax.Array) -> jax.Array:
    """float32[F, ...]: KV tokens of so many ``requests`` that have ``kv`` together, without what
    others hold as well."""
    return kv if work.shared_kv is None else jnp.maximum(kv - work.shared_kv * requests, 0.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Newcomers:
    """Requests that want in: those that wait and the tick's arrivals. Means are over them."""

    queued: jax.Array
    """float32[F], those that wait."""
    count: jax.Array
    """float32, all of them."""
    prefill_s: jax.Array
    """float32, mean GPU seconds of a prefill."""
    chunks: jax.Array
    """float32, mean iterations of a prefill."""
    all_kv: jax.Array
    """float32, KV tokens of their prompts together."""
    kv: jax.Array
    """float32, mean KV tokens of a prompt."""
    head_kv: jax.Array
    """float32, the mean weighted by size: a large prompt is at the head of the line for longer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Freed:
    """What a tick frees on the decoding GPUs."""

    slots: jax.Array
    """float32, batch slots free at its start."""
    kv: jax.Array
    """float32, KV tokens free at its start; negative when sequences hold more than there is."""
    slot_flow: jax.Array
    """float32, slots of the sequences that finish in it if no prefill slows them down."""
    kv_flow: jax.Array
    """float32, KV tokens that they leave beyond those by which the others grow."""
    slot_variance: jax.Array
    """float32, of the number running, given who began."""
    kv_variance: jax.Array
    """float32, of the KV tokens that they hold."""


def find_room(
    conditions: Conditions,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    queued: jax.Array,
    arrivals: jax.Array,
) -> Room:
    """Batch slots and KV tokens that are or become free in the tick.

    Where KV is short, the prompt at the head of the line waits until there is enough for all of
    it: on average half of it is free on every GPU and of no use.
    """
    newcomers = _newcomers(conditions, timing, own_s, queued, arrivals)
    freed = _freed(conditions, queues, timing, newcomers)
    kv_starved, blocked, full = _shortage(conditions, queues, timing, newcomers, freed)
    useless_kv = 0.5 * kv_starved * conditions.plan.decode_gpus * newcomers.head_kv
    freed = dataclasses.replace(freed, kv=freed.kv - useless_kv)
    running = add_up(queues.running)
    decoding = _decoding_share(conditions.plan, timing, newcomers, freed, running, full)
    slots = jnp.maximum(freed.slots + decoding * freed.slot_flow, 0.0)
    if queues.ages is not None:
        going_on = _prefills_going_on(conditions.plan, queues.ages, timing, own_s)
        slots = jnp.maximum(slots, jnp.minimum(going_on, -freed.slots))
    return Room(
        slots=slots,
        kv=jnp.maximum(freed.kv + decoding * freed.kv_flow, 0.0),
        kv_starved=kv_starved,
        blocked=blocked,
        full=full,
    )


def _newcomers(
    conditions: Conditions,
    timing: Timing,
    own_s: jax.Array,
    queued: jax.Array,
    arrivals: jax.Array,
) -> _Newcomers:
    classes, work = conditions.classes, conditions.plan.work
    candidates = queued + arrivals
    count = jnp.maximum(add_up(candidates), TINY)
    tokens = candidates * _prompt_kv(work, classes)
    square = 1.0 + classes.prompt_spread**2
    return _Newcomers(
        queued=queued,
        count=count,
        prefill_s=add_up(candidates * own_s) / count,
        chunks=add_up(candidates * chunks(work, timing)) / count,
        all_kv=add_up(tokens),
        kv=add_up(tokens) / count,
        head_kv=add_up(tokens * classes.prompt_tokens * square) / jnp.maximum(add_up(tokens), TINY),
    )


def _freed(conditions: Conditions, queues: Queues, timing: Timing, newcomers: _Newcomers) -> _Freed:
    """What is free at the start of the tick, and what finishing sequences free in it.

    A request holds its slot and its KV while it is prefilled, which ``queues.running`` does not
    show. Without ages, as many are in prefill as finish in the time that a prefill takes.
    """
    plan, classes = conditions.plan, conditions.classes
    progress = plan.up_s / timing.step_s / plan.decode_steps
    distinct = distinct_kv(plan.work, queues.context, queues.running)
    each = distinct / jnp.maximum(queues.running, TINY)
    prompt_variance = (classes.prompt_spread * classes.prompt_tokens) ** 2
    if classes.output_ages is None or queues.ages is None:
        completed = queues.running * progress * alive_share(progress)
        growth = plan.decode_tokens * classes.output_growth
        kv_flow = add_up(completed * (each + BLOCK_SLACK_TOKENS - growth))
        slot_variance = 0.5 * add_up(queues.running)
        spread = prompt_variance + 0.25 * plan.decode_tokens**2
        kv_variance = add_up(queues.running * (0.5 * each**2 + spread))
    else:
        lifetimes, ages, life = classes.output_ages, queues.ages, plan.decode_tokens
        _, step = advance(lifetimes, ages, progress)
        completed = step.completed
        prompt = each - life * age_sum(lifetimes, ages) / jnp.maximum(queues.running, TINY)
        left = completed * (prompt + BLOCK_SLACK_TOKENS) + life * step.completed_age
        kv_flow = add_up(left - life * progress * step.alive)
        variance = still_random(lifetimes, ages)
        held = prompt[:, None] + life[:, None] * ages_of(lifetimes, ages)
        slot_variance = add_up(add_up(variance, axis=1))
        of_lives = add_up(variance * held**2, axis=1)
        kv_variance = add_up(of_lives + queues.running * prompt_variance)
    slot_flow = add_up(completed)
    if queues.ages is None:
        prefill_s = held_s(newcomers.prefill_s, newcomers.chunks, timing)
        in_prefill = slot_flow * prefill_s / plan.tick_s
    else:
        in_prefill = add_up(queues.ages.in_prefill)
    in_prefill = jnp.where(plan.split, 0.0, in_prefill)
    # Below zero where the cap has been lowered: then those that finish make no room.
    slots = plan.decode_gpus * plan.batch_cap - add_up(queues.running)
    return _Freed(
        slots=slots - in_prefill,
        kv=plan.kv_tokens - _held_kv(plan.work, queues) - in_prefill * newcomers.kv,
        slot_flow=slot_flow,
        kv_flow=kv_flow,
        slot_variance=slot_variance,
        kv_variance=kv_variance,
    )


def _prefills_going_on(plan: WindowPlan, ages: Ages, timing: Timing, own_s: jax.Array) -> jax.Array:
    """float32[...]: requests whose prefill goes on in the tick although a lowered cap lets nobody
    in.

    A prefill in progress has its slot already, and half of it is left on average. The fluid has let
    in what is done of it, and the rest waits in line. What is let in counts as in progress in turn:
    a third, and of that a third, make up the half.
    """
    held = held_s(own_s, chunks(plan.work, timing), timing)
    ending = add_up(ages.in_prefill * plan.tick_s / (held + plan.tick_s))
    busy = plan.prefill_gpus / jnp.maximum(add_up(ages.in_prefill), plan.prefill_gpus)
    return jnp.where(plan.split, 0.0, busy * ending / 3.0)


def _shortage(
    conditions: Conditions,
    queues: Queues,
    timing: Timing,
    newcomers: _Newcomers,
    freed: _Freed,
) -> tuple[jax.Array, Wait, jax.Array]:
    """Share of the time in which KV holds newcomers up, their waits that the mean hides, and the
    probability that all slots are taken.

    The fluid knows the arrivals but only the mean of what they become. Given the arrivals, the
    number still running varies by half its mean: a binomial variance, averaged over the ages of
    exponential lives. ``still_random`` has that of other lives. The KV they hold also varies with
    their lengths. Where such a batch would exceed a limit, an arrival waits although the mean batch
    would let it in.
    """
    plan, classes = conditions.plan, conditions.classes
    # KV is short only for those whom slots and prefill time would let in.
    others_fit = jnp.minimum(
        jnp.maximum(freed.slots + freed.slot_flow, 0.0),
        timing.prefill_room_s / jnp.maximum(newcomers.prefill_s, TINY),
    )
    reach = jnp.minimum(others_fit / newcomers.count, 1.0)
    wanted = reach * newcomers.all_kv + add_up(queues.preempted_context)
    kv_free = jnp.maximum(freed.kv + freed.kv_flow, 0.0)
    kv_starved = jnp.maximum(wanted - kv_free, 0.0) / jnp.maximum(wanted, TINY)

    wanted_slots = add_up(queues.running + newcomers.queued + queues.preempted)
    slots = plan.decode_gpus * plan.batch_cap - 0.5
    for_slot = blocked_wait(
        wanted_slots,
        freed.slot_variance,
        slots,
        1.0,
        freed.slot_flow,
        plan.tick_s,
    )
    in_line = reach * newcomers.queued * classes.prompt_tokens + queues.preempted_context
    for_kv = blocked_wait(
        _held_kv(plan.work, queues) + add_up(in_line),
        freed.kv_variance,
        plan.kv_tokens - 0.5 * newcomers.kv,
        newcomers.kv,
        freed.kv_flow,
        plan.tick_s,
    )
    # A wait's share is the same on both sides of the limit.
    full = jnp.where(wanted_slots < slots, for_slot.share, 1.0 - for_slot.share)
    return jnp.maximum(kv_starved, for_kv.share), either_wait(for_slot, for_kv), full


def prefill_line(
    plan: WindowPlan, timing: Timing, prefill_s: jax.Array, left: jax.Array
) -> jax.Array:
    """float32, 0 to 1: whether prefill follows upon prefill.

    It does where the tick's prefill time is all used, and more requests are left than the one of
    each GPU whose prefill a tick may cut in two.

    Args:
      prefill_s: float32, GPU seconds of prefills in the tick.
      left: float32, requests that wait at its end.
    """
    used = prefill_s / jnp.maximum(timing.prefill_room_s, TINY)
    all_used = jnp.clip(4.0 * used - 3.0, 0.0, 1.0)
    return all_used * jnp.clip(left / plan.prefill_gpus - 1.0, 0.0, 1.0)


def stolen_share(
    plan: WindowPlan, prefill: jax.Array, line: jax.Array, running: jax.Array, full: jax.Array
) -> jax.Array:
    """Share of the tick in which prefills hold a running sequence up; 0 in a split.

    A request counts as running while it is prefilled, but its own prefill does not hold it up. Each
    of n newcomers runs for half of the tick, and the prefills of all n take half of that from it,
    one of them its own: of what they take from R running sequences, 0.5 / R. Where requests line up
    for prefill, those that come after a request's own are others'. Where all c slots of a GPU are
    taken, c - 1 sequences wait for the prefill of the one that comes, and c - x run on average if
    prefills take the share x.

    Args:
      prefill: float32, share of the time that GPUs prefill for.
      line: float32, whether prefill follows upon prefill, of ``prefill_line``.
      running: float32, mean number of running sequences.
      full: float32, probability that all slots are taken.
    """
    own = (1.0 - line) * 0.5 / jnp.maximum(running, 0.5)
    left = jnp.maximum(1.0 - prefill, TINY)
    others = jnp.maximum(plan.batch_cap, running / plan.decode_gpus) - 1.0
    own_of_full = left / (left + others)
    own = jnp.clip(own + full * (own_of_full - own), 0.0, 1.0)
    return jnp.where(plan.split, 0.0, prefill * (1.0 - own))


def _decoding_share(
    plan: WindowPlan,
    timing: Timing,
    newcomers: _Newcomers,
    freed: _Freed,
    running: jax.Array,
    full: jax.Array,
) -> jax.Array:
    """Share of the tick that prefill leaves to decoding.

    Sequences that finish make room at once, not at the next tick. How many finish depends on the
    time that prefill takes from them, and that on how many are admitted into the room they make:
    with n admitted of s prefill seconds each,

        n need = free + flow (1 - n s / GPU seconds)    for the scarcest of slots and KV.
    """
    gpu_s = jnp.maximum(plan.prefill_gpus * plan.up_s, TINY)
    stolen_each = jnp.where(plan.split, 0.0, newcomers.prefill_s / gpu_s)
    admitted = jnp.minimum(
        newcomers.count, timing.prefill_room_s / jnp.maximum(newcomers.prefill_s, TINY)
    )
    for free, flow, need in (
        (freed.slots, freed.slot_flow, 1.0),
        (freed.kv, freed.kv_flow, newcomers.kv),
    ):
        fits = (free + flow) / jnp.maximum(need + jnp.maximum(flow, 0.0) * stolen_each, TINY)
        admitted = jnp.minimum(admitted, jnp.maximum(fits, 0.0))
    prefill = jnp.minimum(admitted * stolen_each, 1.0)
    left = newcomers.count - admitted
    line = prefill_line(plan, timing, admitted * newcomers.prefill_s, left)
    return 1.0 - stolen_share(plan, prefill, line, running + 0.5 * admitted, full)


def _held_kv(work: PromptWork, queues: Queues) -> jax.Array:
    """float32[...]: KV tokens of the blocks that running sequences hold."""
    held = distinct_kv(work, queues.context, queues.running)
    return add_up(held + BLOCK_SLACK_TOKENS * queues.running)


def _prompt_kv(work: PromptWork, classes: TrafficClasses) -> jax.Array:
    """float32[F, ...]: KV tokens of the blocks that a prompt takes."""
    return distinct_kv(work, classes.prompt_tokens, jnp.float32(1.0)) + BLOCK_SLACK_TOKENS


def readmit(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    room: Room,
) -> Admission:
    """Preempted sequences come back before new requests enter; new ones share what is left.

    A lost context is recomputed like a prompt. In a split, slots and KV of the decoding GPUs do not
    limit new requests: they need prefill time, and KV that is not taken by prefilled requests
    which wait for a decoding GPU.
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
        _prompt_kv(plan.work, classes)
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
        full=room.full,
    )


def joining_share(
    plan: WindowPlan, classes: TrafficClasses, admission: Admission, admitted: jax.Array
) -> jax.Array:
    """Share of the prefilled requests that decode at once.

    All do when colocated; in a split the others wait for room on a decoding GPU.
    """
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
    """float32[F, ...]: arrivals of the tick that a full queue turns away."""
    newest = jnp.minimum(waiting, arrivals)
    queued = add_up(waiting) + jnp.where(plan.split, 0.0, add_up(preempted))
    overflow = queued - deployment.queue_capacity
    return newest * jnp.clip(overflow / jnp.maximum(add_up(newest), TINY), 0.0, 1.0)
