"""Bursty arrivals: the two-state process that has a given burstiness.

A two-state Markov-modulated Poisson process (MMPP) is a Poisson process whose rate jumps between a
low and a high value, each held for an exponential time. Its formulas are those of Fischer and
Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook" (Performance Evaluation 18,
1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares

from jaxserve.errors import InputError

_SHORT_S, _LONG_S = 1.0, 10.0

# A fit's rarest bursts, as a share of the largest possible share of time: rarer ones would never
# be seen in an episode.
_RAREST_SHARE = 0.02


@dataclass(frozen=True)
class Mmpp:
    """A two-state Markov-modulated Poisson process."""

    rate_low_rps: float
    """arrivals per second in the low state."""
    rate_high_rps: float
    """arrivals per second in the high state."""
    dwell_low_s: float
    """mean time in the low state, seconds."""
    dwell_high_s: float
    """mean time in the high state, seconds."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate_low_rps <= self.rate_high_rps < math.inf:
            raise InputError(
                f"rates must satisfy 0 <= rate_low_rps <= rate_high_rps, but are "
                f"{self.rate_low_rps} and {self.rate_high_rps}"
            )
        if self.rate_high_rps == 0.0:
            raise InputError("rate_high_rps must be above 0")
        if not (0.0 < self.dwell_low_s < math.inf and 0.0 < self.dwell_high_s < math.inf):
            raise InputError(
                f"dwell_low_s and dwell_high_s must be above 0 and finite, but are "
                f"{self.dwell_low_s} and {self.dwell_high_s}"
            )

    @property
    def share_high(self) -> float:
        """Share of the time spent in the high state."""
        return self.dwell_high_s / (self.dwell_low_s + self.dwell_high_s)

    @property
    def mean_rate_rps(self) -> float:
        """Arrivals per second over a long time."""
        return self.rate_low_rps + self.share_high * (self.rate_high_rps - self.rate_low_rps)

    def dispersion(self, window_s: float) -> float:
        """Index of dispersion: variance / mean of the arrivals in a window; 1 for Poisson."""
        high = self.share_high
        rate_variance = high * (1.0 - high) * (self.rate_high_rps - self.rate_low_rps) ** 2
        switching = 1.0 / self.dwell_low_s + 1.0 / self.dwell_high_s
        per_switch = 2.0 * rate_variance / (self.mean_rate_rps * switching)
        return 1.0 + per_switch * _saturation(switching * window_s)

    def gap_cv(self) -> float:
        """Coefficient of variation of the times between arrivals; 1 for Poisson."""
        rates = np.array([self.rate_low_rps, self.rate_high_rps])
        leave = np.array([1.0 / self.dwell_low_s, 1.0 / self.dwell_high_s])
        waiting = np.array([[leave[0], -leave[0]], [-leave[1], leave[1]]]) + np.diag(rates)
        high = self.share_high
        at_arrival = np.array([1.0 - high, high]) * rates / self.mean_rate_rps
        second_moment = (
            2.0 * at_arrival @ np.linalg.solve(waiting, np.linalg.solve(waiting, [1, 1]))
        )
        return math.sqrt(max(second_moment * self.mean_rate_rps**2 - 1.0, 0.0))

    def sample(self, duration_s: float, generator: np.random.Generator) -> NDArray[np.float64]:
        """Arrival times in [0, duration_s), seconds, from a stationary start."""
        times = []
        high = generator.random() < self.share_high
        start = 0.0
        while start < duration_s:
            dwell = self.dwell_high_s if high else self.dwell_low_s
            end = min(start + generator.exponential(dwell), duration_s)
            rate = self.rate_high_rps if high else self.rate_low_rps
            times.append(generator.uniform(start, end, generator.poisson(rate * (end - start))))
            start, high = end, not high
        return np.sort(np.concatenate(times))


def fit_mmpp(
    mean_rate_rps: float, gap_cv: float, dispersion_1s: float, dispersion_10s: float
) -> Mmpp:
    """The MMPP with a given mean rate, gap CV and dispersion in windows of 1 s and 10 s.

    The two dispersions fix how fast the rate switches and how much it varies; the gap CV fixes the
    share of time in the high state. Where even a low rate of 0 leaves the gap CV too small, the
    three figures are missed by the same few percent each, least squares of their logarithms at low
    rate 0. A gap CV below that of every such process counts as the smallest possible.

    Raises:
      InputError: the rate is not above 0, or the dispersions are not those of bursts: they need
        1 < dispersion_1s < dispersion_10s < 1 + 10 (dispersion_1s - 1).
    """
    if not 0.0 < mean_rate_rps < math.inf:
        raise InputError(f"mean_rate_rps must be above 0 and finite, not {mean_rate_rps}")
    if not 0.0 < gap_cv < math.inf:
        raise InputError(f"gap_cv must be above 0 and finite, not {gap_cv}")
    short, long = dispersion_1s - 1.0, dispersion_10s - 1.0
    # The ratio of the two is 10 for slow switching and 1 for fast; the bracket is nearly all of it.
    slow, fast = 1e-4, 1e4
    if not (short > 0.0 and _ratio(fast) * short < long < _ratio(slow) * short):
        raise InputError(
            f"dispersion_1s = {dispersion_1s} and dispersion_10s = {dispersion_10s} must satisfy "
            f"1 < dispersion_1s < dispersion_10s < 1 + 10 (dispersion_1s - 1)"
        )
    switching = _root(lambda rate: _ratio(rate) - long / short, slow, fast)
    rate_variance = 0.5 * short * mean_rate_rps * switching / _saturation(switching * _SHORT_S)
    largest = mean_rate_rps**2 / (mean_rate_rps**2 + rate_variance)

    def process(share_high: float) -> Mmpp:
        odds = share_high / (1.0 - share_high)
        deviation = math.sqrt(rate_variance)
        return Mmpp(
            rate_low_rps=max(mean_rate_rps - deviation * math.sqrt(odds), 0.0),
            rate_high_rps=mean_rate_rps + deviation / math.sqrt(odds),
            dwell_low_s=1.0 / (switching * share_high),
            dwell_high_s=1.0 / (switching * (1.0 - share_high)),
        )

    # The gap CV grows with the share of the high state, up to where the low rate is 0.
    smallest = _RAREST_SHARE * largest
    if gap_cv >= process(largest).gap_cv():
        return _fit_interrupted(
            mean_rate_rps, gap_cv, dispersion_1s, dispersion_10s, process(largest)
        )
    if gap_cv <= process(smallest).gap_cv():
        return process(smallest)
    return process(_root(lambda share: process(share).gap_cv() - gap_cv, smallest, largest))


def _fit_interrupted(
    mean_rate_rps: float, gap_cv: float, dispersion_1s: float, dispersion_10s: float, start: Mmpp
) -> Mmpp:
    """Least squares fit of the two dwells of a process that is off in its low state."""
    wanted = np.log([gap_cv, dispersion_1s, dispersion_10s])

    def process(dwells: NDArray[np.float64]) -> Mmpp:
        low_s, high_s = (float(dwell) for dwell in np.exp(dwells))
        return Mmpp(0.0, mean_rate_rps * (low_s + high_s) / high_s, low_s, high_s)

    def error(dwells: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = process(dwells)
        figures = [fitted.gap_cv(), fitted.dispersion(_SHORT_S), fitted.dispersion(_LONG_S)]
        return np.log(figures) - wanted

    return process(least_squares(error, np.log([start.dwell_low_s, start.dwell_high_s])).x)


def _saturation(x: float) -> float:
    """1 - (1 - exp(-x)) / x: how far counting over x switching times averages out the rate."""
    return 1.0 + math.expm1(-x) / x


def _ratio(switching: float) -> float:
    return _saturation(switching * _LONG_S) / _saturation(switching * _SHORT_S)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high))  # pyright: ignore[reportArgumentType]
