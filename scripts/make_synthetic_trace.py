"""Writes data/traces/synthetic_conversation.csv: made-up requests that look like a chat service.

Nothing in the file was recorded. Its columns are those of the Azure LLM inference traces, and its
rate, burstiness and length percentiles those of that data set's 2023 conversation trace
(github.com/Azure/AzurePublicDataset, CC BY 4.0). Prompt and output length are independent, as they
nearly are there (rank correlation .07). The date in the file is plainly invented.

Requests arrive as a two-state Markov-modulated Poisson process (MMPP): a Poisson process whose rate
jumps between a low and a high value, each held for an exponential time. Its formulas are those of
Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook" (Performance
Evaluation 18, 1993).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from jaxserve.datafiles import write_atomic
from jaxserve.sim.traffic.lengths import from_percentiles

SEED = 2023
DURATION_S = 15 * 60.0
EPOCH = np.datetime64("2000-01-01T00:00:00", "ns")
RAREST_SHARE = 0.02
"""A fit's rarest bursts, as a share of the largest possible share of time."""


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
    share of time in the high state. A gap CV beyond that of every such process counts as the
    nearest. The dispersions must be those of bursts, 1 < dispersion_1s < dispersion_10s
    < 1 + 10 (dispersion_1s - 1).
    """
    short, long = dispersion_1s - 1.0, dispersion_10s - 1.0
    # The ratio of the two is 10 for slow switching and 1 for fast; the bracket is nearly all of it.
    switching = _root(lambda rate: _saturation(10 * rate) / _saturation(rate) - long / short)
    rate_variance = 0.5 * short * mean_rate_rps * switching / _saturation(switching)
    # Where the low rate is 0.
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

    def error(share_high: float) -> float:
        return process(share_high).gap_cv() - gap_cv

    # The gap CV grows with the share of the high state.
    shares = RAREST_SHARE * largest, largest
    for share, beyond in zip(shares, (1.0, -1.0), strict=True):
        if beyond * error(share) >= 0.0:
            return process(share)
    return process(_root(error, *shares))


def _saturation(x: float) -> float:
    """1 - (1 - exp(-x)) / x: how far counting over x switching times averages out the rate."""
    return 1.0 + math.expm1(-x) / x


def _root(function, low: float = 1e-4, high: float = 1e4) -> float:
    return float(brentq(function, low, high))


ARRIVALS = fit_mmpp(mean_rate_rps=5.53, gap_cv=1.094, dispersion_1s=1.386, dispersion_10s=3.868)
PROMPTS = from_percentiles(
    {0.1: 207, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.9: 2734, 0.99: 4142}, low=2, high=14_050
)
OUTPUTS = from_percentiles(
    {0.1: 54, 0.25: 85, 0.5: 129, 0.75: 395, 0.9: 424, 0.99: 601}, low=7, high=1000
)


def synthetic_trace() -> str:
    """The text of the file; always the same."""
    generator = np.random.default_rng(SEED)
    arrival_s = ARRIVALS.sample(DURATION_S, generator)
    prompt = PROMPTS.sample(generator.random(len(arrival_s)))
    output = OUTPUTS.sample(generator.random(len(arrival_s)))
    # Seven fractional digits, like the original.
    times = EPOCH + np.floor(arrival_s * 1e7).astype(np.int64) * np.timedelta64(100, "ns")
    stamps = [stamp[:27].replace("T", " ") for stamp in np.datetime_as_string(times)]
    rows = zip(stamps, prompt, output, strict=True)
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"{time},{prompt_tokens},{output_tokens}\n" for time, prompt_tokens, output_tokens in rows
    )


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "data" / "traces" / "synthetic_conversation.csv"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=default, metavar="FILE", help="default %(default)s"
    )
    write_atomic(parser.parse_args().out, synthetic_trace().encode())
