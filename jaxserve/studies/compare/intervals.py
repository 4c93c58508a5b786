"""How good a training method is, and how sure that is: interquartile means, bootstrap intervals.

Follows Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice":
an agent's runs (training seeds) are summed up by their interquartile mean, and intervals come from
a percentile bootstrap that is stratified by task. One thing is added: the test episodes are drawn
anew as well, crossed with the runs, because a policy that was trained once is only as well known
as the episodes that it played (Owen 2007 for the crossed bootstrap).
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
_TIE = 1e-9  # two mean rewards nearer than this are equal

Matrix = NDArray[np.float64]
"""float64[R, E]: a number for each run (training seed) and test episode."""

Aggregate = Callable[..., Any]
"""Sums runs up along ``axis``."""

Scale = Callable[[Any], Any]
"""Turns the mean of a run into what is aggregated, element by element."""

Figure = Callable[..., Any]
"""What sums over a run's episodes come to: takes the sum of every column, float64[..., K]."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def iqm(values: NDArray[np.float64], axis: int = -1) -> Any:
    """Mean without the lowest and the highest quarter (rounded down), along ``axis``."""
    return stats.trim_mean(values, 0.25, axis=axis)


def estimate(
    strata: Sequence[Matrix],
    aggregate: Aggregate = iqm,
    scales: Sequence[Scale] | None = None,
) -> Estimate:
    """An aggregate over all runs of all strata, the same at every call.

    A run is its mean over the episodes. Resampling draws runs and episodes of each stratum by
    themselves; all runs of a stratum keep the same episodes.

    Args:
      strata: one matrix for each task.
      aggregate: of runs, along ``axis``: ``iqm`` or ``np.mean``.
      scales: one for each stratum; the means as they are without.
    """
    scales = scales or [_as_it_is] * len(strata)
    drawn = [
        _drawn([matrix], _scaled_mean(matrix, scale), index)
        for index, (matrix, scale) in enumerate(zip(strata, scales, strict=True))
    ]
    return _summed_up(drawn, aggregate)


def estimate_of_sums(columns: Sequence[NDArray[np.float64]], figure: Figure) -> Estimate:
    """The ``iqm`` over runs of a figure that is not a mean over episodes: of a ratio of sums, or a
    quantile of the requests of all episodes. Drawn as by ``estimate``.

    Args:
      columns: float64[R, E, ...] each, to be summed over the episodes.
    """
    return _summed_up([_drawn(columns, figure, 0)], iqm)


def change(before: Matrix, after: Matrix, scale: Scale) -> Estimate:
    """How much the scaled means of the same runs moved, over the same episodes: its ``iqm``.

    Args:
      before, after: float64[R, E] both.
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
    """How much the runs' scores fall short of 1 on average."""
    gaps = [lambda mean, scale=scale: np.maximum(1.0 - scale(mean), 0.0) for scale in scales]
    return estimate(strata, np.mean, gaps)


def wins(values: Matrix, other: Matrix) -> Matrix:
    """1 where a run is better than a single run of another agent on the same episode, 1/2 where
    they are equal; the mean is the probability of improvement.

    Args:
      other: float64[1, E].
    """
    ahead = values - other
    return np.where(np.abs(ahead) <= _TIE, 0.5, ahead > 0.0)


def _drawn(
    columns: Sequence[NDArray[np.float64]], figure: Figure, stream: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The figure of the runs, float64[R], and of runs drawn with replacement over episodes drawn
    so, float64[B, R]; equal shapes and streams draw the same."""
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
