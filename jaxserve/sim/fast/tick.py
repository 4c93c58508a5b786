"""One scheduler tick of the fast simulator: arrivals, admission, prefill, decode, eviction.

A tick (1/8 s by default) is a fluid step: counts are real numbers, requests of one class are
exchangeable, and the GPUs of a pool share their load. Output lengths are memoryless, which by
Little's law leaves every steady state exact, or requests of one class and age are exchangeable
(``jaxserve.sim.fast.ages``). Times come from the latency table.

Arrays have class (and age) axes first and the batch axis last, ``[F, A, ...]``. The steps of a tick
are ``staged``: they take ``live`` first and are compiled apart from each other;
``jaxserve.arrays.batching`` says why.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, largest, stage, staged
from jaxserve.sim.fast.admission import joining_share, readmit, reject
from jaxserve.sim.fast.ages import (
    advance,
    age_sum,
    begin,
    come_back,
    join,
    prefill,
)
from jaxserve.sim.fast.eviction import evict, evictions
from jaxserve.sim.fast.latency import TTFT_EDGES_S, FirstTokenDelay, ttft_exceeded
from jaxserve.sim.fast.lines import age_by_one_tick, fifo_cut
from jaxserve.sim.fast.prompt_work import seconds_spread
from jaxserve.sim.fast.room import find_room, prefill_line, stolen_share
from jaxserve.sim.fast.tick_state import (
    TINY,
    Admission,
    Conditions,
    Decoding,
    Lines,
    Queues,
    Tally,
    TickEvents,
    Timing,
    WindowPlan,
    counted,
    empty_tally,
)
from jaxserve.sim.fast.timing import (
    alive_share,
    chunks,
    find_timing,
    gpu_share,
    held_s,
    prefill_seconds,
)
from jaxserve.sim.fast.waiting_times import (
    ROUTING_MIXED,
    ROUTING_SPLIT,
    add_prefills,
    add_wait,
    either_wait,
    mean_wait,
    prefill_share,
    prefill_wait,
)
from jaxserve.sim.traffic.output_ages import OutputAges
from jaxserve.sim.traffic.workload import TrafficClasses


@staged
def _decode(
    plan: WindowPlan,
    lifetimes: OutputAges | None,
    queues: Queues,
    timing: Timing,
    admission: Admission,
    admitted: jax.Array,
    joining: jax.Array,
    left: jax.Array,
) -> Decoding:
    """Decode progress of the batch in the time that prefill leaves of the tick."""
    # Utilisation of the prefill GPUs: share = sum_f admitted_f own_s_f / (GPUs x seconds up).
    prefill_s = admission.recompute_s + add_up(admitted * admission.own_s)
    share = jnp.clip(prefill_s / jnp.maximum(plan.prefill_gpus * plan.up_s, TINY), 0.0, 1.0)
    # Requests join at a uniform time of the tick, so they decode for half of it on average.
    present = queues.running + admission.returning + 0.5 * joining * admitted
    # steps = (1 - stolen) up / t(step), and progress is in mean outputs: steps / steps per output.
    line = prefill_line(plan, timing, prefill_s, left)
    stolen = stolen_share(plan, share, line, add_up(present), admission.full)
    steps = plan.up_s * (1.0 - stolen) / timing.step_s
    progress = steps / plan.decode_steps
    if lifetimes is not None and queues.ages is not None:
        # Lengths with memory: each bin of age ends at its own hazard; preempted sequences keep
        # their age, and in a split those without room on a decoding GPU wait at age 0.
        ages = come_back(queues.ages, _share(admission.returning, queues.preempted))
        ages, before = advance(lifetimes, ages, progress)
        ages, new = join(lifetimes, ages, joining * admitted, progress)
        # Rounding must not make counts of an idle server negative.
        both = jax.tree.map(lambda x, y: jnp.maximum(x + y, 0.0), before, new)
        held_back = begin((1.0 - joining) * admitted, ages.phase, ages.running.shape[1])
        prefill_s_each = held_s(admission.own_s, chunks(plan.work, timing), timing)
        ages = prefill(ages, joining * admitted, prefill_s_each, plan.tick_s)
        return Decoding(
            prefill_s=prefill_s,
            steps=steps,
            completed=both.completed,
            tokens=both.alive * progress * plan.decode_tokens,
            alive_s=both.alive * plan.tick_s,
            ages=dataclasses.replace(ages, preempted=ages.preempted + held_back),
        )
    # Memoryless lengths: present (1 - exp(-progress)) sequences end, alive ones decode on.
    alive = present * alive_share(progress)
    completed = alive * progress
    return Decoding(
        prefill_s=prefill_s,
        steps=steps,
        completed=completed,
        tokens=completed * plan.decode_tokens,
        alive_s=alive * plan.tick_s,
    )


def _share(part: jax.Array, whole: jax.Array) -> jax.Array:
    """``part / whole`` in 0..1; 0 where there is nothing."""
    return jnp.clip(part / jnp.maximum(whole, TINY), 0.0, 1.0)


def _next_queues(
    plan: WindowPlan,
    classes: TrafficClasses,
    queues: Queues,
    admission: Admission,
    admitted: jax.Array,
    joining: jax.Array,
    decoding: Decoding,
) -> Queues:
    """Queues after admission and decoding, before eviction; requests and KV tokens balance."""
    context = queues.context + admission.returning_context
    # In a split, prefilled requests without room on a decoding GPU count as preempted.
    joined, held_back = joining * admitted, (1.0 - joining) * admitted
    prompt_tokens = joined * classes.prompt_tokens
    present = queues.running + admission.returning + 0.5 * joined
    held = (context + 0.5 * prompt_tokens) / jnp.maximum(present, TINY)
    if classes.output_ages is None or queues.ages is None or decoding.ages is None:
        # KV tokens = before + prompts + decoded - completed x mean context of those present.
        grown = decoding.tokens * classes.output_growth
        left = context + prompt_tokens + grown - decoding.completed * held
    else:
        # KV tokens = prompts of the sequences that stay + outputs as their ages tell.
        lifetimes, life = classes.output_ages, plan.decode_tokens
        back = come_back(queues.ages, _share(admission.returning, queues.preempted))
        prompts = jnp.maximum(context - life * age_sum(lifetimes, back), 0.0) + prompt_tokens
        begun = queues.running + admission.returning + joined
        left = prompts * (1.0 - _share(decoding.completed, begun))
        left = left + life * age_sum(lifetimes, decoding.ages)
    after = Queues(
        running=queues.running + admission.returning + joined - decoding.completed,
        context=jnp.maximum(left, 0.0),
        preempted=queues.preempted - admission.returning + held_back,
        preempted_context=queues.preempted_context
        - admission.returning_context
        + held_back * classes.prompt_tokens,
        recompute_context=queues.recompute_context - admission.recomputed,
        ages=decoding.ages,
    )
    return counted(after)


@staged
def _record(conditions: Conditions, queues: Queues, tally: Tally, tick: TickEvents) -> Tally:
    """The tally with the tick added."""
    plan, deployment = conditions.plan, conditions.deployment
    timing, admission, decoding = tick.timing, tick.admission, tick.decoding
    admitted = tick.admitted
    own_s = admission.own_s
    # Chunked prefill beside a batch: prefill_s = own seconds + a decode step for each chunk
    # (Sarathi-Serve, Agrawal et al., OSDI 2024).
    iterations = chunks(plan.work, timing)
    prefill_s = own_s + timing.beside_batch * iterations * timing.step_s
    # Where prefill is the limit, all n GPUs of the fluid prefill a request together, in 1/n of its
    # time, and half of that has passed when it counts as admitted: streamed_s = prefill_s / 2n.
    prefill_bound = decoding.prefill_s / jnp.maximum(timing.prefill_room_s, TINY)
    streamed_s = 0.5 * jnp.minimum(prefill_bound, 1.0) / plan.prefill_gpus * prefill_s
    # One that takes longer than a tick is prefilled by one GPU.
    streamed_s = jnp.maximum(streamed_s, 0.5 * (1.0 - gpu_share(plan, own_s)) * prefill_s)
    # A prefill of more than n GPU ticks shows in the fluid's queue, so only min(prefill_s, n ticks)
    # is a chance wait. With several priority groups all of it is: the fluid lets a request of
    # higher priority overtake, but a GPU finishes the prefill that it has begun.
    unqueued_s = jnp.where(
        largest(plan.group) > -largest(-plan.group),
        prefill_s,
        jnp.minimum(prefill_s, plan.prefill_gpus * plan.tick_s),
    )
    prefills = add_prefills(
        tally.prefills,
        admitted,
        seconds_spread(plan.work),
        unqueued_s,
        iterations,
        own_s,
        timing.full_chunk_s,
        skewed=plan.work.seconds is not None,
    )
    # Peak memory of an iteration: a x (rows + chunk) + b x rows, for rows = verified positions of
    # the batch and a chunk of as many prompt tokens as came, at most the token budget's rest.
    prompt_tokens = add_up(admitted * plan.work.tokens)
    rows = timing.batch * plan.verify_tokens
    chunk = jnp.minimum(prompt_tokens / plan.prefill_gpus, timing.chunk_room)
    activations = (
        deployment.activation_gib_per_token * (rows + chunk) + deployment.logits_gib_per_row * rows
    )
    # Each prefill stalls the decode batch of one of n GPUs: sum own_s^2 / n feeds TPOT's spread.
    stall_s2 = jnp.where(plan.split, 0.0, add_up(admitted * own_s**2) / plan.prefill_gpus)
    # Energy above idle = J/token x tokens computed + J/pass x passes over the weights
    # + J/KV token x KV tokens read (``jaxserve.sim.machine.energy``).
    computed = (
        prompt_tokens
        + add_up(admission.recomputed)
        + decoding.steps * add_up(queues.running) * plan.verify_tokens
    )
    work_j = (
        plan.joule_per_token * computed
        + plan.joule_per_weight_pass
        * (decoding.steps * jnp.minimum(timing.batch, 1.0) * plan.decode_gpus)
        + deployment.joule_per_kv_token * decoding.steps * add_up(queues.context)
    )
    return dataclasses.replace(
        tally,
        rejected=tally.rejected + tick.rejected,
        admitted=tally.admitted + admitted,
        completed=tally.completed + decoding.completed,
        prefill_s=tally.prefill_s + admitted * prefill_s,
        streamed_s=tally.streamed_s + admitted * streamed_s,
        residual_s=tally.residual_s + add_up(admitted) * timing.beside_batch * timing.step_s,
        prefills=prefills,
        blocked=add_wait(tally.blocked, admission.blocked, add_up(admitted)),
        decode_s=tally.decode_s
        + decoding.alive_s
        + plan.preempted_weight * queues.preempted * plan.tick_s,
        stall_s2=tally.stall_s2 + stall_s2,
        steps=tally.steps + decoding.steps,
        decode_only_s=tally.decode_only_s + decoding.steps * timing.step_s,
        preemptions=tally.preemptions + add_up(tick.evicted.count),
        peak_activation_gib=jnp.maximum(tally.peak_activation_gib, activations),
        work_j=tally.work_j + work_j,
        decoded=None if tally.decoded is None else tally.decoded + decoding.tokens,
    )


@staged
def _tick_traffic(arrivals: jax.Array, clock: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as they are, but written out: XLA does not vectorise the loop over all ages if the
    traffic is indexed inside it."""
    return arrivals, clock


def advance_tick(
    live: jax.Array,
    conditions: Conditions,
    lines: Lines,
    queues: Queues,
    tally: Tally,
    arrivals: jax.Array,
    number: jax.Array,
) -> tuple[Lines, Queues, Tally]:
    """Advances the deployment by one tick.

    Args:
      live: bool, see ``jaxserve.arrays.batching.stage``.
      conditions: plan of the window, deployment and traffic classes.
      lines: waiting requests by age, float32[F, A, ...], and the window's admissions so far.
      queues: running and preempted sequences, float32[F, ...] each.
      tally: sums over the window's earlier ticks.
      arrivals: float32[F, ...], requests that arrive in the tick.
      number: int32, tick of the window, from 0.

    Returns:
      lines, queues and tally at the end of the tick.
    """
    plan, classes = conditions.plan, conditions.classes
    # Iteration times under the batch as it is; slots, KV and prefill seconds that requests find.
    queued = lines.waiting[:, 0]
    timing = find_timing(live, conditions, queues, queued, arrivals)
    own_s = prefill_seconds(live, plan, timing)
    room = find_room(live, conditions, queues, timing, own_s, queued, arrivals)
    # Preempted sequences come back first; the oldest waiting requests take the rest.
    candidates = queued + arrivals
    admission = readmit(live, plan, classes, queues, timing, own_s, room, candidates)
    arrivals, clock = _tick_traffic(live, arrivals, plan.clock + number)
    waiting = age_by_one_tick(lines.waiting, arrivals, clock)
    begun = fifo_cut(live, waiting, plan.group, admission.usage)
    admitted = admission.tick_share * begun
    served = jnp.minimum(waiting, admitted[:, None])
    waiting = waiting - served
    # A full queue turns arrivals away.
    preempted = queues.preempted - admission.returning
    rejected = reject(live, plan, conditions.deployment, waiting[:, 0], arrivals, preempted)
    lines = Lines(waiting.at[:, 0].add(-rejected), lines.admitted + served)
    # The batch decodes in the time that prefill leaves; the last priorities lose KV that is short.
    joining = joining_share(live, plan, classes, admission, admitted)
    left = add_up(waiting[:, 0])
    decoding = _decode(
        live, plan, classes.output_ages, queues, timing, admission, admitted, joining, left
    )
    queues = _next_queues(plan, classes, queues, admission, admitted, joining, decoding)
    evicted = evictions(live, plan, classes, queues, admission, decoding, number == 0)
    queues = evict(queues, evicted)
    events = TickEvents(timing, admission, admitted, rejected, decoding, evicted)
    return lines, queues, _record(live, conditions, queues, tally, events)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FirstTokens:
    """First tokens of a window by their TTFT."""

    met: jax.Array
    """float32[F, ...], first tokens inside the TTFT objective."""
    exceeded: jax.Array
    """float32[len(TTFT_EDGES_S), ...], first tokens later than each edge."""


def run_ticks(
    live: jax.Array,
    conditions: Conditions,
    ttft_slo_s: jax.Array,
    waiting: jax.Array,
    queues: Queues,
    counts: jax.Array,
) -> tuple[jax.Array, Queues, Tally, FirstTokens]:
    """Advances the deployment by all ticks of a window.

    Args:
      live: bool, see ``jaxserve.arrays.batching.stage``.
      conditions: plan of the window, deployment and traffic classes.
      ttft_slo_s: float32[F, ...], TTFT objectives, s.
      waiting: float32[F, A, ...], waiting requests by age, see ``Lines``.
      queues: running and preempted sequences, float32[F, ...] each.
      counts: float32[K, F, ...], arrivals of the K ticks.

    Returns:
      waiting requests and queues at the end, sums over the ticks, and the first tokens.
    """
    # Loop carries need one shape throughout: the batch axis is written out.
    batch = max(leaf.shape[-1] for leaf in jax.tree.leaves((conditions.plan, queues, counts)))
    waiting, queues = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (*leaf.shape[:-1], batch)), (waiting, queues)
    )

    def tick(carry, traffic):
        return advance_tick(live, conditions, *carry, *traffic), None

    ticks = counts.shape[0]
    start = (Lines(waiting, jnp.zeros_like(waiting)), queues, empty_tally(queues))
    (lines, queues, tally), _ = jax.lax.scan(tick, start, (counts, jnp.arange(ticks)))
    # TTFT of the window's admissions, counted at the edges of the histogram and at the objective.
    plan = conditions.plan
    gpu_s = ticks * plan.prefill_gpus * plan.up_s
    delay = _first_token_delay(live, conditions, tally, gpu_s)
    limits = [jnp.full_like(tally.admitted, edge) for edge in TTFT_EDGES_S]
    limits.append(jnp.broadcast_to(ttft_slo_s, tally.admitted.shape))
    exceeded = ttft_exceeded(
        live,
        tally.admitted,
        lines.admitted,
        delay,
        jnp.stack(limits, axis=1),
        plan.tick_s,
    )
    first = FirstTokens(
        met=tally.admitted - exceeded[:, -1],
        exceeded=stage(live, lambda counts: add_up(counts[:, :-1]), exceeded),
    )
    return lines.waiting, queues, tally, first


@staged
def _first_token_delay(conditions: Conditions, tally: Tally, gpu_s: jax.Array) -> FirstTokenDelay:
    """Delay of a first token beyond queueing; ``gpu_s`` float32, the window's prefill GPU seconds.

    TTFT = front end + rest of the decode step that runs + wait for prefills of others + own prefill
    """
    plan, deployment = conditions.plan, conditions.deployment
    work = plan.work
    admitted = jnp.maximum(tally.admitted, TINY)
    prefill_s = tally.prefill_s / admitted
    count = jnp.maximum(add_up(tally.admitted), TINY)
    residual_s = tally.residual_s / count
    routing = jnp.where(plan.split, ROUTING_SPLIT, ROUTING_MIXED)
    in_progress = prefill_wait(tally.prefills, plan.prefill_gpus, gpu_s, residual_s, count, routing)
    # Prompts that arrive during one decode step share the next iteration: each waits for the
    # prefill time of the others, on average utilisation x step.
    company_s = prefill_share(tally.prefills, gpu_s) * residual_s
    tail_s = deployment.frontend_tail_s
    # A request that has queued finds no step to wait for, and part of its prefill has streamed in.
    queued_points_s = None
    parts = work.parts
    if parts is None:
        points = work.seconds
        beyond_s = ((1.0 - work.floor) * prefill_s)[None]
        deviation_s = (seconds_spread(work) * prefill_s)[None]
    else:
        points = parts.seconds
        beyond_s = (points - work.floor) * prefill_s
        deviation_s = parts.spread * points * prefill_s
    if points is not None:
        unstreamed_s = prefill_s - tally.streamed_s / admitted
        queued_points_s = deployment.frontend_s + tail_s + points * unstreamed_s
    # Moments of the random part: exponential front end (mean tail_s), uniform rest of a step
    # (variance r^2 / 12), and prompts that are longer than the shortest of their class.
    beside_s = tail_s + 0.5 * residual_s + company_s
    return FirstTokenDelay(
        least_s=deployment.frontend_s + work.floor * prefill_s,
        mean_s=beside_s + beyond_s,
        variance_s2=tail_s**2 + residual_s**2 / 12.0 + deviation_s**2,
        wait=either_wait(in_progress, mean_wait(tally.blocked, count)),
        queued_s=deployment.frontend_s + tail_s + prefill_s - tally.streamed_s / admitted,
        queued_points_s=queued_points_s,
        shares=None if parts is None else parts.shares,
    )
