"""One control window of the fast simulator: knobs -> ticks -> what the operator sees.

The knobs are held for the window. Knobs that need a restart (tier, split) start a rolling switch
that takes one GPU at a time; the rest act at once.
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from jaxserve.sim.deployment import Deployment
from jaxserve.sim.latency import TTFT_EDGES_S, tpot_met_share
from jaxserve.sim.table import (
    LatencyTable,
    added_s_per_token_rows,
    contract,
    prefill_s_per_token,
)
from jaxserve.sim.tick import run_ticks
from jaxserve.sim.tick_state import TINY, Queues, WindowPlan
from jaxserve.sim.waiting import AGE_KNOTS
from jaxserve.sim.workload import Arrivals, TrafficClasses
from jaxserve.types import ServeAction, WindowMetrics


@flax.struct.dataclass
class Slo:
    """Per-class service level objectives."""

    ttft_s: jax.Array
    """float32[F], limit on time to first token, s."""
    tpot_s: jax.Array
    """float32[F], limit on mean time per output token after the first, s."""


@flax.struct.dataclass
class SimState:
    """The simulator's state between windows."""

    queues: Queues
    ttft_met: jax.Array
    """float32[F], requests in service whose first token came in time."""
    decode_s: jax.Array
    """float32[F], seconds since first token, summed over requests in service."""
    decode_tokens: jax.Array
    """float32[F], tokens decoded so far, summed over requests in service."""
    tier: jax.Array
    """int32, quantisation tier in force."""
    prefill_gpus: jax.Array
    """int32, prefill GPUs in force, 0 = colocated."""
    target_tier: jax.Array
    """int32, tier a running switch leads to (equal to ``tier`` when none runs)."""
    target_prefill_gpus: jax.Array
    """int32, the same for the split."""
    switch_left_s: jax.Array
    """float32, seconds until the running switch is done."""
    switch_span_s: jax.Array
    """float32, how long the running switch takes in all."""
    outage_left_s: jax.Array
    """float32, seconds until an out-of-memory restart is done."""
    ticks: jax.Array
    """int32, scheduler ticks since the start of the episode."""
    time_scale: jax.Array
    """float32, slowness of this episode's hardware relative to the table."""


def init_sim(class_count: int, time_scale: jax.Array) -> SimState:
    """An idle deployment: FP16, colocated."""
    vector = jnp.zeros(class_count)
    zero = jnp.float32(0.0)
    return SimState(
        queues=Queues(
            waiting=jnp.zeros((class_count, len(AGE_KNOTS))),
            running=vector,
            context=vector,
            preempted=vector,
            preempted_context=vector,
        ),
        ttft_met=vector,
        decode_s=vector,
        decode_tokens=vector,
        tier=jnp.int32(0),
        prefill_gpus=jnp.int32(0),
        target_tier=jnp.int32(0),
        target_prefill_gpus=jnp.int32(0),
        switch_left_s=zero,
        switch_span_s=zero,
        outage_left_s=zero,
        ticks=jnp.int32(0),
        time_scale=jnp.asarray(time_scale, jnp.float32),
    )


def advance_window(
    state: SimState,
    action: ServeAction,
    arrivals: Arrivals,
    *,
    deployment: Deployment,
    classes: TrafficClasses,
    table: LatencyTable,
    slo: Slo,
    window_s: float,
) -> tuple[SimState, WindowMetrics]:
    """Advances the deployment by one window under clipped knobs ``action``.

    Args:
      arrivals: counts float32[K, F]; K is the number of ticks.
      window_s: seconds (static).
    """
    ticks, _ = arrivals.counts.shape
    state = _start_switch(state, action, deployment)
    plan, capacity = _plan_window(
        state, action, arrivals, deployment, classes, table, window_s, ticks
    )

    outcome = run_ticks(plan, deployment, classes, slo.ttft_s, state.queues, arrivals.counts)
    queues, tally = outcome.queues, outcome.tally

    reserved_gib = (
        deployment.weights_gib[state.tier]
        + deployment.activation_base_gib
        + _kv_pool(deployment.kv_pool_gib, state.tier, action) * action.kv_budget_fraction
        + jnp.where(action.speculation_depth > 0, deployment.draft_gib, 0.0)
    )
    memory_gib = reserved_gib + tally.peak_activation_gib
    oom = memory_gib > deployment.device_gib
    lost = jnp.where(oom, queues.running, 0.0)
    queues = dataclasses.replace(
        queues, running=queues.running - lost, context=jnp.where(oom, 0.0, queues.context)
    )

    first_tokens = jnp.sum(tally.admitted)
    above = jnp.concatenate([first_tokens[None], outcome.ttft_exceeded, jnp.zeros(1)])

    # Requests in service during the window: those there before plus those admitted.
    in_service = jnp.maximum(state.queues.running + state.queues.preempted + tally.admitted, TINY)
    met_pool = state.ttft_met + outcome.ttft_met
    decode_s = state.decode_s + tally.decode_s
    decode_tokens = state.decode_tokens + tally.decode_tokens
    tpot_s = jnp.where(decode_tokens > 1e-3, decode_s / jnp.maximum(decode_tokens, 1e-3), 0.0)
    met_share = jnp.clip(met_pool / in_service, 0.0, 1.0) * tpot_met_share(
        tpot_s, slo.tpot_s, tally.stall_s2 / window_s, classes.output_tokens
    )
    stays = jnp.clip((in_service - tally.completed - lost) / in_service, 0.0, 1.0)
    itl_s = window_s * plan.up_s / plan.tick_s / jnp.maximum(tally.steps, TINY)

    energy_j = (
        deployment.num_gpus
        * window_s
        * jnp.minimum(
            deployment.idle_w + tally.work_j / (deployment.num_gpus * window_s), deployment.max_w
        )
    )
    depth = jnp.maximum(action.speculation_depth, 1)
    running_share = queues.running / jnp.maximum(jnp.sum(queues.running), TINY)
    accepted = jnp.sum(running_share * (plan.tokens_per_step - 1.0)) / depth
    metrics = WindowMetrics(
        arrivals=jnp.sum(arrivals.counts, axis=0),
        completed=tally.completed,
        good=tally.completed * met_share,
        rejected=tally.rejected,
        lost=lost,
        waiting=queues.waiting[:, 0] + queues.preempted,
        running=queues.running,
        first_tokens=tally.admitted,
        ttft_met=outcome.ttft_met,
        ttft_histogram=above[:-1] - above[1:],
        tpot_s=tpot_s,
        itl_s=itl_s,
        tokens=jnp.sum(tally.decode_tokens) + first_tokens,
        preemptions=tally.preemptions,
        memory_gib=memory_gib,
        energy_j=energy_j,
        cost_usd=deployment.num_gpus * window_s * deployment.usd_per_gpu_s
        + energy_j * deployment.usd_per_joule,
        kv_occupancy=jnp.clip(jnp.sum(queues.context) / plan.kv_tokens, 0.0, 1.0),
        acceptance=jnp.where(action.speculation_depth > 0, accepted, 0.0),
        capacity=capacity,
        oom=oom.astype(jnp.float32),
        regime=arrivals.regime,
        tier=state.tier,
        prefill_gpus=state.prefill_gpus,
    )
    state = dataclasses.replace(
        state,
        queues=queues,
        ticks=state.ticks + ticks,
        ttft_met=met_pool * stays,
        decode_s=decode_s * stays,
        decode_tokens=decode_tokens * stays,
        outage_left_s=jnp.where(
            oom, deployment.oom_restart_s, jnp.maximum(state.outage_left_s - window_s, 0.0)
        ),
    )
    return _finish_switch(state, window_s), metrics


def idle_metrics(class_count: int) -> WindowMetrics:
    """Metrics of a window in which nothing happened."""
    vector = jnp.zeros(class_count)
    zero = jnp.float32(0.0)
    return WindowMetrics(
        arrivals=vector,
        completed=vector,
        good=vector,
        rejected=vector,
        lost=vector,
        waiting=vector,
        running=vector,
        first_tokens=vector,
        ttft_met=vector,
        ttft_histogram=jnp.zeros(len(TTFT_EDGES_S) + 1),
        tpot_s=vector,
        itl_s=zero,
        tokens=zero,
        preemptions=zero,
        memory_gib=zero,
        energy_j=zero,
        cost_usd=zero,
        kv_occupancy=zero,
        acceptance=zero,
        capacity=jnp.float32(1.0),
        oom=zero,
        regime=jnp.int32(0),
        tier=jnp.int32(0),
        prefill_gpus=jnp.int32(0),
    )


def _start_switch(state: SimState, action: ServeAction, deployment: Deployment) -> SimState:
    """Begins a rolling switch when the knobs ask for one and none is running."""
    idle = state.switch_left_s <= 0.0
    split = jnp.minimum(action.prefill_decode_split, deployment.num_gpus.astype(jnp.int32) - 1)
    new_tier = action.quantization_tier != state.tier
    re_roled = jnp.abs(split - state.prefill_gpus).astype(jnp.float32)
    span = jnp.where(new_tier, deployment.restart_s * deployment.num_gpus, 0.0)
    span = jnp.maximum(span, deployment.rerole_s * re_roled)
    starts = idle & (span > 0.0)
    return dataclasses.replace(
        state,
        target_tier=jnp.where(starts, action.quantization_tier, state.target_tier),
        target_prefill_gpus=jnp.where(starts, split, state.target_prefill_gpus),
        switch_left_s=jnp.where(starts, span, state.switch_left_s),
        switch_span_s=jnp.where(starts, span, state.switch_span_s),
    )


def _finish_switch(state: SimState, window_s: float) -> SimState:
    """Half-way through a roll most GPUs have changed: that is when the new setting takes over."""
    left = jnp.maximum(state.switch_left_s - window_s, 0.0)
    over = left <= 0.5 * state.switch_span_s
    return dataclasses.replace(
        state,
        switch_left_s=left,
        tier=jnp.where(over, state.target_tier, state.tier),
        prefill_gpus=jnp.where(over, state.target_prefill_gpus, state.prefill_gpus),
    )


def _plan_window(
    state: SimState,
    action: ServeAction,
    arrivals: Arrivals,
    deployment: Deployment,
    classes: TrafficClasses,
    table: LatencyTable,
    window_s: float,
    ticks: int,
) -> tuple[WindowPlan, jax.Array]:
    """Resolves the knobs; also returns the share of the GPUs that serve, 0..1."""
    tier = state.tier
    depth = action.speculation_depth
    window_table = contract(table, depth, tier)

    switching = jnp.clip(state.switch_left_s / window_s, 0.0, 1.0)
    out = jnp.clip(state.outage_left_s / window_s, 0.0, 1.0)
    # A single GPU that switches is an outage; of several, one is away at a time.
    alone = deployment.num_gpus <= 1.0
    up_share = (1.0 - out) * jnp.where(alone, 1.0 - switching, 1.0)
    serving = jnp.where(alone, 1.0, (deployment.num_gpus - switching) / deployment.num_gpus)
    gpus = deployment.num_gpus * serving
    prefill_pool = state.prefill_gpus.astype(jnp.float32) * serving
    split = state.prefill_gpus > 0
    decode_gpus = gpus - prefill_pool
    prompt = classes.prompt_tokens
    scale = arrivals.acceptance_scale
    at_depth = jnp.take_along_axis(
        classes.tokens_per_step, jnp.broadcast_to(depth, (classes.prompt_tokens.shape[0], 1)), 1
    )[:, 0]
    per_step = 1.0 + scale * (at_depth - 1.0)
    decode_tokens = jnp.maximum(classes.output_tokens - 1.0, 1.0)
    plan = WindowPlan(
        table=window_table,
        # Per token, long prompts cost more, and most tokens are in the longer ones.
        added_s_per_token=added_s_per_token_rows(
            window_table, prompt * (1.0 + classes.prompt_spread**2)
        ),
        alone_s=prompt * prefill_s_per_token(window_table, prompt),
        tokens_per_step=per_step,
        decode_tokens=decode_tokens,
        # Half of what a step yields beyond the first token is too much in the last one.
        decode_steps=decode_tokens / per_step + 0.5 * (1.0 - 1.0 / per_step),
        batch_cap=action.batch_cap.astype(jnp.float32),
        verify_tokens=depth.astype(jnp.float32) + 1.0,
        group=jnp.where(action.priority_routing > 0, classes.priority, 0),
        split=split,
        prefill_gpus=jnp.where(split, prefill_pool, gpus),
        decode_gpus=decode_gpus,
        kv_tokens=decode_gpus
        * action.kv_budget_fraction
        * _kv_pool(deployment.kv_pool_tokens, tier, action),
        prefill_kv_tokens=prefill_pool
        * action.kv_budget_fraction
        * _kv_pool(deployment.kv_pool_tokens, tier, action),
        kv_transfer_s=prompt * deployment.kv_transfer_s_per_token,
        joule_per_token=deployment.joule_per_token[tier],
        joule_per_weight_pass=deployment.joule_per_weight_pass[tier],
        restarted=_restarted_share(state, deployment, window_s),
        time_scale=state.time_scale,
        tick_s=jnp.float32(window_s / ticks),
        clock=state.ticks,
        up_s=up_share * (window_s / ticks),
    )
    return plan, up_share * serving


def _restarted_share(state: SimState, deployment: Deployment, window_s: float) -> jax.Array:
    """Share of the running sequences that lose their KV because their GPU goes down.

    A rolling switch takes the next GPU when the last one is back. The first to go holds its share
    of what runs; by then it is empty and up again, so the others hold all.
    """
    gpus = deployment.num_gpus
    reloads = state.switch_span_s > deployment.restart_s * gpus - 1e-3
    away_s = jnp.maximum(jnp.where(reloads, deployment.restart_s, deployment.rerole_s), 1e-3)

    def still_to_go(left_s: jax.Array) -> jax.Array:
        return jnp.floor(jnp.maximum(left_s, 0.0) / away_s + 1e-3)

    go_down = still_to_go(state.switch_left_s) - still_to_go(state.switch_left_s - window_s)
    first = state.switch_left_s > state.switch_span_s - 0.5 * window_s
    holders = jnp.where(reloads & ~first, jnp.maximum(gpus - 1.0, 1.0), gpus)
    return jnp.where(state.switch_left_s > 0.0, jnp.minimum(go_down / holders, 1.0), 0.0)


def _kv_pool(pool: jax.Array, tier: jax.Array, action: ServeAction) -> jax.Array:
    return jnp.where(action.speculation_depth > 0, pool[tier, 1], pool[tier, 0])
