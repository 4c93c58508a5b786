"""Age-resolved waiting lines: exact first come first served without a request in sight.

``waiting[f, a]`` is the number of class-f requests that have waited at least ``AGE_KNOTS[a]``
ticks. Serving the m oldest is ``max(waiting - m, 0)``; the served ones that had waited at least
that long are ``min(waiting, m)``; ageing by a tick is a shift by one knot. The knots are one tick
apart up to two seconds of the default window and geometric beyond, where the shift becomes an
upwind advection step (fraction 1/spacing moves on), so that minutes of waiting cost no more
memory than seconds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

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
      waiting: float32[F, A].
      arrivals: float32[F].

    Returns:
      float32[F, A].
    """
    younger = jnp.concatenate([waiting[:, :1] + arrivals[:, None], waiting[:, :-1]], axis=1)
    return waiting + _MOVES_ON * (younger - waiting)


def fifo_cut(
    waiting: jax.Array, group: jax.Array, usage: jax.Array, group_count: int
) -> jax.Array:
    """How many of each class are served, oldest first inside a group, groups in order.

    Nobody overtakes: the first request that does not fit blocks those behind it.

    Args:
      waiting: float32[F, A].
      group: int32[F], priority group of each class; equal groups share one line.
      usage: float32[R, F], share of what is left of each resource that one request takes.
      group_count: number of groups (static).

    Returns:
      float32[F], served requests; ``usage @ served <= 1`` up to rounding.
    """
    total = waiting[:, 0]
    in_group = group == jnp.arange(group_count)[:, None]  # [P, F]
    demand = jnp.sum(in_group[:, None, :] * (usage * total)[None], axis=-1)  # [P, R]
    demand_until = jnp.cumsum(demand, axis=0)
    fits = jnp.max(demand_until, axis=-1) <= 1.0  # [P]
    marginal = jnp.sum(jnp.cumprod(fits.astype(jnp.int32)))  # first group that does not fit
    is_marginal = group == marginal

    left = 1.0 - jnp.max(
        jnp.where((jnp.arange(group_count) < marginal)[:, None], demand_until, 0.0), axis=0
    )  # [R]
    # The scarcest resource decides the cut; the others are respected by the scaling below.
    shares = usage / jnp.maximum(left, 1e-9)[:, None] * is_marginal
    scarcest = jnp.argmax(jnp.sum(shares * total, axis=-1))
    weight = shares[scarcest]
    load = jnp.sum(weight[:, None] * waiting, axis=0)  # [A], falls with age
    older = jnp.concatenate([load[1:], jnp.zeros_like(load[:1])])
    served_share = jnp.clip((1.0 - older) / jnp.maximum(load - older, 1e-9), 0.0, 1.0)
    cohort = waiting - jnp.concatenate([waiting[:, 1:], jnp.zeros_like(waiting[:, :1])], axis=1)
    from_marginal = jnp.sum(served_share * cohort, axis=1)
    over = jnp.max(jnp.sum(shares * from_marginal, axis=-1))
    from_marginal = from_marginal / jnp.maximum(over, 1.0)
    return jnp.where(group < marginal, total, jnp.where(is_marginal, from_marginal, 0.0))


def count_older_than(ages: jax.Array, ticks: jax.Array) -> jax.Array:
    """Number with an age of at least ``ticks``, interpolated between knots.

    Args:
      ages: float32[F, A], complementary counts at ``AGE_KNOTS``.
      ticks: float32[F, S], ages in ticks; at or below 0 everybody counts.

    Returns:
      float32[F, S].
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
