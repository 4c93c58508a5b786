"""Age-resolved waiting lines: exact first come first served without a request in sight.

``waiting[f, a]`` is the number of class-f requests that have waited at least ``AGE_KNOTS[a]``
ticks. Serving the m oldest is ``max(waiting - m, 0)``; the served ones that had waited at least
that long are ``min(waiting, m)``; ageing by a tick is a shift by one knot. The knots are one tick
apart up to two seconds of the default window and geometric beyond, where the shift becomes an
upwind advection step (fraction 1/spacing moves on), so that minutes of waiting cost no more
memory than seconds.

Arrays have class (and age) axes first and any batch axes last, see ``jaxserve.sim.batching``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.batching import add_up, largest, stage

PRIORITY_GROUPS = 3
FINE_KNOTS = 16
"""Knots one tick apart."""
_COARSE_KNOTS = 15
_COARSE_RATIO = 1.26  # 16 ticks * 1.26**15 = 512 ticks, 64 s at 8 ticks a second
AGE_KNOTS = np.concatenate(
    [np.arange(FINE_KNOTS + 1), FINE_KNOTS * _COARSE_RATIO ** np.arange(1, _COARSE_KNOTS + 1)]
).astype(np.float32)
"""float32[32], ages in ticks."""
_MOVES_ON = np.concatenate([[1.0], 1.0 / np.diff(AGE_KNOTS)]).astype(np.float32)


def age_by_one_tick(waiting: jax.Array, arrivals: jax.Array) -> jax.Array:
    """Everybody is one tick older and this tick's arrivals are in.

    Args:
      waiting: float32[F, A, ...].
      arrivals: float32[F, ...].

    Returns:
      float32[F, A, ...].
    """
    younger = jnp.concatenate([waiting[:, :1] + arrivals[:, None], waiting[:, :-1]], axis=1)
    moves_on = _MOVES_ON.reshape(1, -1, *[1] * (waiting.ndim - 2))
    return waiting + moves_on * (younger - waiting)


def fifo_cut(
    live: jax.Array, waiting: jax.Array, group: jax.Array, usage: jax.Array
) -> jax.Array:
    """How many of each class are served, oldest first inside a group, groups in order.

    Nobody overtakes: the first request that does not fit blocks those behind it.

    Args:
      live: see ``jaxserve.sim.batching.stage``.
      waiting: float32[F, A, ...].
      group: int32[F, ...], priority group of each class, below ``PRIORITY_GROUPS``; equal groups
        share one line.
      usage: float32[R, F, ...], share of what is left of each resource that one request takes.

    Returns:
      float32[F, ...], served requests; no resource is overdrawn beyond rounding.
    """
    total = waiting[:, 0]
    marginal, left = stage(live, _marginal_group, total, group, usage)
    weight, shares = stage(live, _scarcest_resource, total, group == marginal, usage, left)
    load = stage(live, lambda weight, waiting: add_up(weight[:, None] * waiting), weight, waiting)
    served_share = stage(live, _served_share, load)
    from_marginal = stage(live, _served_by_share, waiting, served_share)
    over = largest(add_up(shares * from_marginal, axis=1))
    from_marginal = from_marginal / jnp.maximum(over, 1.0)
    return jnp.where(
        group < marginal, total, jnp.where(group == marginal, from_marginal, 0.0)
    )


def _marginal_group(
    total: jax.Array, group: jax.Array, usage: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The first group that does not fit, and what the ones before leave of each resource."""
    need = usage * total
    left = jnp.ones_like(add_up(need, axis=1))
    marginal = jnp.zeros_like(left[0], dtype=jnp.int32)
    for index in range(PRIORITY_GROUPS):
        demand = add_up(jnp.where(group == index, need, 0.0), axis=1)
        fits = (marginal == index) & (largest(demand - left) <= 0.0)
        left = jnp.where(fits, left - demand, left)
        marginal = marginal + fits
    return marginal, left


def _scarcest_resource(
    total: jax.Array, is_marginal: jax.Array, usage: jax.Array, left: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Per request of the marginal group: its share of the resource that decides, and of each."""
    shares = jnp.where(is_marginal, usage / jnp.maximum(left, 1e-9)[:, None], 0.0)
    demand = add_up(shares * total, axis=1)
    weight = largest(jnp.where((demand == largest(demand))[:, None], shares, 0.0))
    return weight, shares


def _served_share(load: jax.Array) -> jax.Array:
    """float32[A, ...]: served share of the cohort between each knot and the next.

    ``load`` is the resource share that everybody at least that old needs; it falls with age.
    """
    older = _shift(load, -1)
    return jnp.clip((1.0 - older) / jnp.maximum(load - older, 1e-9), 0.0, 1.0)


def _served_by_share(waiting: jax.Array, served_share: jax.Array) -> jax.Array:
    """sum_a served_share[a] (waiting[a] - waiting[a + 1]), summed by parts and pairwise."""
    terms = waiting * (served_share - _shift(served_share, 1))
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = terms[:, :half] + terms[:, half:]
    return jnp.maximum(terms[:, 0], 0.0)


def _shift(values: jax.Array, by: int) -> jax.Array:
    """Moves entries along the first axis, zeros coming in."""
    rest = [(0, 0)] * (values.ndim - 1)
    if by > 0:
        return jnp.pad(values[:-by], [(by, 0), *rest])
    return jnp.pad(values[-by:], [(0, -by), *rest])


def count_older_than(ages: jax.Array, ticks: jax.Array) -> jax.Array:
    """Number with an age of at least ``ticks``, interpolated between knots.

    Args:
      ages: float32[F, A, ...], complementary counts at ``AGE_KNOTS``.
      ticks: float32[F, S, ...], ages in ticks; at or below 0 everybody counts.

    Returns:
      float32[F, S, ...].
    """
    ticks = jnp.maximum(ticks, 0.0)
    coarse = FINE_KNOTS + jnp.log(jnp.maximum(ticks, FINE_KNOTS) / FINE_KNOTS) / np.log(
        _COARSE_RATIO
    )
    position = jnp.clip(jnp.where(ticks < FINE_KNOTS, ticks, coarse), 0.0, len(AGE_KNOTS) - 1.001)
    index = position.astype(jnp.int32)
    fraction = position - index
    low = jnp.take_along_axis(ages, index, axis=1, mode="promise_in_bounds")
    high = jnp.take_along_axis(ages, index + 1, axis=1, mode="promise_in_bounds")
    return low + fraction * (high - low)
