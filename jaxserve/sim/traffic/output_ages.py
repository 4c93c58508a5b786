"""When sequences of a class end, given how much of a mean output they have decoded."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.arrays.convert import on_device

MEMORYLESS = 1
"""Number of ages of a simulator that does not tell sequences apart by what they have decoded."""
_END = 12.0  # hazard of the cell in which the longest outputs end: exp(-12) stay on
_STEPS = 64  # places in a cell at which integrals are taken


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OutputAges:
    """Lifetimes of F classes on K bins of age, see ``jaxserve.sim.fast.ages``. Ages are in mean
    outputs (of the tokens after the first)."""

    width: jax.Array
    """float32[F], distance of two bins."""
    hazard: jax.Array
    """float32[F, K + 1], hazard integrated up to the ages -width, 0, width, ..: minus the logarithm
    of the share of outputs that are longer."""
    gone: jax.Array
    """float32[F, K + 1], share of outputs that are not longer, at the same ages."""
    decoded: jax.Array
    """float32[F, K + 1], mean output decoded up to the same ages; a longer output counts up to the
    age."""


def output_ages(quantiles: NDArray[np.floating], bins: int) -> OutputAges | None:
    """Lifetimes from the quantile tables of output lengths.

    The whole distribution counts, not only its mean and variance. The mean is kept exactly.

    Args:
      quantiles: [F, P], output tokens at even probabilities from 0 to 1.
      bins: K; None is returned for ``MEMORYLESS``.
    """
    if bins == MEMORYLESS:
        return None
    tables = [_lifetime(row.astype(np.float64), bins) for row in quantiles]
    columns = (np.stack(column) for column in zip(*tables, strict=True))
    return OutputAges(*(on_device(column) for column in columns))


def _lifetime(quantiles: NDArray[np.float64], bins: int) -> tuple[NDArray[np.float64], ...]:
    """The fields of ``OutputAges`` for one class."""
    tokens = np.maximum(quantiles - 1.0, 0.0)
    if tokens[-1] == 0.0:  # every output is its first token
        tokens = np.ones_like(tokens)
    lives = tokens / np.mean((tokens[1:] + tokens[:-1]) / 2)
    width = lives[-1] / (bins - 2)
    knots = width * np.arange(-1, bins)
    # Equal lengths make a step, which interpolation needs to be a slope.
    rising = np.maximum.accumulate(lives) + 1e-9 * np.arange(len(lives))
    longer = 1.0 - np.interp(knots, rising, np.linspace(0, 1, len(lives)), left=0.0, right=1.0)
    hazard = np.minimum(-np.log(np.maximum(longer, 1e-300)), _END)
    hazard[1] = 0.0
    hazard[0] = -hazard[2]
    hazard[-2:] = hazard[-3] + np.maximum([_END, 2.0 * _END], hazard[-2:] - hazard[-3])
    # Below age 0 it is continued straight, so that a count that is split around it is right.
    gone = 1.0 - np.exp(-hazard)
    gone[0] = -gone[2]
    left = _left(hazard)
    at_knots = left[::_STEPS]
    # Decoded output + expected rest = one life at every knot.
    decoded = at_knots[1] - (1.0 - gone) * at_knots
    width = 1.0 / _mean_life(gone, decoded, left)
    return np.asarray(width), hazard, gone, width * decoded


def _left(hazard: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean rest of a life in widths, at ``_STEPS`` places of each cell and at the end."""
    places = np.arange((len(hazard) - 1) * _STEPS + 1) / _STEPS
    longer = np.exp(-np.interp(places, np.arange(len(hazard)), hazard))
    cells = np.append((longer[1:] + longer[:-1]) / (2 * _STEPS), longer[-1] / _END)
    return np.cumsum(cells[::-1])[::-1] / longer


def _mean_life(
    gone: NDArray[np.float64], decoded: NDArray[np.float64], left: NDArray[np.float64]
) -> float:
    """Mean life in widths of sequences that begin at any phase, see ``jaxserve.sim.fast.ages``."""
    phase = np.arange(_STEPS) / _STEPS
    total = np.zeros(_STEPS)
    for first, weight in ((0, phase), (1, 1.0 - phase)):
        ended = gone[first] + phase * (gone[first + 1] - gone[first])
        before = decoded[first] + phase * (decoded[first + 1] - decoded[first])
        after = (1.0 - ended) * left[first * _STEPS : (first + 1) * _STEPS]
        total += weight * (before + after)
    return float(total.mean())
