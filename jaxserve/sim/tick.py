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
from jaxserve.sim.latency import TTFT_EDGES_S, ttft_exceeded
from jaxserve.sim.batching import add_up, batch_last, stage
from jaxserve.sim.table import (
    WindowTable,
    batch_weights,
    itl_s,
    prefill_added_s_per_token,
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
    added_log: jax.Array
    """float32[B, F], log prefill seconds per prompt token added to a batch, at class lengths."""
    alone_s: jax.Array
    """float32[F], prefill of one prompt on an idle GPU, s."""
    chunks: jax.Array
    """float32[F], iterations that one prompt's prefill takes."""
    tokens_per_step: jax.Array
    """float32[F], expected tokens per decode step."""
    batch_cap: jax.Array
    """float32, sequences per GPU."""
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
    joule_per_token: jax.Array
    """float32, see ``Deployment``, at the tier in force."""
    joule_per_weight_pass: jax.Array
    """float32, the same."""
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
        first_token_s=vector,
        jitter_s=vector,
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
    step_s = plan.time_scale * itl_s(plan.table, batch, context)
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
        packed=jnp.minimum(
            backlog + fresh * jnp.minimum(step_s / plan.tick_s, 1.0), chunk_room
        ),
        prefill_room_s=plan.prefill_gpus * plan.up_s * prefill_share,
    )


def _prefill_s(plan: WindowPlan, classes: TrafficClasses, timing: Timing) -> jax.Array:
    """float32[F, ...]: GPU seconds that the prefill of one prompt of each class takes.

    Beside a decode batch that is what it adds to the batch's iterations. Short prompts that share
    an iteration cost what the packed chunk costs per token, which is more than each would alone:
    the linear layers leave the memory-bound range.
    """
    weights = batch_weights(timing.batch)
    single = jnp.exp(add_up(weights[:, None] * plan.added_log))
    together = prefill_added_s_per_token(plan.table, timing.batch, timing.packed)
    beside = classes.prompt_tokens * jnp.maximum(single, together)
    return plan.time_scale * (
        timing.beside_batch * beside + (1.0 - timing.beside_batch) * plan.alone_s
    )


def _readmit(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    own_s: jax.Array,
) -> Admission:
    """Preempted sequences come back first, recomputed like prompts; the rest is for new ones."""
    slots = jnp.maximum(plan.decode_gpus * plan.batch_cap - add_up(queues.running), 0.0)
    kv_room = jnp.maximum(
        plan.kv_tokens - add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running), 0.0
    )
    recompute_s = queues.preempted_context * (own_s / classes.prompt_tokens)
    blocks = queues.preempted_context + BLOCK_SLACK_TOKENS * queues.preempted
    share = jnp.minimum(
        jnp.minimum(1.0, slots / jnp.maximum(add_up(queues.preempted), _TINY)),
        jnp.minimum(
            kv_room / jnp.maximum(add_up(blocks), _TINY),
            timing.prefill_room_s / jnp.maximum(add_up(recompute_s), _TINY),
        ),
    )
    used_s = share * add_up(recompute_s)
    slots = slots - share * add_up(queues.preempted)
    kv_room = kv_room - share * add_up(blocks)
    room_s = timing.prefill_room_s - used_s
    usage = [
        jnp.ones_like(own_s) / jnp.maximum(slots, _TINY),
        (classes.prompt_tokens + BLOCK_SLACK_TOKENS) / jnp.maximum(kv_room, _TINY),
        own_s / jnp.maximum(room_s, _TINY),
    ]
    return Admission(
        own_s=own_s,
        returning=share * queues.preempted,
        returning_context=share * queues.preempted_context,
        recompute_s=used_s,
        usage=jnp.stack(jnp.broadcast_arrays(*usage)),
    )


def _reject(
    deployment: Deployment, waiting: jax.Array, arrivals: jax.Array, preempted: jax.Array
) -> jax.Array:
    """float32[F, ...]: a full queue turns the newest away."""
    newest = jnp.minimum(waiting[:, 0], arrivals)
    overflow = add_up(waiting[:, 0]) + add_up(preempted) - deployment.queue_capacity
    return newest * jnp.clip(overflow / jnp.maximum(add_up(newest), _TINY), 0.0, 1.0)


def _decode(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    timing: Timing,
    admission: Admission,
    admitted: jax.Array,
) -> Progress:
    """Decode with what prefill leaves of the tick."""
    prefill_s = admission.recompute_s + add_up(admitted * admission.own_s)
    share = jnp.clip(prefill_s / jnp.maximum(plan.prefill_gpus * plan.up_s, _TINY), 0.0, 1.0)
    stolen = jnp.where(plan.split, 0.0, share)
    steps = plan.up_s * (1.0 - stolen) / timing.step_s
    decode_length = jnp.maximum(classes.output_tokens - 1.0, 1.0)
    progress = steps * plan.tokens_per_step / decode_length
    # Requests join during the tick, so they decode for half of it on average.
    present = queues.running + admission.returning + 0.5 * admitted
    completed = present * -jnp.expm1(-progress)
    return Progress(
        prefill_s=prefill_s,
        stolen=stolen,
        steps=steps,
        completed=completed,
        tokens=completed * decode_length,
        alive_s=completed / jnp.maximum(progress, _TINY) * plan.tick_s,
    )


def _next_queues(
    classes: TrafficClasses,
    queues: Queues,
    waiting: jax.Array,
    admission: Admission,
    admitted: jax.Array,
    progress: Progress,
) -> Queues:
    context = queues.context + admission.returning_context
    prompt_tokens = admitted * classes.prompt_tokens
    present = queues.running + admission.returning + 0.5 * admitted
    held = (context + 0.5 * prompt_tokens) / jnp.maximum(present, _TINY)
    grown = progress.tokens * classes.output_growth
    return Queues(
        waiting=waiting,
        running=queues.running + admission.returning + admitted - progress.completed,
        context=jnp.maximum(context + prompt_tokens + grown - progress.completed * held, 0.0),
        preempted=queues.preempted - admission.returning,
        preempted_context=queues.preempted_context - admission.returning_context,
    )


def _evicted_share(plan: WindowPlan, running: jax.Array, context: jax.Array) -> jax.Array:
    """float32[F, ...]: what does not fit is preempted, lowest priority first; so is what a restart
    takes down."""
    used = context + BLOCK_SLACK_TOKENS * running
    overflow = jnp.maximum(add_up(used) - plan.kv_tokens, 0.0)
    preference = _EVICTION_PREFERENCE ** plan.group.astype(jnp.float32)
    share = overflow * preference / jnp.maximum(add_up(preference * used), _TINY)
    return jnp.clip(share + plan.restart_rate * plan.tick_s, 0.0, 1.0)


def _evict(queues: Queues, share: jax.Array) -> Queues:
    """Moves a share of each class from running to preempted."""
    evicted, evicted_context = share * queues.running, share * queues.context
    return dataclasses.replace(
        queues,
        running=queues.running - evicted,
        context=queues.context - evicted_context,
        preempted=queues.preempted + evicted,
        preempted_context=queues.preempted_context + evicted_context,
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
    # Delays that no queue shows: own prefill, the rest of a running iteration, pile-up.
    fixed_s = deployment.frontend_s + own_s + timing.beside_batch * plan.chunks * timing.step_s
    iteration_s = timing.step_s / jnp.maximum(1.0 - progress.stolen, 0.02)
    pile_up_s = 0.5 * jnp.maximum(progress.prefill_s - own_s, 0.0) / plan.prefill_gpus
    jitter_s = (
        deployment.frontend_tail_s + 0.5 * timing.beside_batch * iteration_s + pile_up_s
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
        first_token_s=tally.first_token_s + admitted * fixed_s,
        jitter_s=tally.jitter_s + admitted * jitter_s,
        decode_s=tally.decode_s + progress.alive_s + queues.preempted * plan.tick_s,
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
) -> tuple[Queues, Tally]:
    """One tick. ``arrivals`` float32[F, ...]; the tally comes back with this tick in."""
    timing = stage(live, _timing, plan, deployment, classes, queues, arrivals)
    own_s = stage(live, _prefill_s, plan, classes, timing)
    admission = stage(live, _readmit, plan, classes, queues, timing, own_s)
    waiting = age_by_one_tick(queues.waiting, arrivals)
    admitted = fifo_cut(live, waiting, plan.group, admission.usage)
    served = jnp.minimum(waiting, admitted[:, None])
    waiting = waiting - served
    still_preempted = queues.preempted - admission.returning
    rejected = stage(live, _reject, deployment, waiting, arrivals, still_preempted)
    waiting = waiting.at[:, 0].add(-rejected)
    progress = stage(live, _decode, plan, classes, queues, timing, admission, admitted)
    queues = _next_queues(classes, queues, waiting, admission, admitted, progress)
    share = stage(live, _evicted_share, plan, queues.running, queues.context)
    evicted = add_up(share * queues.running)
    queues = _evict(queues, share)
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
        evicted,
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
    queues = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*leaf.shape[:-1], batch)), queues)

    def tick(carry, arrivals):
        return advance_tick(live, plan, deployment, classes, *carry, arrivals), None

    (queues, tally), _ = jax.lax.scan(tick, (queues, empty_tally(queues)), counts)
    ttft_met, exceeded = stage(live, _first_token_times, plan, tally, ttft_slo_s)
    return WindowOutcome(queues=queues, tally=tally, ttft_met=ttft_met, ttft_exceeded=exceeded)


def _first_token_times(
    plan: WindowPlan, tally: Tally, ttft_slo_s: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """First tokens inside the objective, [F, ...], and later than each edge, [E, ...]."""
    admitted = jnp.maximum(tally.admitted, _TINY)
    classes, batch = tally.admitted.shape
    edges = jnp.broadcast_to(TTFT_EDGES_S[None, :, None], (classes, len(TTFT_EDGES_S), batch))
    limits = jnp.broadcast_to(ttft_slo_s[:, None], (classes, 1, batch))
    exceeded = ttft_exceeded(
        tally.admitted,
        tally.admitted_by_age,
        tally.first_token_s / admitted,
        tally.jitter_s / admitted,
        jnp.concatenate([edges, limits], axis=1),
        plan.tick_s,
    )
    return tally.admitted - exceeded[:, -1], add_up(exceeded[:, :-1])
