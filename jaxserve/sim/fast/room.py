"""The room of a tick: slots and KV that are or become free, and what competes for them.

Arrays have class axes first and the batch axis last; ``find_room`` is a stage of
``jaxserve.sim.fast.tick``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, staged
from jaxserve.sim.fast.ages import advance, age_sum, ages_of, still_random
from jaxserve.sim.fast.prompt_work import distinct_kv, prompt_kv
from jaxserve.sim.fast.tick_state import (
    TINY,
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Newcomers:
    """Requests that may be admitted: waiting ones and the tick's arrivals. Means are over both."""

    queued: jax.Array
    """float32[F], waiting requests."""
    count: jax.Array
    """float32, waiting requests and arrivals of all classes."""
    prefill_s: jax.Array
    """float32, mean GPU seconds of a prefill."""
    chunks: jax.Array
    """float32, mean iterations of a prefill."""
    all_kv: jax.Array
    """float32, KV tokens of all prompts together."""
    kv: jax.Array
    """float32, mean KV tokens of a prompt."""
    head_kv: jax.Array
    """float32, mean KV tokens weighted by size: a large prompt is at the head of the line for
    longer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Freed:
    """Slots and KV that a tick frees on the decoding GPUs."""

    slots: jax.Array
    """float32, batch slots free at the start of the tick."""
    kv: jax.Array
    """float32, KV tokens free at the start; negative where sequences hold more than the pool."""
    slot_flow: jax.Array
    """float32, slots of the sequences that finish in the tick if no prefill slows them down."""
    kv_flow: jax.Array
    """float32, KV tokens of finishing sequences less those by which the others grow."""
    slot_variance: jax.Array
    """float32, variance of the number of running sequences, given the arrivals."""
    kv_variance: jax.Array
    """float32, variance of the KV tokens that running sequences hold."""


@staged
def find_room(
    conditions: Conditions,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    queued: jax.Array,
    arrivals: jax.Array,
) -> Room:
    """Batch slots and KV tokens that are or become free in the tick.

    Args:
      conditions: plan of the window, deployment and traffic classes.
      queues: running and preempted sequences, float32[F, ...] each.
      timing: iteration times of the tick.
      own_s: float32[F, ...], GPU seconds of one prefill of each class.
      queued: float32[F, ...], waiting requests at the start of the tick.
      arrivals: float32[F, ...], requests that arrive in the tick.
    """
    newcomers = _newcomers(conditions, timing, own_s, queued, arrivals)
    freed = _freed(conditions, queues, timing, newcomers)
    kv_starved, blocked, full = _shortage(conditions, queues, timing, newcomers, freed)
    # Where KV is short, the prompt at the head of the line waits until there is enough for all of
    # it: on average half of it is free on every GPU and of no use.
    useless_kv = 0.5 * kv_starved * conditions.plan.decode_gpus * newcomers.head_kv
    freed = dataclasses.replace(freed, kv=freed.kv - useless_kv)
    # Room of the tick = free at its start + what decoding frees in the time that prefill leaves.
    running = add_up(queues.running)
    decoding = _decoding_share(conditions.plan, timing, newcomers, freed, running, full)
    slots = jnp.maximum(freed.slots + decoding * freed.slot_flow, 0.0)
    # Prefills in progress keep their slots although a lowered cap admits no others.
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
    """Counts and mean sizes of the requests that may be admitted in the tick."""
    classes, work = conditions.classes, conditions.plan.work
    candidates = queued + arrivals
    count = jnp.maximum(add_up(candidates), TINY)
    tokens = candidates * prompt_kv(work, classes)
    # Length-biased mean, E[n^2] / E[n], of the classes' prompts (the inspection paradox).
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
    """Slots and KV free at the start of the tick, and those that finishing sequences free in it."""
    plan, classes = conditions.plan, conditions.classes
    progress = plan.up_s / timing.step_s / plan.decode_steps
    # Mean KV tokens of a running sequence, and the variance of its prompt's.
    distinct = distinct_kv(plan.work, queues.context, queues.running)
    each = distinct / jnp.maximum(queues.running, TINY)
    prompt_variance = (classes.prompt_spread * classes.prompt_tokens) ** 2
    if classes.output_ages is None or queues.ages is None:
        # Memoryless lengths: running (1 - exp(-progress)) sequences finish, each with the mean KV.
        # Given the arrivals, the number still running is binomial; averaged over exponential lives
        # its variance is N / 2, and KV's is sum N (kv^2 / 2 + var(prompt) + output^2 / 4).
        completed = queues.running * progress * alive_share(progress)
        growth = plan.decode_tokens * classes.output_growth
        kv_flow = add_up(completed * (each + plan.work.slack_tokens - growth))
        slot_variance = 0.5 * add_up(queues.running)
        spread = prompt_variance + 0.25 * plan.decode_tokens**2
        kv_variance = add_up(queues.running * (0.5 * each**2 + spread))
    else:
        # Lengths with memory: each bin of age finishes at its hazard and with the KV of its age.
        lifetimes, ages, life = classes.output_ages, queues.ages, plan.decode_tokens
        _, step = advance(lifetimes, ages, progress)
        completed = step.completed
        prompt = each - life * age_sum(lifetimes, ages) / jnp.maximum(queues.running, TINY)
        left = completed * (prompt + plan.work.slack_tokens) + life * step.completed_age
        kv_flow = add_up(left - life * progress * step.alive)
        variance = still_random(lifetimes, ages)
        held = prompt[:, None] + life[:, None] * ages_of(lifetimes, ages)
        slot_variance = add_up(add_up(variance, axis=1))
        of_lives = add_up(variance * held**2, axis=1)
        kv_variance = add_up(of_lives + queues.running * prompt_variance)
    # A request holds its slot and its KV while it is prefilled, which ``queues.running`` does not
    # show. By Little's law, (sequences that finish per second) x (seconds of a prefill) are in it.
    slot_flow = add_up(completed)
    if queues.ages is None:
        prefill_s = held_s(newcomers.prefill_s, newcomers.chunks, timing)
        in_prefill = slot_flow * prefill_s / plan.tick_s
    else:
        in_prefill = add_up(queues.ages.in_prefill)
    in_prefill = jnp.where(plan.split, 0.0, in_prefill)
    # Below zero where the cap has been lowered: then finishing sequences make no room.
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
    """float32[...]: requests whose prefill goes on in the tick although a lowered cap admits none.

    A prefill in progress has its slot already, and half of it is left on average. The fluid has
    admitted the part that is done, and the rest waits in line. Admitted requests count as in
    progress in turn, so a third is admitted at a time: 1/3 + 1/9 + ... sums to 1/2.
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
    # Fluid shortage: (KV wanted - KV free) / KV wanted, of the requests that slots and prefill time
    # would admit.
    others_fit = jnp.minimum(
        jnp.maximum(freed.slots + freed.slot_flow, 0.0),
        timing.prefill_room_s / jnp.maximum(newcomers.prefill_s, TINY),
    )
    reach = jnp.minimum(others_fit / newcomers.count, 1.0)
    wanted = reach * newcomers.all_kv + add_up(queues.preempted_context)
    kv_free = jnp.maximum(freed.kv + freed.kv_flow, 0.0)
    kv_starved = jnp.maximum(wanted - kv_free, 0.0) / jnp.maximum(wanted, TINY)

    # Chance shortage of slots: the number of requests that would run varies around its mean by
    # ``slot_variance``, against c slots on each GPU (continuity correction of one half).
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
    # Chance shortage of KV: the same for tokens; the prompt at the head needs all of its room.
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
    """float32[...] in 0..1: whether prefill follows upon prefill.

    It does where the tick's prefill time is all used, and more requests are left than the one of
    each GPU whose prefill a tick may cut in two.

    Args:
      prefill_s: float32[...], GPU seconds of prefills in the tick.
      left: float32[...], requests that wait at the end of the tick.
    """
    # From 0 at three quarters of the prefill time to 1 at all of it: rates are means over a tick.
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
      prefill: float32[...], share of the time in which GPUs prefill.
      line: float32[...], whether prefill follows upon prefill, see ``prefill_line``.
      running: float32[...], mean number of running sequences.
      full: float32[...], probability that all slots are taken.
    """
    # With x = prefill: own = 0.5 / R, and (1 - x) / ((1 - x) + (c - 1)) where all slots are taken.
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
    # n of the equation for each limit: (free + flow) / (need + flow s / GPU seconds); the least
    # counts, and prefill time and the number of candidates limit n as well.
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
    return add_up(held + work.slack_tokens * queues.running)
