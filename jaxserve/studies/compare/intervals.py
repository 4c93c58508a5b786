"""Interquartile means over training runs, and their bootstrap intervals.

Follows Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice":
the interquartile mean aggregates an agent's runs (training seeds), and intervals come from a
percentile bootstrap stratified by task. In addition the bootstrap resamples test episodes, crossed
with the runs (Owen 2007), because few episodes leave the mean of a single policy uncertain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from jaxserve.evaluation.episode_statistics import CONFIDENCE
from jaxserve.tasks.anchors import Anchors

_RESAMPLES = 2000
_SEED = 0
_TIE = 1e-9  # mean rewards nearer than this are equal

Matrix = NDArray[np.float64]
"""float64[R, E]: a number for each run (training seed) and test episode."""

Aggregate = Callable[..., Any]
"""Aggregate of runs along ``axis``."""

Scale = Callable[[Any], Any]
"""Element-wise map from the mean of a run to the number that is aggregated."""

Figure = Callable[..., Any]
"""Figure of a run from sums over its episodes, one argument float64[..., K] per column."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    """point estimate."""
    low: float
    """lower end of the interval."""
    high: float
    """upper end of the interval."""


def iqm(values: NDArray[np.float64], axis: int = -1) -> Any:
    """Mean along ``axis`` without the lowest and the highest quarter (rounded down)."""
    return stats.trim_mean(values, 0.25, axis=axis)


def estimate(
    strata: Sequence[Matrix],
    aggregate: Aggregate = iqm,
    scales: Sequence[Scale] | None = None,
) -> Estimate:
    """An aggregate over all runs of all strata, deterministic.

    The mean over the episodes stands for a run. Resampling draws runs and episodes of each stratum
    separately; all runs of a stratum keep the same episodes.

    Args:
      strata: one matrix for each task.
      aggregate: aggregate of runs along ``axis``, ``iqm`` or ``np.mean``.
      scales: scale of each stratum; None leaves means unscaled.
    """
    scales = scales or [_as_it_is] * len(strata)
    drawn = [
        _drawn([matrix], _scaled_mean(matrix, scale), index)
        for index, (matrix, scale) in enumerate(zip(strata, scales, strict=True))
    ]
    return _summed_up(drawn, aggregate)


def estimate_of_sums(columns: Sequence[NDArray[np.float64]], figure: Figure) -> Estimate:
    """The ``iqm`` over runs of a figure that is no mean over episodes.

    Examples are a ratio of sums and a quantile of the requests of all episodes. Resampling is that
    of ``estimate``.

    Args:
      columns: float64[R, E, ...] each, summed over the episodes.
      figure: figure of a run from these sums.
    """
    return _summed_up([_drawn(columns, figure, 0)], iqm)


def change(before: Matrix, after: Matrix, scale: Scale) -> Estimate:
    """The ``iqm`` over runs of the change of their scaled means, over the same episodes.

    Args:
      before, after: float64[R, E] both.
      scale: scale of the means.
    """
    (first, first_drawn), (second, second_drawn) = (
        _drawn([matrix], _scaled_mean(matrix, scale), 0) for matrix in (before, after)
    )
    return _summed_up([(second - first, second_drawn - first_drawn)], iqm)


def score_scale(anchors: Anchors) -> Scale:
    """Mean rewards to scores, as ``anchors_score``: 0 random, 0.5 best static, 1 oracle."""
    rewards = [anchors.random, anchors.best_static, anchors.oracle]
    return lambda mean: np.interp(mean, rewards, [0.0, 0.5, 1.0])


def optimality_gap(strata: Sequence[Matrix], scales: Sequence[Scale]) -> Estimate:
    """Mean of 1 less the score over runs, 0 for scores above 1."""
    gaps = [lambda mean, scale=scale: np.maximum(1.0 - scale(mean), 0.0) for scale in scales]
    return estimate(strata, np.mean, gaps)


def wins(values: Matrix, other: Matrix) -> Matrix:
    """Wins of each run against a single run of another agent, episode by episode.

    A win is 1 and a tie 1/2; the mean is the probability of improvement.

    Args:
      values: float64[R, E], mean rewards.
      other: float64[1, E], mean rewards of the other agent.
    """
    ahead = values - other
    return np.where(np.abs(ahead) <= _TIE, 0.5, ahead > 0.0)


def _drawn(
    columns: Sequence[NDArray[np.float64]], figure: Figure, stream: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The figure of the runs, float64[R], and of B resamples of runs and episodes, float64[B, R].

    Equal shapes and streams draw the same resamples.
    """
    runs, episodes = columns[0].shape[:2]
    generator = np.random.default_rng([_SEED, stream])
    counts = generator.multinomial(episodes, np.full(episodes, 1.0 / episodes), size=_RESAMPLES)
    chosen = generator.integers(runs, size=(_RESAMPLES, runs))
    resampled = figure(*(np.tensordot(counts, column, axes=(1, 1)) for column in columns))
    own = figure(*(column.sum(axis=1) for column in columns))
    return own, np.take_along_axis(resampled, chosen, axis=1)


def _scaled_mean(matrix: Matrix, scale: Scale) -> Figure:
    return lambda total: scale(total / matrix.shape[1])


def _summed_up(
    drawn: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], aggregate: Aggregate
) -> Estimate:
    points, resamples = zip(*drawn, strict=True)
    value = float(aggregate(np.concatenate(points), axis=-1))
    spread = aggregate(np.concatenate(resamples, axis=1), axis=-1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(spread, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high))


def _as_it_is(mean: Any) -> Any:
    return mean
