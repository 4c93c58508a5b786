"""Prompt and output lengths in tokens: distributions held as tables of quantiles.

A quantile table is the one form that a published percentile, a parametric family and a recorded
trace share. The table samples by one interpolation and splits into traffic classes without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from jaxserve import checks
from jaxserve.errors import InputError

CELLS = 4096
"""Even probability cells between the quantiles that a distribution keeps."""

TABLE_KNOTS = 33
"""Quantiles of the short table, at probabilities 0, 1/32, ..., 1."""

# Four standard deviations, probability 3e-5, an eighth of a cell: further out a family without
# bounds would give its last cell, interpolated linearly, a mean it does not have.
_MAX_SCORE = 4.0

_PROBABILITIES = np.linspace(0.0, 1.0, CELLS + 1)


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """A distribution of lengths; build it with one of this module's functions."""

    quantiles: NDArray[np.float64]
    """float64[CELLS + 1], tokens at even probabilities from 0 to 1, non-decreasing, at least 1.
    Between them the quantile function is linear."""

    def __post_init__(self) -> None:
        values = np.array(self.quantiles, np.float64)
        if values.shape != (CELLS + 1,):
            checks.refuse("shape of quantiles", values.shape, f"({CELLS + 1},)")
        falls = np.diff(values) < -1e-9 * np.abs(values[:-1])
        if not np.isfinite(values).all() or values[0] < 1.0 or falls.any():
            raise InputError("quantiles must be finite, at least 1 token, and must not decrease")
        # Interpolation between equal lengths can step down by a rounding error.
        values = np.maximum.accumulate(values)
        values.flags.writeable = False
        object.__setattr__(self, "quantiles", values)

    def quantile(self, probability: ArrayLike) -> NDArray[np.float64]:
        """Length in tokens (not rounded) at each probability in [0, 1]."""
        return np.interp(np.asarray(probability, np.float64), _PROBABILITIES, self.quantiles)

    def sample(self, uniform: ArrayLike) -> NDArray[np.int32]:
        """Whole lengths in tokens, one for each uniform number in [0, 1)."""
        return np.rint(self.quantile(uniform)).astype(np.int32)

    def mean(self) -> float:
        """Mean length, tokens."""
        return float(np.trapezoid(self.quantiles, _PROBABILITIES))

    def table(self) -> NDArray[np.float32]:
        """The short form that simulators interpolate linearly, float32[TABLE_KNOTS].

        All knots but the last are the quantiles. The last is not the longest length, which would
        give the last of so few cells far too many tokens, but what makes the table's mean the
        distribution's, as far as the last two quantiles allow.
        """
        knots = self.quantiles[:: CELLS // (TABLE_KNOTS - 1)].copy()
        cells = TABLE_KNOTS - 1
        without_last = np.sum(knots[:-1]) - 0.5 * knots[0]
        last = 2.0 * (cells * self.mean() - without_last)
        knots[-1] = np.clip(last, knots[-2], knots[-1])
        return knots.astype(np.float32)

    def split_evenly(self, bins: int) -> tuple[LengthDistribution, ...]:
        """Cuts into bins of equal probability and increasing length, each a distribution.

        Raises:
          InputError: fewer than one bin.
        """
        checks.whole("bins", bins, 1)
        edges = [i / bins for i in range(bins + 1)]
        return tuple(
            LengthDistribution(self.quantile(low + (high - low) * _PROBABILITIES))
            for low, high in pairwise(edges)
        )


def lognormal(mu: float, sigma: float, low: float, high: float) -> LengthDistribution:
    """exp(normal(mu, sigma)) clamped to [low, high] tokens; mass outside sits at the edges.

    Raises:
      InputError: a parameter is not finite, sigma is negative, or not 1 <= low <= high.
    """
    checks.number("mu", mu)
    checks.number("sigma", sigma, 0)
    _check_range(low, high)
    with np.errstate(over="ignore"):
        return LengthDistribution(np.clip(np.exp(mu + sigma * _scores()), low, high))


def uniform(low: float, high: float) -> LengthDistribution:
    """Every length from ``low`` to ``high`` tokens alike.

    Raises:
      InputError: not 1 <= low <= high, both finite.
    """
    _check_range(low, high)
    return LengthDistribution(low + (high - low) * _PROBABILITIES)


def from_samples(tokens: ArrayLike) -> LengthDistribution:
    """The empirical distribution of recorded lengths in tokens.

    Raises:
      InputError: there is none, or one is below 1 token or not finite.
    """
    values = np.asarray(tokens, np.float64).ravel()
    if values.size == 0:
        raise InputError("samples must hold at least one length")
    if not np.isfinite(values).all() or values.min() < 1.0:
        raise InputError("samples must be finite lengths of at least 1 token")
    # Hazen's plotting positions keep the mean of the sample.
    return LengthDistribution(np.quantile(values, _PROBABILITIES, method="hazen"))


def from_percentiles(
    percentiles: Mapping[float, float], low: float, high: float
) -> LengthDistribution:
    """A lognormal-like shape through published percentiles, clamped to [low, high].

    The logarithm of the length is linear in the normal score between the given points and goes on
    with the slope of the outermost two; two points give a lognormal.

    Args:
      percentiles: probability inside (0, 1) -> tokens, for example {.5: 1020, .9: 2734, .99: 4142}.

    Raises:
      InputError: fewer than two points, a probability outside (0, 1), a length below 1 token, or
        lengths that do not increase.
    """
    _check_range(low, high)
    points = sorted((float(p), float(tokens)) for p, tokens in percentiles.items())
    checks.whole("count of percentiles", len(points), 2)
    probabilities, tokens = (np.array(column) for column in zip(*points, strict=True))
    if not ((probabilities > 0.0) & (probabilities < 1.0)).all():
        checks.refuse("percentiles", probabilities.tolist(), "above 0 and below 1")
    if not np.isfinite(tokens).all() or tokens[0] < 1.0 or (np.diff(tokens) <= 0.0).any():
        checks.refuse("lengths", tokens.tolist(), "finite, at least 1 token, and rising")
    known, logs = ndtri(probabilities), np.log(tokens)
    slopes = np.diff(logs) / np.diff(known)
    scores = _scores()
    below, above = scores < known[0], scores > known[-1]
    value = np.interp(scores, known, logs)
    value[below] = logs[0] + slopes[0] * (scores[below] - known[0])
    value[above] = logs[-1] + slopes[-1] * (scores[above] - known[-1])
    return LengthDistribution(np.clip(np.exp(value), low, high))


def _scores() -> NDArray[np.float64]:
    return np.clip(ndtri(_PROBABILITIES), -_MAX_SCORE, _MAX_SCORE)


def _check_range(low: float, high: float) -> None:
    checks.number("low", low, 1)
    checks.number("high", high, low)


def length_quantiles(tokens: NDArray[np.int32], probabilities: ArrayLike) -> NDArray[np.float64]:
    """The quantiles of recorded lengths, as ``np.quantile`` gives them; lengths are counted and not
    sorted, in a fraction of the time for millions of them.

    Args:
      tokens: int[n], lengths, at least one.
      probabilities: p of them, each from 0 to 1.

    Returns:
      float64[p].
    """
    until = np.cumsum(np.bincount(tokens))
    place = (len(tokens) - 1) * np.asarray(probabilities)
    below, above = (
        np.searchsorted(until, each, side="right") for each in (np.floor(place), np.ceil(place))
    )
    return below + (above - below) * (place - np.floor(place)).astype(np.float64)
