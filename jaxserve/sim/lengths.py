"""Prompt and output lengths in tokens: distributions held as tables of quantiles.

A quantile table is the one form that a published percentile, a parametric family and a recorded
trace share. It samples by one interpolation and splits into traffic classes without loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

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
    """A distribution of lengths; build it with one of this module's functions.

    Attributes:
      quantiles: float64[CELLS + 1], tokens at even probabilities from 0 to 1, non-decreasing, at
        least 1. Between them the quantile function is linear.
    """

    quantiles: NDArray[np.float64]

    def __post_init__(self) -> None:
        values = np.array(self.quantiles, np.float64)
        if values.shape != (CELLS + 1,):
            raise InputError(f"quantiles must have shape ({CELLS + 1},), not {values.shape}")
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

    def share_below(self, tokens: float) -> float:
        """Probability of a length shorter than `tokens`."""
        index = int(np.searchsorted(self.quantiles, tokens, side="left"))
        if index == 0:
            return 0.0
        if index > CELLS:
            return 1.0
        left, right = self.quantiles[index - 1 : index + 1]
        return float((index - 1 + (tokens - left) / (right - left)) / CELLS)

    def mean(self) -> float:
        """Mean length, tokens."""
        return float(np.trapezoid(self.quantiles, _PROBABILITIES))

    def cv(self) -> float:
        """Coefficient of variation: standard deviation / mean."""
        left, right = self.quantiles[:-1], self.quantiles[1:]
        square = float(np.mean(left * left + left * right + right * right)) / 3.0
        return float(np.sqrt(max(square - self.mean() ** 2, 0.0)) / self.mean())

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

    def between(self, low: float, high: float) -> LengthDistribution:
        """The lengths between two probabilities, as a distribution of its own."""
        if not 0.0 <= low < high <= 1.0:
            raise InputError(f"probabilities must satisfy 0 <= low < high <= 1, not {low}, {high}")
        return LengthDistribution(self.quantile(low + (high - low) * _PROBABILITIES))

    def split(self, probabilities: Sequence[float]) -> tuple[LengthBin, ...]:
        """Cuts into bins of increasing length.

        Args:
          probabilities: where to cut, increasing, inside (0, 1); n cuts give n + 1 bins.

        Raises:
          InputError: the cuts are not increasing or not inside (0, 1).
        """
        edges = [0.0, *(float(p) for p in probabilities), 1.0]
        if not all(low < high for low, high in pairwise(edges)):
            raise InputError(
                f"probabilities must increase inside (0, 1), but are {list(probabilities)}"
            )
        return tuple(
            LengthBin(high - low, self.between(low, high)) for low, high in pairwise(edges)
        )

    def split_evenly(self, bins: int) -> tuple[LengthBin, ...]:
        """Cuts into `bins` bins of equal probability."""
        if bins < 1:
            raise InputError(f"bins must be at least 1, not {bins}")
        return self.split([i / bins for i in range(1, bins)])


class LengthBin(NamedTuple):
    """One bin of a split distribution."""

    share: float
    """probability of the bin."""
    lengths: LengthDistribution
    """lengths inside the bin."""


def lognormal(mu: float, sigma: float, low: float, high: float) -> LengthDistribution:
    """exp(normal(mu, sigma)) clamped to [low, high]: what falls outside sits at the edges."""
    if not np.isfinite(mu):
        raise InputError(f"mu must be a finite number, not {mu}")
    if not (np.isfinite(sigma) and sigma >= 0.0):
        raise InputError(f"sigma must be a finite number from 0, not {sigma}")
    _check_range(low, high)
    with np.errstate(over="ignore"):
        return LengthDistribution(np.clip(np.exp(mu + sigma * _scores()), low, high))


def uniform(low: float, high: float) -> LengthDistribution:
    """Every length from `low` to `high` tokens alike."""
    _check_range(low, high)
    return LengthDistribution(low + (high - low) * _PROBABILITIES)


def constant(tokens: float) -> LengthDistribution:
    """Always `tokens`."""
    return uniform(tokens, tokens)


def bimodal(
    short: tuple[float, float], long: tuple[float, float], long_share: float
) -> LengthDistribution:
    """Uniform on `short` = (low, high) tokens, or with probability `long_share` on `long`."""
    if not 0.0 <= long_share <= 1.0:
        raise InputError(f"long_share must lie in [0, 1], not {long_share}")
    return mixture([(1.0 - long_share, uniform(*short)), (long_share, uniform(*long))])


def mixture(parts: Sequence[tuple[float, LengthDistribution]]) -> LengthDistribution:
    """A draw from one of several distributions, chosen with the given shares (which sum to 1)."""
    shares = np.array([share for share, _ in parts])
    if len(parts) == 0 or not (shares >= 0.0).all() or abs(shares.sum() - 1.0) > 1e-6:
        raise InputError(f"shares must be at least 0 and sum to 1, but are {shares.tolist()}")
    present = [(share, part.quantiles) for share, part in parts if share > 0.0]
    # The middles of all cells, each with its part's share of a cell's probability.
    middles = np.concatenate([0.5 * (q[:-1] + q[1:]) for _, q in present])
    weights = np.concatenate([np.full(CELLS, share / CELLS) for share, _ in present])
    order = np.argsort(middles, kind="stable")
    middles, weights = middles[order], weights[order]
    quantiles = np.interp(_PROBABILITIES, np.cumsum(weights) - 0.5 * weights, middles)
    quantiles[0] = min(q[0] for _, q in present)
    quantiles[-1] = max(q[-1] for _, q in present)
    return LengthDistribution(quantiles)


def from_samples(tokens: ArrayLike) -> LengthDistribution:
    """The empirical distribution of recorded lengths, each at least 1 token."""
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
    if len(points) < 2:
        raise InputError(f"percentiles must hold at least two points, not {len(points)}")
    probabilities, tokens = (np.array(column) for column in zip(*points, strict=True))
    if not ((probabilities > 0.0) & (probabilities < 1.0)).all():
        raise InputError(f"percentiles must be inside (0, 1), but are {probabilities.tolist()}")
    if not np.isfinite(tokens).all() or tokens[0] < 1.0 or (np.diff(tokens) <= 0.0).any():
        raise InputError(
            f"percentile lengths must increase from at least 1 token, but are {tokens.tolist()}"
        )
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
    if not (np.isfinite(low) and np.isfinite(high) and 1.0 <= low <= high):
        raise InputError(f"lengths must satisfy 1 <= low <= high, but are {low} and {high}")
