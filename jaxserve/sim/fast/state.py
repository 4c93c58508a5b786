"""State of the fast simulator between windows, and the objectives of its requests."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.sim.fast.ages import idle_ages
from jaxserve.sim.fast.fleet import FleetState
from jaxserve.sim.fast.lines import AGE_KNOTS
from jaxserve.sim.fast.tick_state import Queues
from jaxserve.sim.traffic.output_ages import OutputAges


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slo:
    """Per-class service level objectives."""

    ttft_s: jax.Array
    """float32[F], limit on time to first token, s."""
    tpot_s: jax.Array
    """float32[F], limit on mean time per output token after the first, s."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SimState:
    """The simulator's state between windows."""

    waiting: jax.Array
    """float32[F, A], requests that wait for admission, see ``jaxserve.sim.fast.lines``."""
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
    switch_reloads: jax.Array
    """bool, the running switch reloads every GPU, not only those that change their role."""
    outage_left_s: jax.Array
    """float32, seconds until an out-of-memory restart is done."""
    ticks: jax.Array
    """int32, scheduler ticks since the start of the episode."""
    time_scale: jax.Array
    """float32, slowness of this episode's hardware relative to the table."""
    fleet: FleetState | None = None
    """replicas that come and go; None where all replicas serve all the time."""


def init_sim(
    class_count: int, time_scale: jax.Array, output_ages: OutputAges | None = None
) -> SimState:
    """An idle deployment: FP16, colocated.

    Args:
      output_ages: see ``jaxserve.sim.traffic.workload.TrafficClasses``.
    """
    vector = jnp.zeros(class_count)
    zero = jnp.float32(0.0)
    return SimState(
        waiting=jnp.zeros((class_count, len(AGE_KNOTS))),
        queues=Queues(
            running=vector,
            context=vector,
            preempted=vector,
            preempted_context=vector,
            recompute_context=vector,
            ages=idle_ages(output_ages),
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
        switch_reloads=jnp.bool_(False),
        outage_left_s=zero,
        ticks=jnp.int32(0),
        time_scale=jnp.asarray(time_scale, jnp.float32),
    )
