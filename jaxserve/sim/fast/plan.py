"""The knobs of a window resolved against the deployment as it stands: what the ticks work with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.sim.fast.prompt_work import (
    added_rows,
    alone_seconds,
    found_prefixes,
    prompt_work,
    second_shares,
)
from jaxserve.sim.fast.state import SimState
from jaxserve.sim.fast.tick_state import WindowPlan
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.table.lookup import LatencyTable, contract
from jaxserve.sim.traffic.workload import Arrivals, TrafficClasses
from jaxserve.types import ServeAction


def plan_window(
    state: SimState,
    action: ServeAction,
    arrivals: Arrivals,
    deployment: Deployment,
    classes: TrafficClasses,
    table: LatencyTable,
    window_s: float,
) -> WindowPlan:
    """The plan of a window under clipped knobs ``action``.

    Args:
      arrivals: counts float32[K, F]; K is the number of ticks.
      window_s: seconds (static).
    """
    ticks = len(arrivals.counts)
    tier = state.tier
    depth = action.speculation_depth
    window_table = contract(table, depth, tier)

    switching = jnp.clip(state.switch_left_s / window_s, 0.0, 1.0)
    out = jnp.clip(state.outage_left_s / window_s, 0.0, 1.0)
    # A switch takes one GPU away at a time; where there is only one, nothing serves.
    alone = deployment.num_gpus <= 1.0
    up_share = (1.0 - out) * jnp.where(alone, 1.0 - switching, 1.0)
    serving = jnp.where(alone, 1.0, (deployment.num_gpus - switching) / deployment.num_gpus)
    gpus = deployment.num_gpus * serving
    prefill_pool = state.prefill_gpus.astype(jnp.float32) * serving
    split = state.prefill_gpus > 0
    decode_gpus = gpus - prefill_pool
    prompt = classes.prompt_tokens
    scale = arrivals.acceptance_scale
    mean, mean_square = accepted_moments(classes.tokens_per_step, depth)
    # No more than all drafts are accepted, and always as many of them then.
    per_step = 1.0 + jnp.minimum(scale * (mean - 1.0), depth)
    step_variance = jnp.maximum(1.0 + scale * (mean_square - 1.0) - per_step**2, 0.0)
    # An output ends anywhere in its last step: half of the tokens after that step's first are lost.
    last_step = 0.5 * (1.0 - 1.0 / per_step)
    decode_tokens = jnp.maximum(classes.output_tokens - 1.0, 1.0)
    pool_tokens = _kv_pool(deployment.kv_pool_tokens, tier, action)
    work = prompt_work(classes, None)
    if classes.reuse is not None:
        prefilling = jnp.where(split, state.prefill_gpus, deployment.num_gpus.astype(jnp.int32))
        pool = action.kv_budget_fraction * pool_tokens
        found, shared = found_prefixes(classes.reuse, state.queues, prefilling, decode_gpus, pool)
        work = dataclasses.replace(
            prompt_work(classes, found),
            # KV that is handed over is not shared where it arrives.
            shared_kv=jnp.where(split, 0.0, shared),
        )
    if classes.output_ages is not None:
        work = dataclasses.replace(work, seconds=second_shares(window_table, work))
    group = jnp.where(action.priority_routing > 0, classes.priority, 0)
    return WindowPlan(
        table=window_table,
        added_s_per_token=added_rows(window_table, work),
        alone_s=alone_seconds(window_table, work),
        work=work,
        tokens_per_step=per_step,
        decode_tokens=decode_tokens,
        decode_steps=decode_tokens / per_step + last_step,
        batch_cap=action.batch_cap.astype(jnp.float32),
        verify_tokens=depth.astype(jnp.float32) + 1.0,
        group=group,
        split=split,
        prefill_gpus=jnp.where(split, prefill_pool, gpus),
        decode_gpus=decode_gpus,
        kv_tokens=decode_gpus * action.kv_budget_fraction * pool_tokens,
        prefill_kv_tokens=prefill_pool * action.kv_budget_fraction * pool_tokens,
        preempted_weight=jnp.where(split, classes.delay_weight, 1.0),
        kv_transfer_s=jnp.where(
            split, classes.delay_weight * prompt * deployment.kv_transfer_s_per_token, 0.0
        ),
        # A prompt's KV reaches a decoding GPU in the middle of one of its steps.
        short_output_steps=(classes.delay_weight - 1.0) * last_step
        + jnp.where(split, 0.5 * classes.delay_weight, 0.0),
        acceptance_spread=classes.delay_weight * step_variance / per_step,
        joule_per_token=deployment.joule_per_token[tier],
        joule_per_weight_pass=deployment.joule_per_weight_pass[tier],
        restarted=_restarted_share(state, deployment, window_s),
        time_scale=state.time_scale,
        tick_s=jnp.float32(window_s / ticks),
        clock=state.ticks,
        up_s=up_share * (window_s / ticks),
        capacity=up_share * serving,
        # An engine reserves its whole pool when it starts, and a smaller budget frees none of it.
        reserved_gib=deployment.weights_gib[tier]
        + deployment.activation_base_gib
        + _kv_pool(deployment.kv_pool_gib, tier, action)
        + jnp.where(depth > 0, deployment.draft_gib, 0.0),
    )


def accepted_moments(tokens_per_step: jax.Array, depth: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and mean square of the tokens that a decode step at ``depth`` emits, float32[F] each.

    ``tokens_per_step`` float32[F, 9] rises by the chance that the next draft position is accepted.
    """
    chances = jnp.diff(tokens_per_step, axis=1)
    odd = 2.0 * jnp.arange(1, chances.shape[1] + 1) + 1.0
    squares = jnp.concatenate([jnp.zeros_like(chances[:, :1]), jnp.cumsum(odd * chances, 1)], 1)
    index = jnp.broadcast_to(depth, (len(tokens_per_step), 1))
    return (
        jnp.take_along_axis(tokens_per_step, index, 1)[:, 0],
        1.0 + jnp.take_along_axis(squares, index, 1)[:, 0],
    )


def _restarted_share(state: SimState, deployment: Deployment, window_s: float) -> jax.Array:
    """Share of the running sequences that lose their KV because their GPU goes down.

    A rolling switch takes a GPU down when the one before is up again. Each of n GPUs holds 1/n of
    the sequences when the first goes down. A reload takes long: when the next one goes down, the
    first is up but empty, and the other n - 1 hold all sequences.
    """
    gpus = deployment.num_gpus
    reloads = state.switch_reloads
    away_s = jnp.maximum(jnp.where(reloads, deployment.restart_s, deployment.rerole_s), 1e-3)

    def still_to_go(left_s: jax.Array) -> jax.Array:
        return jnp.floor(jnp.maximum(left_s, 0.0) / away_s + 1e-3)

    go_down = still_to_go(state.switch_left_s) - still_to_go(state.switch_left_s - window_s)
    first = state.switch_left_s > state.switch_span_s - 0.5 * window_s
    holders = jnp.where(reloads & ~first, jnp.maximum(gpus - 1.0, 1.0), gpus)
    return jnp.where(state.switch_left_s > 0.0, jnp.minimum(go_down / holders, 1.0), 0.0)


def _kv_pool(pool: jax.Array, tier: jax.Array, action: ServeAction) -> jax.Array:
    return jnp.where(action.speculation_depth > 0, pool[tier, 1], pool[tier, 0])
