"""Traffic: classes of requests, hidden regimes, bursts, and one batched draw per window.

A workload is a palette of F traffic classes (prompt-length bin x priority group x draft-acceptance
profile) and G regimes that mix them. An episode walks through the regimes in a random order with
random dwell; inside a regime the rate follows a cycle and a two-state Markov-modulated burst
process, or the hours of the day (``jaxserve.sim.traffic.demand``). Arrivals in a tick are Poisson
given the rate, class by class, which for a class-split Poisson process is exact.

Everything random about an episode comes from its key: the traffic does not depend on actions, so
two policies on the same key face the same requests.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays import threefry
from jaxserve.arrays.batching import batch_last, stage
from jaxserve.arrays.poisson import poisson_from_uniform
from jaxserve.sim.traffic.demand import Demand, DemandState, advance_demand, init_demand
from jaxserve.sim.traffic.output_ages import OutputAges
from jaxserve.sim.traffic.reuse_table import ReuseTable

_EXTRA_DRAWS = 3  # burst switch, burst level, dwell
_RESET_DRAW = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrafficClasses:
    """The palette: arrays of length F."""

    prompt_tokens: jax.Array
    """float32[F], mean prompt length, tokens."""
    prompt_floor: jax.Array
    """float32[F], shortest prompt as a share of the mean."""
    prompt_spread: jax.Array
    """float32[F], standard deviation of prompt lengths as a share of the mean."""
    output_tokens: jax.Array
    """float32[F], mean output length, tokens."""
    delay_weight: jax.Array
    """float32[F], E[n] E[1/n], where n is the number of tokens after the first. A delay that every
    request has once raises the mean of the requests' times per token by that many times what it
    adds to total time / total tokens."""
    output_growth: jax.Array
    """float32[F], tokens that a running request has generated on average, in mean output lengths:
    0.5 where all outputs are equally long, 1 where they are exponential."""
    priority: jax.Array
    """int32[F], priority group, 0 = served first, at most 2."""
    tokens_per_step: jax.Array
    """float32[F, 9], expected tokens per decode step at speculation depth 0..8 (1 at depth 0)."""
    prompt_quantiles: jax.Array
    """float32[F, 33], prompt length at probability i/32; the reference simulator samples it."""
    output_quantiles: jax.Array
    """float32[F, 33], the same for output length."""
    output_ages: OutputAges | None = None
    """when running sequences end; None where output lengths are memoryless."""
    reuse: ReuseTable | None = None
    """reuse curves of prompts in a prefix cache; None where there is no cache, or no two prompts
    begin alike."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Regimes:
    """G traffic regimes: arrays of length G."""

    rate_rps: jax.Array
    """float32[G], base arrival rate, requests per second."""
    class_mix: jax.Array
    """float32[G, F], share of each class; rows sum to 1."""
    dwell_s: jax.Array
    """float32[G, 2], shortest and longest stay, seconds (uniform)."""
    burst_multiplier: jax.Array
    """float32[G, 2], smallest and largest rate multiplier of a burst (uniform per burst)."""
    burst_start: jax.Array
    """float32[G], probability per second that a burst starts."""
    burst_stop: jax.Array
    """float32[G], probability per second that a burst stops."""
    cycle_amplitude: jax.Array
    """float32[G], relative amplitude of the sinusoidal cycle, 0..1."""
    acceptance_scale: jax.Array
    """float32[G], multiplies the draft tokens accepted per step beyond the first token."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Workload:
    """Traffic of one task."""

    classes: TrafficClasses
    regimes: Regimes
    cycle_period_s: jax.Array
    """float32, period of the sinusoidal cycle, seconds."""
    demand: Demand | None = None
    """rates that follow the hours of the day, over the regimes' own; None where they do not."""
    replay_counts: jax.Array | None = None
    """float32[W, K, F], recorded arrivals per tick and class; replaces the random draw."""
    replay_rejected: jax.Array | None = None
    """float32[W, F], recorded requests that no engine has room for, per window and class; None
    where there are none."""
    replay_starts: jax.Array | None = None
    """int32[S], windows of the recording at which an episode may begin, the first
    ``replay_places`` of them; each is as likely."""
    replay_places: jax.Array | None = None
    """int32, how many. Only the length of an array makes another program, and not this number."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WorkloadState:
    """Progress of an episode through its traffic."""

    key: jax.Array
    """typed PRNG key of the episode; window t uses ``fold_in(key, t)``."""
    order: jax.Array
    """int32[G], the regimes in the order of this episode (repeats when exhausted)."""
    position: jax.Array
    """int32, index of the current stay."""
    dwell_left_s: jax.Array
    """float32, seconds left in the current regime."""
    burst_level: jax.Array
    """float32, rate multiplier of the running burst, 1 when there is none."""
    cycle_phase: jax.Array
    """float32, phase of the cycle at time 0, radians."""
    replay_start: jax.Array
    """int32, first window of a recording."""
    demand: DemandState | None = None
    """progress through the day; None where rates do not follow it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arrivals:
    """Traffic of one window."""

    counts: jax.Array
    """float32[K, F], whole numbers of arrivals in each tick and class."""
    rate_rps: jax.Array
    """float32, expected arrivals per second."""
    regime: jax.Array
    """int32, hidden regime."""
    acceptance_scale: jax.Array
    """float32, see ``Regimes``."""
    rejected: jax.Array | None = None
    """float32[F], further requests, which are rejected because no engine has room for them; None
    for none."""


def init_workload(workload: Workload, key: jax.Array) -> WorkloadState:
    """Starts an episode's traffic. ``key`` (typed) is consumed and kept as the episode key."""
    regimes = workload.regimes
    count = regimes.rate_rps.shape[0]
    # Windows count up from 0, so this index never collides with the draw of a window.
    draw = threefry.uniform(threefry.fold_in(key, _RESET_DRAW), (count + 3,))
    # The rank of each uniform is a random permutation, cheaper than a sort for a few regimes.
    rank = jnp.sum(draw[:count, None] > draw[None, :count], axis=1)
    order = jnp.sum(
        jnp.where(rank[:, None] == jnp.arange(count), jnp.arange(count)[:, None], 0), axis=0
    ).astype(jnp.int32)
    dwell = _between(regimes.dwell_s[order[0]], draw[count])
    start = jnp.int32(0)
    if workload.replay_starts is not None and workload.replay_places is not None:
        place = jnp.floor(draw[count + 1] * workload.replay_places).astype(jnp.int32)
        start = workload.replay_starts[jnp.minimum(place, workload.replay_places - 1)]
    return WorkloadState(
        key=key,
        order=order,
        position=jnp.int32(0),
        # The first stay is cut at a random point, so that switch times differ between episodes.
        dwell_left_s=jnp.round(dwell * (0.4 + 0.6 * draw[count + 2])),
        burst_level=jnp.float32(1.0),
        cycle_phase=2.0 * jnp.pi * draw[count + 1],
        replay_start=start,
        demand=None if workload.demand is None else init_demand(workload.demand, key),
    )


def draw_arrivals(
    workload: Workload, state: WorkloadState, window: jax.Array, ticks: int, window_s: float
) -> tuple[WorkloadState, Arrivals]:
    """Advances the traffic by one window.

    Args:
      window: int32, index of the window, from 0.
      ticks: K, ticks per window (static).
      window_s: seconds per window (static).

    Returns:
      the next state and the window's arrivals, counts float32[K, F].
    """
    regimes = workload.regimes
    class_count = regimes.class_mix.shape[1]
    draw = threefry.uniform(
        threefry.fold_in(state.key, window), (ticks * class_count + _EXTRA_DRAWS,)
    )
    extra = draw[ticks * class_count :]
    regime = state.order[state.position % state.order.shape[0]]

    bursting = state.burst_level > 1.0
    starts = ~bursting & (extra[0] < regimes.burst_start[regime] * window_s)
    goes_on = bursting & (extra[0] >= regimes.burst_stop[regime] * window_s)
    fresh_level = _between(regimes.burst_multiplier[regime], extra[1])
    burst_level = jnp.where(starts, fresh_level, jnp.where(goes_on, state.burst_level, 1.0))

    cycle = 1.0 + regimes.cycle_amplitude[regime] * jnp.sin(
        2.0 * jnp.pi * window * window_s / workload.cycle_period_s + state.cycle_phase
    )
    rate = regimes.rate_rps[regime] * burst_level * cycle
    rejected, demand = None, state.demand
    mix, bursts = regimes.class_mix[regime], jnp.float32(1.0)
    if workload.demand is not None and demand is not None:
        demand, level, bursts = advance_demand(
            workload.demand, demand, state.key, window, rate * mix * window_s, window_s
        )
        mix = mix * level
        # The mix of a window with its levels; the rate is what is expected before bursts.
        rate = rate * jnp.sum(mix)
        mix = mix / jnp.maximum(jnp.sum(mix), 1e-9)
    if workload.replay_counts is None:
        mean = rate * mix * bursts * (window_s / ticks)
        uniform = draw[: ticks * class_count].reshape(ticks, class_count)
        counts = _sample_counts(uniform, mean)
    else:
        row = (state.replay_start + window) % workload.replay_counts.shape[0]
        counts = workload.replay_counts[row]
        rate = jnp.sum(counts) / window_s
        if workload.replay_rejected is not None:
            rejected = workload.replay_rejected[row]

    dwell_left = state.dwell_left_s - window_s
    moves_on = dwell_left <= 0.0
    next_regime = state.order[(state.position + 1) % state.order.shape[0]]
    next_state = dataclasses.replace(
        state,
        position=state.position + moves_on,
        dwell_left_s=jnp.where(
            moves_on, jnp.round(_between(regimes.dwell_s[next_regime], extra[2])), dwell_left
        ),
        burst_level=jnp.where(moves_on, 1.0, burst_level),
        demand=demand,
    )
    return next_state, Arrivals(
        counts=counts,
        rate_rps=rate,
        regime=regime,
        acceptance_scale=regimes.acceptance_scale[regime],
        rejected=rejected,
    )


@batch_last
def _sample_counts(uniform: jax.Array, mean: jax.Array) -> jax.Array:
    return stage(jnp.any(uniform >= 0.0), poisson_from_uniform, uniform, mean)


def _between(bounds: jax.Array, fraction: jax.Array) -> jax.Array:
    return bounds[0] + (bounds[1] - bounds[0]) * fraction
