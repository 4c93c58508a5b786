"""Replicas that start, serve, drain and stop, from window to window.

A fleet has R places for replicas. Once in a window an operator says how many replicas are wanted.
More than there are: places that are free begin to start, paid from that moment, and serve after a
start-up time that is drawn for each. Fewer: replicas that still start are cancelled, the one with
most of its start-up ahead first, and then serving ones drain. A draining replica gets no new
requests and is paid until its sequences have ended, or until ``Fleet.drain_s`` has passed; what
runs then is preempted and recomputed elsewhere. One replica always serves or starts.

Sequences of a class are exchangeable, so the sequences on draining replicas are a number for each
class, which decays as outputs end.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays import threefry
from jaxserve.sim.machine.fleet import Fleet

_TINY = 1e-6
_LAST_LEFT = 0.56
"""Mean number of sequences left on a draining replica when its last one ends, exp(-gamma): the
longest of n exponential lives is ln n + gamma mean lives (gamma is Euler's constant)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FleetState:
    """Places of a fleet at the end of a window. A place that is in none of the three phases is
    off."""

    key: jax.Array
    """typed PRNG key of start-up times and failures."""
    starting: jax.Array
    """bool[R]"""
    serving: jax.Array
    """bool[R]"""
    draining: jax.Array
    """bool[R]"""
    start_left_s: jax.Array
    """float32[R], seconds until a starting replica serves."""
    fails: jax.Array
    """bool[R], whether the start will end without a replica."""
    drain_left_s: jax.Array
    """float32[R], seconds until a draining replica is stopped."""
    leaving: jax.Array
    """float32[F], running sequences on draining replicas."""
    stopped_share: jax.Array
    """float32, share of the running sequences whose replica was stopped at the window's end."""
    serving_mean: jax.Array
    """float32, replicas that served in the window, averaged over it."""
    rented: jax.Array
    """float32, replicas paid for in the window: starting, serving and draining ones."""


def init_fleet(key: jax.Array, fleet: Fleet, serving: jax.Array, class_count: int) -> FleetState:
    """A fleet of which the first ``serving`` (int32) places serve."""
    places = fleet.places
    off, zeros = jnp.zeros(places, bool), jnp.zeros(places)
    count = jnp.asarray(serving, jnp.float32)
    return FleetState(
        key=key,
        starting=off,
        serving=jnp.arange(places) < serving,
        draining=off,
        start_left_s=zeros,
        fails=off,
        drain_left_s=zeros,
        leaving=jnp.zeros(class_count),
        stopped_share=jnp.float32(0.0),
        serving_mean=count,
        rented=count,
    )


def set_wanted(
    state: FleetState,
    wanted: jax.Array,
    fleet: Fleet,
    running: jax.Array,
    clock: jax.Array,
    window_s: float,
) -> FleetState:
    """The fleet after the operator's word at the start of a window.

    Args:
      state: the fleet at the end of the last window.
      wanted: int32, replicas that are to serve, 0 for all; at most R.
      fleet: start-up times, draining, failures.
      running: float32[F], running sequences.
      clock: int32, scheduler ticks since the start of the episode; it tells one window's draws from
        another's.
      window_s: seconds of the window (static).
    """
    places = len(state.serving)
    draw = threefry.uniform(threefry.fold_in(state.key, clock), (2 * places + 1,))
    wanted = jnp.where(wanted == 0, places, jnp.clip(wanted, 1, places))
    up = jnp.sum(state.starting | state.serving)

    # The places with the longest start-up ahead are cancelled first, of equals the last place.
    number = jnp.arange(places)
    left = jnp.where(state.starting, state.start_left_s, -1.0)
    before = (left[None, :] > left[:, None]) | (
        (left[None, :] == left[:, None]) & (number[None, :] > number[:, None])
    )
    fewer = jnp.maximum(up - wanted, 0)
    cancelled = state.starting & (jnp.sum(before & state.starting[None, :], axis=1) < fewer)
    starting = state.starting & ~cancelled
    to_drain = fewer - jnp.sum(cancelled)
    # Of those that serve, the last places drain; one serves or starts in any case.
    after = jnp.cumsum(state.serving[::-1])[::-1] - state.serving
    drains = state.serving & (after < to_drain)
    served = jnp.sum(state.serving)
    share = jnp.sum(drains) / jnp.maximum(served, 1)
    staying = jnp.maximum(running - state.leaving, 0.0)

    off = ~(starting | state.serving | state.draining | cancelled)
    more = jnp.where(draw[2 * places] < fleet.refused_share, 0, jnp.maximum(wanted - up, 0))
    begins = off & (jnp.cumsum(off) <= more)
    span_s = fleet.start_most_s - fleet.start_least_s
    start_left_s = jnp.where(
        begins, fleet.start_least_s + span_s * draw[:places], state.start_left_s
    )
    fails = jnp.where(begins, draw[places : 2 * places] < fleet.failing_share, state.fails)
    starting, serving, draining = (
        starting | begins,
        state.serving & ~drains,
        state.draining | drains,
    )

    # A replica that comes up inside the window serves for the rest of it.
    rest = jnp.clip(1.0 - start_left_s / window_s, 0.0, 1.0)
    return dataclasses.replace(
        state,
        starting=starting,
        serving=serving,
        draining=draining,
        start_left_s=start_left_s,
        fails=fails,
        drain_left_s=jnp.where(drains, fleet.drain_s, state.drain_left_s),
        leaving=jnp.minimum(state.leaving, running) + share * staying,
        serving_mean=jnp.sum(serving) + jnp.sum(jnp.where(starting & ~fails, rest, 0.0)),
        rented=jnp.sum(starting | serving | draining).astype(jnp.float32),
    )


def draining_gpus(
    state: FleetState, batch_cap: jax.Array, kv_each: jax.Array, pool_tokens: jax.Array
) -> jax.Array:
    """float32: GPUs that the sequences on draining replicas fill, in slots or in KV.

    Counted so, draining replicas leave no room for new requests: their sequences take what they
    bring.

    Args:
      batch_cap: float32, sequences of a GPU.
      kv_each: float32[F], KV tokens of a running sequence.
      pool_tokens: float32, KV tokens of a GPU.
    """
    slots = jnp.sum(state.leaving) / batch_cap
    kv = jnp.sum(state.leaving * kv_each) / pool_tokens
    return jnp.minimum(jnp.maximum(slots, kv), jnp.sum(state.draining))


def end_window(
    state: FleetState, outputs_ended: jax.Array, running: jax.Array, window_s: float
) -> FleetState:
    """The fleet at the end of a window.

    Args:
      outputs_ended: float32[F], decode steps of the window in mean outputs.
      running: float32[F], running sequences at the end.
      window_s: seconds of the window (static).
    """
    start_left_s = jnp.maximum(state.start_left_s - window_s, 0.0)
    ready = state.starting & (start_left_s <= 0.0)
    # Outputs end at random: leaving sequences decay with the decode steps of the window.
    leaving = jnp.minimum(state.leaving * jnp.exp(-outputs_ended), running)
    drain_left_s = jnp.maximum(state.drain_left_s - window_s, 0.0)
    count = jnp.maximum(jnp.sum(state.draining), 1)
    empty = jnp.sum(leaving) / count < _LAST_LEFT
    stops = state.draining & (empty | (drain_left_s <= 0.0))
    share = jnp.sum(stops) / count
    stopped = share * jnp.sum(leaving)
    # The few sequences that an empty replica is counted with have ended, or end at once elsewhere.
    preempted = jnp.where(empty, 0.0, stopped / jnp.maximum(jnp.sum(running), _TINY))
    return dataclasses.replace(
        state,
        starting=state.starting & ~ready,
        serving=state.serving | (ready & ~state.fails),
        draining=state.draining & ~stops,
        start_left_s=start_left_s,
        drain_left_s=drain_left_s,
        leaving=leaving * (1.0 - share),
        stopped_share=jnp.minimum(preempted, 1.0),
    )
