"""One scheduler tick of the fast simulator: arrivals, admission, prefill, decode, eviction.

A tick (1/8 s by default) is a fluid step: counts are real numbers, requests of one class are
exchangeable, output lengths are memoryless (which by Little's law leaves every steady state
exact), and the GPUs of a pool share their load. Times come from the latency table.

Arrays have class (and age) axes first and the batch axis last, ``[F, A, ...]``, and the steps of a
tick are compiled as separate stages; ``jaxserve.sim.batching`` says why.
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from jaxserve.sim.deployment import Deployment
from jaxserve.sim.latency import (
    TTFT_EDGES_S,
    FirstTokenDelay,
    PrefillTally,
    Wait,
    WaitTally,
    add_prefills,
    add_wait,
    blocked_wait,
    empty_prefills,
    either_wait,
    mean_wait,
    prefill_share,
    prefill_wait,
    ttft_exceeded,
)
from jaxserve.sim.batching import add_up, batch_last, stage
from jaxserve.sim.table import (
    WindowTable,
    batch_weights,
    itl_s,
    prefill_added_s_per_token,
    prefill_s_per_token,
    row_contiguous,
)
from jaxserve.sim.waiting import age_by_one_tick, fifo_cut
from jaxserve.sim.workload import TrafficClasses

BLOCK_SLACK_TOKENS = 8.0
"""Half of a 16-token KV block is empty on average."""
_TINY = 1e-6
_MIN_CHUNK = 1 / 8  # of the token budget is left for prefill, see CostModel.prefill_added_s
_EVICTION_PREFERENCE = 64.0  # how much rather a group is evicted than the one above it


@flax.struct.dataclass
class WindowPlan:
    """What is constant during a window: the knobs in force, resolved against the deployment."""

    table: WindowTable
    """latency table at the window's depth and tier."""
    added_s_per_token: jax.Array
    """float32[B, F], prefill seconds per prompt token that each batch of the table's grid is slowed
    by, at the classes' prompt lengths."""
    alone_s: jax.Array
    """float32[F], prefill of one prompt on an idle GPU, s."""
    tokens_per_step: jax.Array
    """float32[F], expected tokens per decode step."""
    batch_cap: jax.Array
    """float32, sequences per GPU."""
    decode_tokens: jax.Array
    """float32[F], output tokens after the first."""
    decode_steps: jax.Array
    """float32[F], decode steps that they take."""
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
    prefill_kv_tokens: jax.Array
    """float32, KV capacity of the prefill GPUs of a split, tokens."""
    kv_transfer_s: jax.Array
    """float32[F], seconds to move a prompt's KV between the GPUs of a split."""
    joule_per_token: jax.Array
    """float32, see ``Deployment``, at the tier in force."""
    joule_per_weight_pass: jax.Array
    """float32, the same."""
    restarted: jax.Array
    """float32, share of the running sequences that lose their KV to a restart in the first tick."""
    time_scale: jax.Array
    """float32, slowness of this episode's hardware relative to the table."""
    tick_s: jax.Array
    """float32, seconds per tick."""
    clock: jax.Array
    """int32, ticks since the start of the episode."""
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
    """float32[F], evicted, waiting to be recomputed; in a split those that have been prefilled and
    wait for a decoding GPU."""
    preempted_context: jax.Array
    """float32[F], tokens of theirs."""


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
    prefill_s: jax.Array
    """float32[F], sum over admitted of the time from the first chunk to the first token, s."""
    streamed_s: jax.Array
    """float32[F], the part of it that has passed when the fluid has served half a request, s."""
    residual_s: jax.Array
    """float32, sum over admitted of the decode step that may be running when they arrive, s."""
    prefills: PrefillTally
    """what requests that arrive meet on their GPU."""
    blocked: WaitTally
    """their waits for slots and KV."""
    decode_s: jax.Array
    """float32[F], time spent between first and last token by requests in service, s."""
    decode_tokens: jax.Array
    """float32[F], tokens decoded."""
    stall_s2: jax.Array
    """float32, sum of squared prefill stalls of one GPU, s^2."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    preemptions: jax.Array
    """float32"""
    peak_activation_gib: jax.Array
    """float32, activations and logits at their peak, GiB."""
    work_j: jax.Array
    """float32, energy above idle, J."""


@flax.struct.dataclass
class Timing:
    """Iteration times as a tick finds them."""

    batch: jax.Array
    """float32, decoding sequences per GPU."""
    step_s: jax.Array
    """float32, one decode iteration, s."""
    beside_batch: jax.Array
    """float32, probability that a prefill shares its GPU with a decode batch."""
    chunk_room: jax.Array
    """float32, prompt tokens that fit into an iteration beside the batch."""
    full_chunk_s: jax.Array
    """float32, what they add to it, s."""
    packed: jax.Array
    """float32, prompt tokens that wait for the next iteration, at most ``chunk_room``."""
    prefill_room_s: jax.Array
    """float32, GPU seconds of prefill that fit into the tick."""


@flax.struct.dataclass
class Admission:
    """Who enters the batch in a tick."""

    own_s: jax.Array
    """float32[F], GPU seconds of one prefill."""
    returning: jax.Array
    """float32[F], preempted requests that come back."""
    returning_context: jax.Array
    """float32[F], tokens that are recomputed for them."""
    recompute_s: jax.Array
    """float32, GPU seconds of that."""
    usage: jax.Array
    """float32[3, F], share of free slots, KV blocks and prefill seconds that a request takes."""
    join_room: jax.Array
    """float32[2], slots and KV tokens that are left on the decoding GPUs of a split."""
    kv_starved: jax.Array
    """float32, share of the time in which requests wait for KV."""
    blocked: Wait
    """chance and duration of a wait for a slot or for KV that the mean does not show."""


@flax.struct.dataclass
class Progress:
    """What decoding does in a tick."""

    prefill_s: jax.Array
    """float32, GPU seconds spent on prefill."""
    stolen: jax.Array
    """float32, share of the decoding GPUs' time that went into prefill."""
    steps: jax.Array
    """float32, decode steps per sequence."""
    completed: jax.Array
    """float32[F]"""
    tokens: jax.Array
    """float32[F]"""
    alive_s: jax.Array
    """float32[F], seconds spent decoding, summed over requests."""


def empty_tally(queues: Queues) -> Tally:
    """A tally of zeros in the shape of ``queues``."""
    vector = jnp.zeros_like(queues.running)
    zero = vector[0]
    return Tally(
        rejected=vector,
        admitted=vector,
        admitted_by_age=jnp.zeros_like(queues.waiting),
        completed=vector,
        prefill_s=vector,
        streamed_s=vector,
        residual_s=zero,
        prefills=empty_prefills(zero),
        blocked=WaitTally(count=zero, wait_s=zero, wait_s2=zero),
        decode_s=vector,
        decode_tokens=vector,
        stall_s2=zero,
        steps=zero,
        preemptions=zero,
        peak_activation_gib=zero,
        work_j=zero,
    )


def _timing(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    queues: Queues,
    arrivals: jax.Array,
) -> Timing:
    running = add_up(queues.running)
    batch = running / plan.decode_gpus
    context = add_up(queues.context) / jnp.maximum(running, _TINY)
    # A sequence meets more others than the average GPU holds: of a Poisson batch's variance, which
    # that takes, the fluid shows half.
    met = batch + 0.5 * jnp.minimum(batch, 1.0) * jnp.maximum(1.0 - batch / plan.batch_cap, 0.0)
    step_s = plan.time_scale * itl_s(plan.table, met, context)
    prompt = classes.prompt_tokens
    backlog = add_up(prompt * queues.waiting[:, 0]) / plan.prefill_gpus
    fresh = add_up(prompt * arrivals) / plan.prefill_gpus
    chunk_room = jnp.maximum(
        deployment.token_budget - batch * plan.verify_tokens, _MIN_CHUNK * deployment.token_budget
    )
    beside_batch = jnp.where(plan.split, 0.0, jnp.minimum(batch, 1.0))
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
        packed=jnp.minimum(
            backlog + fresh * jnp.minimum(step_s / plan.tick_s, 1.0), chunk_room
        ),
        prefill_room_s=plan.prefill_gpus * plan.up_s * prefill_share,
    )


def _prefill_s(plan: WindowPlan, classes: TrafficClasses, timing: Timing) -> jax.Array:
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


@flax.struct.dataclass
class Room:
    """What becomes free in a tick."""

    slots: jax.Array
    """float32, batch slots."""
    kv: jax.Array
    """float32, KV tokens."""
    kv_starved: jax.Array
    """float32, see ``Admission``."""
    blocked: Wait
    """see ``Admission``."""


def _room(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
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
    slots = jnp.maximum(plan.decode_gpus * plan.batch_cap - add_up(queues.running), 0.0)
    kv_room = plan.kv_tokens - add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running)
    progress = plan.up_s / timing.step_s / plan.decode_steps
    completed = queues.running * -jnp.expm1(-progress)
    held = queues.context / jnp.maximum(queues.running, _TINY) + BLOCK_SLACK_TOKENS
    slot_flow = add_up(completed)
    kv_flow = add_up(completed * (held - plan.decode_tokens * classes.output_growth))

    candidates = queues.waiting[:, 0] + arrivals
    count = jnp.maximum(add_up(candidates), _TINY)
    tokens = candidates * (classes.prompt_tokens + BLOCK_SLACK_TOKENS)
    mean_s = add_up(candidates * own_s) / count
    mean_kv = add_up(tokens) / count
    square = 1.0 + classes.prompt_spread**2
    head_tokens = add_up(tokens * classes.prompt_tokens * square) / jnp.maximum(
        add_up(tokens), _TINY
    )
    wanted = add_up(tokens + queues.preempted_context)
    kv_free = jnp.maximum(kv_room + kv_flow, 0.0)
    kv_starved = jnp.maximum(wanted - kv_free, 0.0) / jnp.maximum(wanted, _TINY)

    running = add_up(queues.running)
    each = queues.context / jnp.maximum(queues.running, _TINY)
    spread = (classes.prompt_spread * classes.prompt_tokens) ** 2 + 0.25 * plan.decode_tokens**2
    used = add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running)
    queued = add_up(queues.waiting[:, 0] + queues.preempted)
    for_slot = blocked_wait(
        running + queued,
        0.5 * running,
        plan.decode_gpus * plan.batch_cap - 0.5,
        1.0,
        slot_flow,
        plan.tick_s,
    )
    for_kv = blocked_wait(
        used + add_up(queues.waiting[:, 0] * classes.prompt_tokens + queues.preempted_context),
        add_up(queues.running * (0.5 * each**2 + spread)),
        plan.kv_tokens - 0.5 * mean_kv,
        mean_kv,
        kv_flow,
        plan.tick_s,
    )
    kv_starved = jnp.maximum(kv_starved, for_kv.share)
    kv_room = kv_room - 0.5 * kv_starved * plan.decode_gpus * head_tokens

    gpu_s = jnp.maximum(plan.prefill_gpus * plan.up_s, _TINY)
    stolen_each = jnp.where(plan.split, 0.0, mean_s / gpu_s)
    admitted = jnp.minimum(count, timing.prefill_room_s / jnp.maximum(mean_s, _TINY))
    for room, flow, need in ((slots, slot_flow, 1.0), (kv_room, kv_flow, mean_kv)):
        fits = (room + flow) / jnp.maximum(need + jnp.maximum(flow, 0.0) * stolen_each, _TINY)
        admitted = jnp.minimum(admitted, jnp.maximum(fits, 0.0))
    left = 1.0 - jnp.minimum(admitted * stolen_each, 1.0)
    return Room(
        slots=slots + left * slot_flow,
        kv=jnp.maximum(kv_room + left * kv_flow, 0.0),
        kv_starved=kv_starved,
        blocked=either_wait(for_slot, for_kv),
    )


def _readmit(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
    arrivals: jax.Array,
) -> Admission:
    """Preempted sequences come back first, recomputed like prompts; the rest is for new ones.

    In a split nothing keeps a prompt from its prefill but the KV of those that have been prefilled
    and wait for a decoding GPU.
    """
    room = _room(plan, classes, queues, timing, own_s, arrivals)
    recompute_s = jnp.where(
        plan.split, 0.0, queues.preempted_context * (own_s / classes.prompt_tokens)
    )
    blocks = queues.preempted_context + BLOCK_SLACK_TOKENS * queues.preempted
    share = jnp.minimum(
        jnp.minimum(1.0, room.slots / jnp.maximum(add_up(queues.preempted), _TINY)),
        jnp.minimum(
            room.kv / jnp.maximum(add_up(blocks), _TINY),
            timing.prefill_room_s / jnp.maximum(add_up(recompute_s), _TINY),
        ),
    )
    used_s = share * add_up(recompute_s)
    slots = room.slots - share * add_up(queues.preempted)
    kv_room = room.kv - share * add_up(blocks)
    room_s = timing.prefill_room_s - used_s
    prefill_kv_room = plan.prefill_kv_tokens - (1.0 - share) * add_up(blocks)
    usage = [
        jnp.where(plan.split, 0.0, 1.0 / jnp.maximum(slots, _TINY)),
        (classes.prompt_tokens + BLOCK_SLACK_TOKENS)
        / jnp.maximum(jnp.where(plan.split, prefill_kv_room, kv_room), _TINY),
        own_s / jnp.maximum(room_s, _TINY),
    ]
    return Admission(
        own_s=own_s,
        returning=share * queues.preempted,
        returning_context=share * queues.preempted_context,
        recompute_s=used_s,
        usage=jnp.stack(jnp.broadcast_arrays(*usage)),
        join_room=jnp.stack([slots, kv_room]),
        kv_starved=jnp.where(plan.split, 0.0, room.kv_starved),
        blocked=dataclasses.replace(
            room.blocked, share=jnp.where(plan.split, 0.0, room.blocked.share)
        ),
    )


def _joining_share(
    plan: WindowPlan, classes: TrafficClasses, admission: Admission, admitted: jax.Array
) -> jax.Array:
    """Share of the prefilled requests that decode at once; in a split the rest waits for room."""
    blocks = add_up(admitted * (classes.prompt_tokens + BLOCK_SLACK_TOKENS))
    need = jnp.stack([add_up(admitted), blocks])
    fits = jnp.minimum(admission.join_room / jnp.maximum(need, _TINY), 1.0)
    return jnp.where(plan.split, jnp.minimum(fits[0], fits[1]), 1.0)


def _reject(
    plan: WindowPlan,
    deployment: Deployment,
    waiting: jax.Array,
    arrivals: jax.Array,
    preempted: jax.Array,
) -> jax.Array:
    """float32[F, ...]: a full queue turns the newest away."""
    newest = jnp.minimum(waiting[:, 0], arrivals)
    queued = add_up(waiting[:, 0]) + jnp.where(plan.split, 0.0, add_up(preempted))
    overflow = queued - deployment.queue_capacity
    return newest * jnp.clip(overflow / jnp.maximum(add_up(newest), _TINY), 0.0, 1.0)


def _decode(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    admission: Admission,
    admitted: jax.Array,
    joining: jax.Array,
) -> Progress:
    """Decode with what prefill leaves of the tick."""
    prefill_s = admission.recompute_s + add_up(admitted * admission.own_s)
    share = jnp.clip(prefill_s / jnp.maximum(plan.prefill_gpus * plan.up_s, _TINY), 0.0, 1.0)
    stolen = jnp.where(plan.split, 0.0, share)
    steps = plan.up_s * (1.0 - stolen) / timing.step_s
    progress = steps / plan.decode_steps
    # Requests join during the tick, so they decode for half of it on average.
    present = queues.running + admission.returning + 0.5 * joining * admitted
    completed = present * -jnp.expm1(-progress)
    return Progress(
        prefill_s=prefill_s,
        stolen=stolen,
        steps=steps,
        completed=completed,
        tokens=completed * plan.decode_tokens,
        alive_s=present
        * jnp.where(progress > 1e-4, -jnp.expm1(-progress) / jnp.maximum(progress, 1e-4), 1.0)
        * plan.tick_s,
    )


def _next_queues(
    classes: TrafficClasses,
    queues: Queues,
    waiting: jax.Array,
    admission: Admission,
    admitted: jax.Array,
    joining: jax.Array,
    progress: Progress,
) -> Queues:
    context = queues.context + admission.returning_context
    joined, held_back = joining * admitted, (1.0 - joining) * admitted
    prompt_tokens = joined * classes.prompt_tokens
    present = queues.running + admission.returning + 0.5 * joined
    held = (context + 0.5 * prompt_tokens) / jnp.maximum(present, _TINY)
    grown = progress.tokens * classes.output_growth
    return Queues(
        waiting=waiting,
        running=queues.running + admission.returning + joined - progress.completed,
        context=jnp.maximum(context + prompt_tokens + grown - progress.completed * held, 0.0),
        preempted=queues.preempted - admission.returning + held_back,
        preempted_context=queues.preempted_context
        - admission.returning_context
        + held_back * classes.prompt_tokens,
    )


@flax.struct.dataclass
class Eviction:
    """Who loses its KV at the end of a tick."""

    count: jax.Array
    """float32[F]"""
    context: jax.Array
    """float32[F], tokens of theirs."""


def _evictions(
    plan: WindowPlan,
    classes: TrafficClasses,
    running: jax.Array,
    context: jax.Array,
    admission: Admission,
    progress: Progress,
    first_tick: jax.Array,
) -> Eviction:
    """Preemption, lowest priority first.

    What does not fit goes, and what a restart takes down. And where KV is short, admission fills
    all of it while running sequences go on growing: between two completions on a GPU they grow by
    an output's length in all, which what is free, anything up to the next prompt in line, may not
    hold. Then the newest sequence goes, with little more than its prompt. Where many
    complete in one iteration there is nearly always one that makes room.
    """
    used = context + BLOCK_SLACK_TOKENS * running
    overflow = jnp.maximum(add_up(used) - plan.kv_tokens, 0.0)
    preference = _EVICTION_PREFERENCE ** plan.group.astype(jnp.float32)
    share = overflow * preference / jnp.maximum(add_up(preference * used), _TINY)
    share = jnp.clip(share + jnp.where(first_tick, plan.restarted, 0.0), 0.0, 1.0)

    completed = add_up(progress.completed)
    together = completed / jnp.maximum(plan.decode_gpus * progress.steps, _TINY)
    prompts = add_up(progress.completed * classes.prompt_tokens)
    too_little = -jnp.expm1(-add_up(progress.tokens) / jnp.maximum(prompts, _TINY))
    pushed_out = admission.kv_starved * completed * too_little * jnp.exp(-together)
    newest = pushed_out * preference / jnp.maximum(add_up(preference * running), _TINY)
    newest = jnp.minimum(newest, 1.0 - share)
    held = jnp.minimum(running * classes.prompt_tokens, context)
    return Eviction(
        count=(share + newest) * running, context=share * context + newest * held
    )


def _evict(queues: Queues, evicted: Eviction) -> Queues:
    """Moves evicted sequences from running to preempted."""
    return dataclasses.replace(
        queues,
        running=queues.running - evicted.count,
        context=queues.context - evicted.context,
        preempted=queues.preempted + evicted.count,
        preempted_context=queues.preempted_context + evicted.context,
    )


def _record(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    queues: Queues,
    tally: Tally,
    timing: Timing,
    admission: Admission,
    admitted: jax.Array,
    progress: Progress,
    rejected: jax.Array,
    evicted: jax.Array,
) -> Tally:
    """Adds the tick to the tally (but for the ages, which are recorded where they are known)."""
    own_s = admission.own_s
    # A prompt that fits into an iteration shares it; a longer one ends anywhere in its last one.
    chunks = 1.0 + jnp.maximum(classes.prompt_tokens / timing.chunk_room - 0.5, 0.0)
    prefill_s = own_s + timing.beside_batch * chunks * timing.step_s
    # A fluid served by all GPUs at once is half through a request after 1/2n of its time, but only
    # where prefill is what requests wait for.
    prefill_bound = progress.prefill_s / jnp.maximum(timing.prefill_room_s, _TINY)
    streamed_s = 0.5 * jnp.minimum(prefill_bound, 1.0) / plan.prefill_gpus * prefill_s
    # Longer prefills than all GPUs together do in a tick are queued for by the fluid itself.
    unqueued_s = jnp.minimum(prefill_s, plan.prefill_gpus * plan.tick_s)
    prefills = add_prefills(
        tally.prefills,
        admitted,
        classes.prompt_spread,
        unqueued_s,
        chunks,
        own_s,
        timing.full_chunk_s,
    )
    prompt_tokens = add_up(admitted * classes.prompt_tokens)
    rows = timing.batch * plan.verify_tokens
    chunk = jnp.minimum(prompt_tokens / plan.prefill_gpus, timing.chunk_room)
    activations = (
        deployment.activation_gib_per_token * (rows + chunk) + deployment.logits_gib_per_row * rows
    )
    stall_s2 = jnp.where(plan.split, 0.0, add_up(admitted * own_s**2) / plan.prefill_gpus)
    computed = (
        prompt_tokens
        + add_up(admission.returning_context)
        + progress.steps * add_up(queues.running) * plan.verify_tokens
    )
    work_j = (
        plan.joule_per_token * computed
        + plan.joule_per_weight_pass
        * (progress.steps * jnp.minimum(timing.batch, 1.0) * plan.decode_gpus)
        + deployment.joule_per_kv_token * progress.steps * add_up(queues.context)
    )
    return dataclasses.replace(
        tally,
        rejected=tally.rejected + rejected,
        admitted=tally.admitted + admitted,
        completed=tally.completed + progress.completed,
        prefill_s=tally.prefill_s + admitted * prefill_s,
        streamed_s=tally.streamed_s + admitted * streamed_s,
        residual_s=tally.residual_s + add_up(admitted) * timing.beside_batch * timing.step_s,
        prefills=prefills,
        blocked=add_wait(tally.blocked, admission.blocked, add_up(admitted)),
        decode_s=tally.decode_s
        + progress.alive_s
        + jnp.where(plan.split, classes.delay_weight, 1.0) * queues.preempted * plan.tick_s
        + jnp.where(plan.split, classes.delay_weight * admitted * plan.kv_transfer_s, 0.0),
        decode_tokens=tally.decode_tokens + progress.tokens,
        stall_s2=tally.stall_s2 + stall_s2,
        steps=tally.steps + progress.steps,
        preemptions=tally.preemptions + evicted,
        peak_activation_gib=jnp.maximum(tally.peak_activation_gib, activations),
        work_j=tally.work_j + work_j,
    )


def advance_tick(
    live: jax.Array,
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    queues: Queues,
    tally: Tally,
    arrivals: jax.Array,
    number: jax.Array,
) -> tuple[Queues, Tally]:
    """One tick of a window, its ``number`` int32 from 0; ``arrivals`` float32[F, ...]."""
    timing = stage(live, _timing, plan, deployment, classes, queues, arrivals)
    own_s = stage(live, _prefill_s, plan, classes, timing)
    admission = stage(live, _readmit, plan, classes, queues, timing, own_s, arrivals)
    waiting = age_by_one_tick(queues.waiting, arrivals, plan.clock + number)
    admitted = fifo_cut(live, waiting, plan.group, admission.usage)
    served = jnp.minimum(waiting, admitted[:, None])
    waiting = waiting - served
    still_preempted = queues.preempted - admission.returning
    rejected = stage(live, _reject, plan, deployment, waiting, arrivals, still_preempted)
    waiting = waiting.at[:, 0].add(-rejected)
    joining = _joining_share(plan, classes, admission, admitted)
    progress = stage(live, _decode, plan, classes, queues, timing, admission, admitted, joining)
    queues = _next_queues(classes, queues, waiting, admission, admitted, joining, progress)
    evicted = stage(
        live,
        _evictions,
        plan,
        classes,
        queues.running,
        queues.context,
        admission,
        progress,
        number == 0,
    )
    queues = _evict(queues, evicted)
    by_age = tally.admitted_by_age + served
    tally = stage(
        live,
        _record,
        plan,
        deployment,
        classes,
        # Large arrays stay out of stages, which copy what they pass through.
        dataclasses.replace(queues, waiting=None),
        dataclasses.replace(tally, admitted_by_age=None),
        timing,
        admission,
        admitted,
        progress,
        rejected,
        add_up(evicted.count),
    )
    return queues, dataclasses.replace(tally, admitted_by_age=by_age)


@flax.struct.dataclass
class WindowOutcome:
    """What a window's ticks leave behind."""

    queues: Queues
    tally: Tally
    ttft_met: jax.Array
    """float32[F], first tokens inside the TTFT objective."""
    ttft_exceeded: jax.Array
    """float32[len(TTFT_EDGES_S)], first tokens later than each edge."""


@batch_last
def run_ticks(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    ttft_slo_s: jax.Array,
    queues: Queues,
    counts: jax.Array,
) -> WindowOutcome:
    """All ticks of a window; ``counts`` float32[K, F] arrivals."""
    live = jnp.any(counts >= 0.0)
    batch = max(leaf.shape[-1] for leaf in jax.tree.leaves((plan, queues, counts)))
    plan = dataclasses.replace(plan, table=row_contiguous(plan.table))
    queues = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*leaf.shape[:-1], batch)), queues)

    def tick(carry, traffic):
        return advance_tick(live, plan, deployment, classes, *carry, *traffic), None

    ticks = counts.shape[0]
    traffic = (counts, jnp.arange(ticks))
    (queues, tally), _ = jax.lax.scan(tick, (queues, empty_tally(queues)), traffic)
    gpu_s = ticks * plan.prefill_gpus * plan.up_s
    ttft_met, exceeded = stage(
        live, _first_token_times, plan, deployment, classes, tally, gpu_s, ttft_slo_s
    )
    return WindowOutcome(queues=queues, tally=tally, ttft_met=ttft_met, ttft_exceeded=exceeded)


def _first_token_times(
    plan: WindowPlan,
    deployment: Deployment,
    classes: TrafficClasses,
    tally: Tally,
    gpu_s: jax.Array,
    ttft_slo_s: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """First tokens inside the objective, [F, ...], and later than each edge, [E, ...]."""
    admitted = jnp.maximum(tally.admitted, _TINY)
    prefill_s = tally.prefill_s / admitted
    count = jnp.maximum(add_up(tally.admitted), _TINY)
    residual_s = tally.residual_s / count
    in_progress = prefill_wait(tally.prefills, plan.prefill_gpus, gpu_s, residual_s, count)
    # Prompts that come during the same decode step share the next iteration.
    company_s = prefill_share(tally.prefills, gpu_s) * residual_s
    wait = either_wait(in_progress, mean_wait(tally.blocked, count))
    tail_s = deployment.frontend_tail_s
    delay = FirstTokenDelay(
        least_s=deployment.frontend_s + classes.prompt_floor * prefill_s,
        mean_s=tail_s + 0.5 * residual_s + company_s + (1.0 - classes.prompt_floor) * prefill_s,
        variance_s2=tail_s**2 + residual_s**2 / 12.0 + (classes.prompt_spread * prefill_s) ** 2,
        wait=wait,
        queued_s=deployment.frontend_s + tail_s + prefill_s - tally.streamed_s / admitted,
    )
    limits = [jnp.full_like(prefill_s, edge) for edge in TTFT_EDGES_S]
    limits.append(jnp.broadcast_to(ttft_slo_s, prefill_s.shape))
    exceeded = ttft_exceeded(
        tally.admitted, tally.admitted_by_age, delay, jnp.stack(limits, axis=1), plan.tick_s
    )
    return tally.admitted - exceeded[:, -1], add_up(exceeded[:, :-1])
