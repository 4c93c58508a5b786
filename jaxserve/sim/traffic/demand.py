"""Demand of days: rates that follow the hours and drift, and arrivals burstier than Poisson's.

The rate of a stream of requests at time t is its mean rate times

    exp(sum_h a_h cos(2 pi h t / day) + b_h sin(2 pi h t / day) + x_1(t) + x_2(t) - c),

where x_1 and x_2 are Ornstein-Uhlenbeck processes with the deviations and correlation times that
were fitted to a recording, and c makes the mean of the factor 1. Windows are bursty: in one with m
expected arrivals they are Poisson given a level of mean 1 and variance d / m, Gamma distributed, so
that their index of dispersion is 1 + d (the negative binomial distribution).

``data/demand`` has fitted parameters with their sources; ``scripts/fit_demand.py`` fits them.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxserve.arrays import threefry

DAY_S = 86_400.0
PROCESSES = 2
_START, _WINDOWS = 2**31 - 2, 2**31 - 3
"""Numbers of the streams of draws, which windows, counted up from 0, never reach."""
_HALF_STEP = 2.0**-24
"""Half the distance of two uniform draws, so that no draw is 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Demand:
    """Parameters of S streams, and the stream of each of F traffic classes."""

    cosine: jax.Array
    """float32[S, H], coefficients a_h of the day's profile."""
    sine: jax.Array
    """float32[S, H], its coefficients b_h."""
    deviation: jax.Array
    """float32[S, 2], standard deviations of x_1 and x_2."""
    time_s: jax.Array
    """float32[S, 2], their correlation times, s."""
    log_mean: jax.Array
    """float32[S], c: logarithm of the mean of the factor without it."""
    excess: jax.Array
    """float32[S], d: index of dispersion of the counts of a window, less 1."""
    stream: jax.Array
    """int32[F], stream of each class."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DemandState:
    """Progress of an episode through its day."""

    start_s: jax.Array
    """float32, time of the day at which the episode begins, s."""
    drift: jax.Array
    """float32[S, 2], x_1 and x_2 in units of their deviations."""


def init_demand(demand: Demand, key: jax.Array) -> DemandState:
    """The state at a random time of the day.

    Args:
      key: typed PRNG key of the episode.
    """
    shape = demand.deviation.shape
    draw = threefry.uniform(threefry.fold_in(key, _START), (1 + shape[0] * shape[1],))
    return DemandState(start_s=DAY_S * draw[0], drift=_normal(draw[1:]).reshape(shape))


def advance_demand(
    demand: Demand,
    state: DemandState,
    key: jax.Array,
    window: jax.Array,
    mean: jax.Array,
    window_s: float,
) -> tuple[DemandState, jax.Array, jax.Array]:
    """Advances by one window.

    Args:
      key: typed PRNG key of the episode.
      window: int32, index of the window, from 0.
      mean: float32[F], mean arrivals of a window, over all days.
      window_s: seconds of the window (static).

    Returns:
      the next state; the factor of the hours and the drift on every class's rate, float32[F]; and
      the window's burst, a level of mean 1, float32[F].
    """
    streams = demand.deviation.shape[0]
    draws = streams * (PROCESSES + 1)
    seed = threefry.fold_in(threefry.fold_in(key, _WINDOWS), window)
    normal = _normal(threefry.uniform(seed, (draws,)))
    kept = jnp.exp(-window_s / demand.time_s)
    fresh = normal[streams:].reshape(streams, PROCESSES)
    drift = kept * state.drift + jnp.sqrt(1.0 - kept**2) * fresh

    harmonic = jnp.arange(1, demand.cosine.shape[1] + 1)
    angle = 2.0 * jnp.pi / DAY_S * harmonic * (state.start_s + window * window_s)
    profile = demand.cosine @ jnp.cos(angle) + demand.sine @ jnp.sin(angle)
    level = jnp.exp(profile + jnp.sum(demand.deviation * drift, axis=1) - demand.log_mean)

    own = demand.stream[:, None] == jnp.arange(streams)
    arrivals = jnp.sum(jnp.where(own, mean[:, None], 0.0), axis=0) * level
    burst = _gamma_level(normal[:streams], demand.excess / jnp.maximum(arrivals, 1e-3))
    return dataclasses.replace(state, drift=drift), level[demand.stream], burst[demand.stream]


def _normal(uniform: jax.Array) -> jax.Array:
    """Standard normal draws from uniform ones."""
    return ndtri(uniform + _HALF_STEP)


def _gamma_level(normal: jax.Array, variance: jax.Array) -> jax.Array:
    """Gamma draws of mean 1: the cube root of a Gamma variable is nearly normal (Wilson and
    Hilferty 1931), its mean 1 - v / 9 and its variance v / 9 for a variance v."""
    ninth = jnp.minimum(variance, 3.0) / 9.0
    return jnp.maximum(1.0 - ninth + jnp.sqrt(ninth) * normal, 0.0) ** 3
