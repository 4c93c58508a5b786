"""Ages of running sequences, where output lengths have memory.

Without ages every running sequence is as likely to end as any other, whatever it has decoded: that
is right in the mean, and for exponential lengths. With them, running sequences are counted by age,
the share of a mean output that they have decoded, and end as the class's own lengths say: all at
once where outputs are equally long, early or very late where lengths are heavy-tailed.

Bin k of K stands for the age ``(k - 1 + phase) * width``. All sequences of a class age alike, so a
tick raises the phase and moves counts by whole bins. Nothing is smeared, however many ticks an
output takes. A sequence that begins is split over the two bins around age 0 such that its mean age
is right; the older one's hazard is extended to ages below 0.

Arrays have class (and age) axes first and the batch axis last, see ``jaxserve.arrays.batching``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.tick_state import TINY, Ages
from jaxserve.sim.traffic.output_ages import OutputAges


def idle_ages(classes: OutputAges | None) -> Ages | None:
    """Ages of an idle deployment, all counts 0; None where outputs have no memory."""
    if classes is None:
        return None
    count, knots = classes.hazard.shape
    none = jnp.zeros((count, knots - 1))
    return Ages(none, none, phase=jnp.zeros(count), in_prefill=jnp.zeros(count))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoded:
    """Effect of decoding for a time on the running sequences; sums over ages, float32[F, ...]."""

    alive: jax.Array
    """sequences that decode, averaged over the time."""
    completed: jax.Array
    """sequences that end."""
    completed_age: jax.Array
    """sum of their ages, mean outputs."""


def ages_of(classes: OutputAges, ages: Ages) -> jax.Array:
    """float32[F, K, ...]: the age of each bin, mean outputs; not below 0."""
    bins = ages.running.shape[1]
    places = _places(bins, ages.phase) - 1.0 + ages.phase[:, None]
    return jnp.maximum(classes.width[:, None] * places, 0.0)


def age_sum(classes: OutputAges, ages: Ages) -> jax.Array:
    """float32[F, ...]: ages of the running sequences together, mean outputs."""
    return add_up(ages.running * ages_of(classes, ages), axis=1)


def still_random(classes: OutputAges, ages: Ages) -> jax.Array:
    """float32[F, K, ...]: binomial variance of each bin's count, given how many began.

    Of those that began, a share S is alive: the variance is the count times 1 - S. The variance is
    half the count for exponential lengths, averaged over ages, and nothing for equal ones.
    """
    gone = classes.gone
    share = gone[:, :-1] + ages.phase[:, None] * (gone[:, 1:] - gone[:, :-1])
    return ages.running * jnp.maximum(share, 0.0)


def begin(count: jax.Array, phase: jax.Array, bins: int) -> jax.Array:
    """float32[F, K, ...]: ``count`` sequences of age 0."""
    first = jnp.stack([count * phase, count * (1.0 - phase)], axis=1)
    return jnp.pad(first, [(0, 0), (0, bins - 2), *[(0, 0)] * (count.ndim - 1)])


def join(
    classes: OutputAges, ages: Ages, count: jax.Array, progress: jax.Array
) -> tuple[Ages, Decoded]:
    """Sequences begin, evenly spread over the time that ends now.

    Args:
      count: float32[F, ...].
      progress: float32[F, ...], see ``advance``.
    """
    bins = ages.running.shape[1]
    phase = ages.phase[:, None]
    places = _places(bins, ages.phase) - 1.0 + phase
    span = jnp.maximum(progress / classes.width, 1e-3)[:, None]
    # A sequence that began at a uniform moment of the time is split over two bins by a hat.
    shares = jnp.maximum(_hat_below(span - places) - _hat_below(-places), 0.0) / span
    older = jnp.maximum(1.0 - add_up(shares, axis=1), 0.0)

    def at(table: jax.Array) -> jax.Array:
        return table[:, :-1] + phase * (table[:, 1:] - table[:, :-1])

    gone, decoded = at(classes.gone), at(classes.decoded)
    count = jnp.maximum(count, 0.0)
    begun = shares * count[:, None]
    age = classes.width[:, None] * places
    ended_age = decoded - age * (1.0 - gone)
    worked = add_up(begun * decoded, axis=1) + older * count
    step = Decoded(
        # Sequences that begin during the time are present for half of it on average, or less.
        alive=jnp.clip(worked / jnp.maximum(progress, TINY), 0.0, 0.5 * count),
        completed=add_up(begun * gone, axis=1) + older * count,
        completed_age=add_up(begun * ended_age, axis=1) + older * count,
    )
    return dataclasses.replace(
        ages, running=ages.running + begun * jnp.maximum(1.0 - gone, 0.0)
    ), step


def advance(classes: OutputAges, ages: Ages, progress: jax.Array) -> tuple[Ages, Decoded]:
    """Decodes for a time: ages of the running sequences after it, and its effect.

    Args:
      progress: float32[F, ...], mean outputs that one of them decodes.
    """
    bins = ages.running.shape[1]
    # Bins move by whole widths; the phase keeps the rest: age = (k - 1 + phase) width.
    reached = ages.phase + progress / classes.width
    whole = jnp.minimum(jnp.floor(reached), bins)
    phase = jnp.where(whole < bins, reached - whole, 0.0)
    moved = whole.astype(jnp.int32)
    hazard = jnp.broadcast_to(classes.hazard, (*classes.hazard.shape[:2], *ages.phase.shape[1:]))
    before = hazard[:, :-1] + ages.phase[:, None] * (hazard[:, 1:] - hazard[:, :-1])
    later = _towards_start(hazard, moved)
    after = later[:, :-1] + phase[:, None] * (later[:, 1:] - later[:, :-1])
    # Share that survives = exp(-(H(after) - H(before))), H the hazard integrated over age.
    met = jnp.maximum(after - before, 0.0)
    alive_share = jnp.where(
        met < 0.05, 1.0 - met * (0.5 - met / 6.0), (1.0 - jnp.exp(-met)) / jnp.maximum(met, 0.05)
    )
    staying = jnp.maximum(ages.running * (1.0 - alive_share * met), 0.0)
    # Over a short time, sequences end half-way on average; over a long one the hazard decides.
    half_way = 0.5 * (ages.running + staying)
    alive = jnp.where(progress[:, None] < 0.5, half_way, ages.running * alive_share)
    kept = _towards_end(staying, moved)
    ended = ages.running - jnp.where(_places(bins, whole) + whole[:, None] < bins, staying, 0.0)
    age = ages_of(classes, ages) + 0.5 * progress[:, None]
    step = Decoded(
        alive=add_up(alive, axis=1),
        completed=add_up(ended, axis=1),
        completed_age=add_up(ended * age, axis=1),
    )
    return dataclasses.replace(ages, running=kept, phase=phase), step


def prefill(ages: Ages, admitted: jax.Array, prefill_s: jax.Array, tick_s: jax.Array) -> Ages:
    """Admits sequences and ends prefills: at a steady rate, sequences in prefill at the end of a
    tick are those admitted in the time that a prefill takes (Little's law).

    Args:
      admitted: float32[F, ...], in the tick.
      prefill_s: float32[F, ...], time that a prefill holds its slot.
      tick_s: float32.
    """
    staying = prefill_s / (prefill_s + tick_s)
    return dataclasses.replace(ages, in_prefill=staying * (ages.in_prefill + admitted))


def come_back(ages: Ages, share: jax.Array) -> Ages:
    """A ``share`` of the preempted sequences, float32[F, ...], runs again at the age they had."""
    back = ages.preempted * share[:, None]
    return dataclasses.replace(
        ages, running=ages.running + back, preempted=jnp.maximum(ages.preempted - back, 0.0)
    )


def take_newest(held: jax.Array, wanted: jax.Array) -> jax.Array:
    """float32[F, K, ...]: share of each bin in what makes up ``wanted``, the youngest first.

    Args:
      held: float32[F, K, ...], what each bin has.
      wanted: float32[F, ...].
    """
    younger, reach = held, 1
    while reach < held.shape[1]:
        younger = younger + _shifted(younger, reach)
        reach *= 2
    before = younger - held
    return jnp.clip((wanted[:, None] - before) / jnp.maximum(held, TINY), 0.0, 1.0)


def _places(bins: int, like: jax.Array) -> jax.Array:
    """float32[1, K, ...]: 0, 1, .. along axis 1 of arrays that have one axis more than ``like``."""
    return jnp.arange(bins, dtype=jnp.float32).reshape(1, bins, *[1] * (like.ndim - 1))


def _hat_below(place: jax.Array) -> jax.Array:
    """Integral of the hat function max(1 - abs(x), 0) up to ``place``."""
    place = jnp.clip(place, -1.0, 1.0)
    return 0.5 + place * (1.0 - 0.5 * jnp.abs(place))


def _towards_end(values: jax.Array, by: jax.Array) -> jax.Array:
    """Moves entries along axis 1 by a number of their own, zeros coming in."""
    step = 1
    while step <= values.shape[1]:
        moves = (by & step)[:, None] > 0
        values = jnp.where(moves, _shifted(values, step), values)
        step *= 2
    return values


def _towards_start(values: jax.Array, by: jax.Array) -> jax.Array:
    """Moves entries along axis 1 towards its start; the last entry is repeated."""
    step, size = 1, values.shape[1]
    while step <= size:
        last = [values[:, -1:]] * min(step, size)
        further = jnp.concatenate([values[:, step:], *last], axis=1)
        values = jnp.where((by & step)[:, None] > 0, further, values)
        step *= 2
    return values


def _shifted(values: jax.Array, by: int) -> jax.Array:
    """Moves entries along axis 1, zeros coming in."""
    rest = [(0, 0)] * (values.ndim - 2)
    return jnp.pad(values, [(0, 0), (by, 0), *rest])[:, : values.shape[1]]
