"""Age-resolved waiting lines: exact first come first served without a request in sight.

``waiting[f, a]`` is the number of class-f requests that have waited at least some age. Serving the
m oldest is ``max(waiting - m, 0)``; the served ones that had waited at least that long are
``min(waiting, m)``; ageing by a tick is a shift by one knot. Knots are one tick apart only up to
one second of the default window, then four to an octave, so that minutes of waiting cost no more
memory than seconds. A knot whose spacing is p ticks is shifted every p-th tick. In between its age
grows with the clock: after t ticks, ``waiting[f, a]`` counts ages of at least
``AGE_KNOTS[a] + t % AGE_PERIODS[a]``. That is exact; moving a fraction 1/p each tick would smear
ages by a third.

Arrays have class (and age) axes first and any batch axes last, see ``jaxserve.arrays.batching``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up, largest, stage, staged
from jaxserve.types import PRIORITY_GROUPS

_FINE_KNOTS = 8
_KNOTS_PER_OCTAVE = 4
_OCTAVES = 6
AGE_PERIODS = np.concatenate(
    [np.ones(_FINE_KNOTS), np.repeat(2 ** np.arange(1, _OCTAVES + 1), _KNOTS_PER_OCTAVE)]
).astype(np.int32)
"""int32[32], ticks between shifts of each knot, powers of two."""
AGE_KNOTS = np.concatenate([[0], np.cumsum(AGE_PERIODS)[:-1]]).astype(np.float32)
"""float32[32], ages in ticks right after a shift: 0..8, then 10, 12, 14, 16, 20, .. up to 448."""
_FIRST_OCTAVE = 3  # starts at 2**3 ticks, where the fine knots end
OLDEST_AGE = AGE_KNOTS[-1] + AGE_PERIODS[-1]
"""float32, age in ticks up to which waiting requests are told apart, 512."""
_OLDEST = 2.0 * OLDEST_AGE


def age_by_one_tick(waiting: jax.Array, arrivals: jax.Array, clock: jax.Array) -> jax.Array:
    """Ages waiting requests by a tick and adds the arrivals of this one.

    Args:
      waiting: float32[F, A, ...].
      arrivals: float32[F, ...].
      clock: int32[...], number of this tick; it rises by one from call to call.

    Returns:
      float32[F, A, ...].
    """
    younger = jnp.concatenate([waiting[:, :1] + arrivals[:, None], waiting[:, :-1]], axis=1)
    periods = AGE_PERIODS.reshape(-1, *[1] * (waiting.ndim - 2))
    # The remainder by a power of two.
    shifts = (clock & (periods - 1)) == 0
    return jnp.where(shifts, younger, waiting)


def fifo_cut(live: jax.Array, waiting: jax.Array, group: jax.Array, usage: jax.Array) -> jax.Array:
    """Requests served of each class, oldest first inside a priority group, groups in order.

    No request overtakes: the first request that does not fit blocks those behind it.

    Args:
      live: see ``jaxserve.arrays.batching.stage``.
      waiting: float32[F, A, ...].
      group: int32[F, ...], priority group of each class, below ``PRIORITY_GROUPS``; equal groups
        share one line.
      usage: float32[R, F, ...], share of what is left of each resource that one request takes.

    Returns:
      float32[F, ...], served requests; no resource is overdrawn beyond rounding.
    """
    total = waiting[:, 0]
    demand = _demand(live, total, group, usage)
    marginal, left = _marginal_group(live, demand)
    weight, shares = _scarcest_resource(live, total, group == marginal, usage, left)
    load = stage(live, lambda weight, waiting: add_up(weight[:, None] * waiting), weight, waiting)
    served_share = _served_share(live, load)
    from_marginal = _served_by_share(live, waiting, served_share)
    over = largest(add_up(shares * from_marginal, axis=1))
    from_marginal = from_marginal / jnp.maximum(over, 1.0)
    return jnp.where(group < marginal, total, jnp.where(group == marginal, from_marginal, 0.0))


@staged
def _demand(total: jax.Array, group: jax.Array, usage: jax.Array) -> jax.Array:
    """float32[G, R, ...]: share of each resource that a group and all groups before it would
    take."""
    need = usage * total
    return jnp.stack(
        [add_up(jnp.where(group <= index, need, 0.0), axis=1) for index in range(PRIORITY_GROUPS)]
    )


@staged
def _marginal_group(demand: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first group that does not fit, and what the ones before leave of each resource."""
    fits = largest(demand, axis=1) <= 1.0
    marginal = add_up(fits.astype(jnp.int32))
    before = largest(jnp.where(fits[:, None], demand, 0.0))
    return marginal, 1.0 - before


@staged
def _scarcest_resource(
    total: jax.Array, is_marginal: jax.Array, usage: jax.Array, left: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Share of the scarcest resource, float32[F, ...], and of each resource, float32[R, F, ...],
    that a request of the marginal group takes."""
    shares = jnp.where(is_marginal, usage / jnp.maximum(left, 1e-9)[:, None], 0.0)
    demand = add_up(shares * total, axis=1)
    weight = largest(jnp.where((demand == largest(demand))[:, None], shares, 0.0))
    return weight, shares


@staged
def _served_share(load: jax.Array) -> jax.Array:
    """float32[A, ...]: served share of the cohort between each knot and the next.

    ``load`` is the resource share that all requests at least that old need; it falls with age.
    """
    older = _shift(load, -1)
    return jnp.clip((1.0 - older) / jnp.maximum(load - older, 1e-9), 0.0, 1.0)


@staged
def _served_by_share(waiting: jax.Array, served_share: jax.Array) -> jax.Array:
    """sum_a served_share[a] (waiting[a] - waiting[a + 1]), summed by parts and in halves."""
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
      ages: float32[F, A, ...], complementary counts as ``waiting`` holds them, added up over at
        least a window, so that knots are on average half-way between two shifts.
      ticks: float32[F, S, ...], ages in ticks; at or below 0 all requests count.

    Returns:
      float32[F, S, ...].
    """
    ticks = jnp.maximum(ticks, 0.0)
    # Half-way between two shifts a knot stands for an age (period - 1) / 2 above its own. The four
    # knots of the octave from 2**e are 2**(e - 2) apart: they stand for 9/8 * 2**e - 1/2 and above.
    scaled = (ticks + 0.5) / 1.125
    octave = jnp.clip(
        (jax.lax.bitcast_convert_type(scaled, jnp.int32) >> 23) - 127,
        _FIRST_OCTAVE,
        _FIRST_OCTAVE + _OCTAVES - 1,
    )
    start = jax.lax.bitcast_convert_type((octave + 127) << 23, jnp.float32)
    quarters = 4.5 * (scaled / start - 1.0)
    # The gap up to the next octave is half as wide again as those inside an octave.
    quarters = jnp.minimum(quarters, 3.0 + (quarters - 3.0) / 1.5)
    coarse = _FINE_KNOTS + _KNOTS_PER_OCTAVE * (octave - _FIRST_OCTAVE) + quarters
    fine = jnp.minimum(ticks, _FINE_KNOTS - 1 + (ticks - (_FINE_KNOTS - 1)) / 1.5)
    position = jnp.where(scaled < _FINE_KNOTS, fine, coarse)
    last = len(AGE_KNOTS) - 1
    index = jnp.minimum(position.astype(jnp.int32), last)
    low = jnp.take_along_axis(ages, index, axis=1, mode="promise_in_bounds")
    next_knot = jnp.minimum(index + 1, last)
    high = jnp.take_along_axis(ages, next_knot, axis=1, mode="promise_in_bounds")
    # No request is taken to be older than twice the oldest age that is resolved.
    oldest_knot = AGE_KNOTS[-1] + 0.5 * (AGE_PERIODS[-1] - 1)
    beyond = jnp.clip((ticks - oldest_knot) / (_OLDEST - oldest_knot), 0.0, 1.0)
    fraction = jnp.where(index == last, beyond, position - index)
    return low + fraction * (jnp.where(index == last, 0.0, high) - low)
