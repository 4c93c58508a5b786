"""Plan of a window: the knobs resolved against the deployment as it stands."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.fleet import draining_gpus
from jaxserve.sim.fast.prompt_work import (
    added_rows,
    alone_seconds,
    found_prefixes,
    prompt_parts,
    prompt_work,
    second_shares,
)
from jaxserve.sim.fast.state import SimState
from jaxserve.sim.fast.tick_state import TINY, PromptWork, WindowPlan
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.machine.memory import SequenceKv
from jaxserve.sim.table.lookup import LatencyTable, WindowTable, contract
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
    """Resolves the knobs of a window.

    Args:
      state: the deployment at the start of the window.
      action: scalar knobs, clipped to their bounds.
      arrivals: counts float32[K, F]; K is the number of ticks.
      deployment: GPUs, memory, delays and prices.
      classes: traffic classes.
      table: iteration times.
      window_s: seconds of the window (static).
    """
    ticks = len(arrivals.counts)
    tier, depth = state.tier, action.speculation_depth
    window_table = contract(table, depth, tier)
    capacity = _capacity(state, deployment, window_s)
    split, prefill_pool = capacity.split, capacity.prefill_gpus
    drafts = _drafts(classes, arrivals.acceptance_scale, depth)
    decode_tokens = jnp.maximum(classes.output_tokens - 1.0, 1.0)
    pool_tokens = _kv_pool(deployment.kv_pool_tokens, tier, action)
    pool = action.kv_budget_fraction * pool_tokens
    if state.fleet is not None:
        kv_each = state.queues.context / jnp.maximum(state.queues.running, TINY)
        kept = draining_gpus(state.fleet, action.batch_cap.astype(jnp.float32), kv_each, pool)
        capacity = capacity._replace(decode_gpus=capacity.decode_gpus + kept)
    work = _prompts(state, classes, window_table, deployment, capacity, pool)
    if deployment.sequence_kv is not None:
        beside = _beside_kv(deployment.sequence_kv, classes)
        work = dataclasses.replace(work, beside_kv=beside)
    group = jnp.where(action.priority_routing > 0, classes.priority, 0)
    return WindowPlan(
        table=window_table,
        added_s_per_token=added_rows(window_table, work),
        alone_s=alone_seconds(window_table, work),
        work=work,
        tokens_per_step=drafts.per_step,
        decode_tokens=decode_tokens,
        decode_steps=decode_tokens / drafts.per_step + drafts.last_step,
        batch_cap=action.batch_cap.astype(jnp.float32),
        verify_tokens=depth.astype(jnp.float32) + 1.0,
        group=group,
        split=split,
        prefill_gpus=jnp.where(split, prefill_pool, capacity.gpus),
        decode_gpus=capacity.decode_gpus,
        kv_tokens=capacity.decode_gpus * action.kv_budget_fraction * pool_tokens,
        prefill_kv_tokens=prefill_pool * action.kv_budget_fraction * pool_tokens,
        preempted_weight=jnp.where(split, classes.delay_weight, 1.0),
        kv_transfer_s=jnp.where(
            split,
            classes.delay_weight
            * deployment.kv_of(classes.prompt_tokens)
            * deployment.kv_transfer_s_per_token,
            0.0,
        ),
        # A prompt's KV reaches a decoding GPU in the middle of one of its steps.
        short_output_steps=(classes.delay_weight - 1.0) * drafts.last_step
        + jnp.where(split, 0.5 * classes.delay_weight, 0.0),
        acceptance_spread=classes.delay_weight * drafts.step_variance / drafts.per_step,
        joule_per_token=deployment.joule_per_token[tier],
        joule_per_weight_pass=deployment.joule_per_weight_pass[tier],
        restarted=_restarted_share(state, deployment, window_s),
        time_scale=state.time_scale,
        tick_s=jnp.float32(window_s / ticks),
        clock=state.ticks,
        up_s=capacity.up_share * (window_s / ticks),
        capacity=capacity.up_share * capacity.serving,
        # An engine reserves its whole pool when it starts, and a smaller budget frees none of it.
        reserved_gib=deployment.weights_gib[tier]
        + deployment.activation_base_gib
        + _kv_pool(deployment.kv_pool_gib, tier, action)
        + jnp.where(depth > 0, deployment.draft_gib, 0.0),
        rented_gpus=None if state.fleet is None else state.fleet.rented,
    )


class _Capacity(NamedTuple):
    """GPUs of a window; float32 scalars unless said otherwise."""

    up_share: jax.Array
    """share of the window in which the deployment is up at all."""
    serving: jax.Array
    """share of the GPUs that serve while it is up."""
    gpus: jax.Array
    """GPUs that serve."""
    prefill_gpus: jax.Array
    """GPUs that only prefill, 0 when colocated."""
    decode_gpus: jax.Array
    """GPUs that decode."""
    split: jax.Array
    """bool, whether prefill and decode run on different GPUs."""


def _capacity(state: SimState, deployment: Deployment, window_s: float) -> _Capacity:
    """GPUs that serve in a window, less the one that a rolling switch or a restart takes away."""
    switching = jnp.clip(state.switch_left_s / window_s, 0.0, 1.0)
    out = jnp.clip(state.outage_left_s / window_s, 0.0, 1.0)
    up_share, up, prefill_gpus = 1.0 - out, deployment.num_gpus, state.prefill_gpus
    if state.fleet is not None:
        # Less than one replica on average is one that serves for a part of the window.
        up_share = up_share * jnp.minimum(state.fleet.serving_mean, 1.0)
        up = jnp.maximum(state.fleet.serving_mean, 1.0)
        prefill_gpus = jnp.minimum(prefill_gpus, jnp.floor(up) - 1.0)
    # A switch takes one GPU away at a time; where there is only one, nothing serves.
    alone = up <= 1.0
    up_share = up_share * jnp.where(alone, 1.0 - switching, 1.0)
    serving = jnp.where(alone, 1.0, (up - switching) / up)
    gpus = up * serving
    split = prefill_gpus > 0
    prefill_gpus = prefill_gpus.astype(jnp.float32) * serving
    return _Capacity(up_share, serving, gpus, prefill_gpus, gpus - prefill_gpus, split)


class _Drafts(NamedTuple):
    """Effect of speculation on decode steps; float32[F] each."""

    per_step: jax.Array
    """mean tokens per step."""
    step_variance: jax.Array
    """variance of the tokens of a step."""
    last_step: jax.Array
    """mean part of a step that an output loses at its end."""


def _drafts(classes: TrafficClasses, scale: jax.Array, depth: jax.Array) -> _Drafts:
    """Tokens per decode step at speculation ``depth``, int32.

    Args:
      classes: traffic classes.
      scale: float32, the regime's factor on accepted drafts.
      depth: int32, draft tokens in a verify step.
    """
    mean, mean_square = accepted_moments(classes.tokens_per_step, depth)
    # At most ``depth`` drafts are accepted; where all always are, the variance is 0.
    per_step = 1.0 + jnp.minimum(scale * (mean - 1.0), depth)
    step_variance = jnp.maximum(1.0 + scale * (mean_square - 1.0) - per_step**2, 0.0)
    # An output ends anywhere in its last step: half of the tokens after that step's first are lost.
    return _Drafts(per_step, step_variance, 0.5 * (1.0 - 1.0 / per_step))


def _prompts(
    state: SimState,
    classes: TrafficClasses,
    table: WindowTable,
    deployment: Deployment,
    capacity: _Capacity,
    pool: jax.Array,
) -> PromptWork:
    """Tokens that prompts leave to prefill in the window.

    Args:
      state: the deployment at the start of the window.
      classes: traffic classes.
      table: iteration times at the window's depth and tier.
      deployment: GPUs.
      capacity: GPUs of the window.
      pool: float32, KV tokens that a GPU has room for.
    """
    work = prompt_work(classes, None)
    if classes.reuse is not None:
        gpus = deployment.num_gpus if state.fleet is None else jnp.round(capacity.gpus)
        prefilling = jnp.where(capacity.split, state.prefill_gpus, gpus.astype(jnp.int32))
        if deployment.sequence_kv is not None:
            taken = add_up(_beside_kv(deployment.sequence_kv, classes) * state.queues.running)
            pool = jnp.maximum(pool - taken / capacity.decode_gpus, 0.0)
        found, shared = found_prefixes(
            classes.reuse, state.queues, prefilling, capacity.decode_gpus, pool
        )
        work = prompt_work(classes, found)
        work = dataclasses.replace(
            work,
            parts=prompt_parts(table, classes, work, found),
            # KV that is handed over is not shared where it arrives.
            shared_kv=jnp.where(capacity.split, 0.0, shared),
        )
    if classes.output_ages is not None:
        work = dataclasses.replace(work, seconds=second_shares(table, work))
    return work


def _beside_kv(sequence: SequenceKv, classes: TrafficClasses) -> jax.Array:
    """float32[F], see ``PromptWork``: at the mean context of a running sequence."""
    generated = classes.output_growth * classes.output_tokens
    return sequence.beside(classes.prompt_tokens + generated)


def accepted_moments(tokens_per_step: jax.Array, depth: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and mean square of the tokens that a decode step at ``depth`` emits, float32[F] each.

    Args:
      tokens_per_step: float32[F, 9], mean tokens at depths 0..8. The differences are the chances
        that so many drafts or more are accepted.
      depth: int32, draft tokens in a verify step.
    """
    # E[n] = 1 + sum_k P_k and E[n^2] = 1 + sum_k (2 k + 1) P_k, with P_k = P(k or more accepted).
    chances = jnp.diff(tokens_per_step, axis=1)
    odd = 2.0 * jnp.arange(1, chances.shape[1] + 1) + 1.0
    squares = jnp.concatenate([jnp.zeros_like(chances[:, :1]), jnp.cumsum(odd * chances, 1)], 1)
    index = jnp.broadcast_to(depth, (len(tokens_per_step), 1))
    return (
        jnp.take_along_axis(tokens_per_step, index, 1)[:, 0],
        1.0 + jnp.take_along_axis(squares, index, 1)[:, 0],
    )


def serving_replicas(state: SimState, deployment: Deployment) -> jax.Array:
    """float32, replicas that serve at the start of the window, a switch not counted."""
    if state.fleet is None:
        return deployment.num_gpus
    return jnp.maximum(jnp.sum(state.fleet.serving), 1).astype(jnp.float32)


def _restarted_share(state: SimState, deployment: Deployment, window_s: float) -> jax.Array:
    """Share of the running sequences that lose their KV because their GPU goes down.

    A rolling switch takes a GPU down when the one before is up again. Each of n GPUs holds 1/n of
    the sequences when the first goes down. A reload takes long: when the next one goes down, the
    first is up but empty, and the other n - 1 hold all sequences.
    """
    gpus = serving_replicas(state, deployment)
    reloads = state.switch_reloads
    away_s = jnp.maximum(jnp.where(reloads, deployment.restart_s, deployment.rerole_s), 1e-3)

    def still_to_go(left_s: jax.Array) -> jax.Array:
        return jnp.floor(jnp.maximum(left_s, 0.0) / away_s + 1e-3)

    go_down = still_to_go(state.switch_left_s) - still_to_go(state.switch_left_s - window_s)
    first = state.switch_left_s > state.switch_span_s - 0.5 * window_s
    holders = jnp.where(reloads & ~first, jnp.maximum(gpus - 1.0, 1.0), gpus)
    share = jnp.where(state.switch_left_s > 0.0, jnp.minimum(go_down / holders, 1.0), 0.0)
    # Replicas that were stopped while they drained leave their sequences to the others.
    return share if state.fleet is None else jnp.maximum(share, state.fleet.stopped_share)


def _kv_pool(pool: jax.Array, tier: jax.Array, action: ServeAction) -> jax.Array:
    """The entry of ``pool`` float32[3, 2] at the tier, with or without a draft model."""
    return jnp.where(action.speculation_depth > 0, pool[tier, 1], pool[tier, 0])
