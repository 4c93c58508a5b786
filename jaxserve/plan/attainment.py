"""The share of the requests inside the objectives, as far as the played ones tell it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from jaxserve.plan.inputs import PlanObjective
from jaxserve.plan.played_traffic import PlayedTraffic

_WAITS = 0.5
_SURE = 2.0
"""Half widths of its 95 % interval between an attainment and the objective from which on more
windows of a sample cannot be expected to change the answer."""


@dataclass(frozen=True)
class Attained:
    """Share of the requests inside the objectives."""

    attainment: float
    """the share; of slices an upper bound for the whole traffic: every request outside of the
    busiest parts counts as inside the objectives, and of a sample the share is the upper end of its
    interval."""
    requests: int
    """requests that were played and count."""
    sampling: float
    """half width of a 95 % interval of the attainment from the sample of the traffic, one-sided for
    a bound; 0 where none was drawn."""
    margin: float
    """part of the attainment that makes it an upper bound; 0 where it is the expected one."""

    @classmethod
    def of(cls, missed: Sequence[NDArray[np.bool_]], traffic: PlayedTraffic) -> Attained:
        """The share after a run.

        Args:
          missed: bool[n] of each part of the traffic, whether each request misses the objectives.
          traffic: the parts.
        """
        found = cls(
            1.0 - traffic.total(missed) / max(traffic.requests, 1),
            sum(int(part.counted.sum()) for part in traffic.parts),
            0.0 if traffic.strata is None else _sampling_error(missed, traffic),
            0.0,
        )
        if traffic.strata is None or not traffic.bound:
            return found
        margin = min(found.chance, 1.0 - found.attainment)
        return dataclasses.replace(found, attainment=found.attainment + margin, margin=margin)

    @property
    def expected_misses(self) -> float:
        """Share of the requests that miss, without the margin of a bound."""
        return 1.0 - self.attainment + self.margin

    @property
    def chance(self) -> float:
        """Half width of a 95 % interval of the attainment from the chance of arrivals alone, of
        which misses are a Poisson count, and from the sample."""
        missed = max((1.0 - self.attainment) * self.requests, 1.0)
        return math.hypot(1.96 * math.sqrt(missed) / self.requests, self.sampling)

    def sure(self, attainment: float) -> bool:
        """Whether more windows of a sample cannot be expected to change the answer whether the
        share of the requests suffices."""
        return abs(1.0 - self.expected_misses - attainment) > _SURE * self.chance


@dataclass(frozen=True)
class Played(Attained):
    """Result of a run."""

    missed_ttft: float
    """share of the played requests beyond the objective on TTFT, those not served included."""
    missed_tpot: float
    """share beyond the objective on TPOT."""
    ttft_p50_s: float
    """median time to first token."""
    ttft_p99_s: float
    """99th percentile."""
    tpot_p50_s: float
    """median time per output token."""
    tpot_p99_s: float
    """99th percentile."""
    waited: float
    """share of the requests beyond the objective on TTFT that waited for admission for most of
    it."""
    preempted: float
    """preemptions per request."""
    in_flight: float
    """mean sequences that run on one engine, over the time in which it has any."""
    peak: float
    """most sequences that ran at once, as a mean over the engines."""
    unserved: int
    """requests that no engine has room for."""
    crowded: float
    """share of the missed requests that arrived in windows busier than the mean."""

    @classmethod
    def judged(
        cls,
        attained: Attained,
        logs: Sequence[np.ndarray],
        traffic: PlayedTraffic,
        objective: PlanObjective,
        replicas: int,
    ) -> Played:
        """The result of a run.

        Args:
          attained: the share of the requests.
          logs: ``LOG_DTYPE`` rows of each part of the traffic.
          traffic: the parts.
          objective: the objectives.
          replicas: engines that served.
        """

        def counted(columns: Sequence[np.ndarray]) -> np.ndarray:
            parts = zip(columns, traffic.parts, strict=True)
            return np.concatenate([column[part.counted] for column, part in parts])

        weight, log = counted(traffic.weights), counted(logs)
        busy = counted([part.busy for part in traffic.parts])
        served = _served(log)
        late, slow = _late(log, objective), _slow(log, objective)
        waits_s = log["first_scheduled_s"] - log["arrival_s"]
        waited = ~served | (waits_s > _WAITS * objective.ttft_s)

        def share(requests: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
            whole = float(weight[of].sum())
            return float(weight[requests & of].sum()) / whole if whole else 0.0

        every = np.ones(len(log), bool)
        ttft_p50_s, ttft_p99_s = _quantiles(log["ttft_s"], weight, served)
        tpot_p50_s, tpot_p99_s = _quantiles(
            log["tpot_s"], weight, served & (log["output_tokens"] > 1)
        )
        return cls(
            **dataclasses.asdict(attained),
            missed_ttft=share(late, every),
            missed_tpot=share(slow, every),
            ttft_p50_s=ttft_p50_s,
            ttft_p99_s=ttft_p99_s,
            tpot_p50_s=tpot_p50_s,
            tpot_p99_s=tpot_p99_s,
            waited=share(waited, late),
            preempted=float(np.average(log["preemptions"], weights=weight)),
            in_flight=_mean_in_flight(logs) / replicas,
            peak=max(_most_at_once(each) for each in logs) / replicas,
            unserved=int((~served).sum()),
            crowded=share(busy, late | slow),
        )


def missed(log: np.ndarray, objective: PlanObjective) -> NDArray[np.bool_]:
    """bool[n], whether each request of a log misses the objectives."""
    return _late(log, objective) | _slow(log, objective)


def _late(log: np.ndarray, objective: PlanObjective) -> NDArray[np.bool_]:
    """bool[n], whether each request is not served or begins too late."""
    return ~_served(log) | (log["ttft_s"] > objective.ttft_s)


def _slow(log: np.ndarray, objective: PlanObjective) -> NDArray[np.bool_]:
    """bool[n], whether each request is served with too much time between its tokens."""
    return _served(log) & (log["tpot_s"] > objective.tpot_s)


def _served(log: np.ndarray) -> NDArray[np.bool_]:
    """bool[n], whether each request was served to its end."""
    return np.isfinite(log["finish_s"]) & (log["finish_s"] > 0)


def _mean_in_flight(logs: Sequence[np.ndarray]) -> float:
    """Mean sequences that run at once, from the first arrival of each part to its last end."""
    running_s = lasted_s = 0.0
    for log in logs:
        served = _served(log)
        running_s += float((log["finish_s"] - log["first_scheduled_s"])[served].sum())
        end_s = log["finish_s"][served].max(initial=0.0)
        lasted_s += max(float(end_s - log["arrival_s"].min(initial=0.0)), 1e-9)
    return running_s / lasted_s


def _most_at_once(log: np.ndarray) -> int:
    """Most sequences that ran at once; a preempted one counts as running."""
    served = log[_served(log)]
    began, ended = np.sort(served["first_scheduled_s"]), np.sort(served["finish_s"])
    running = np.arange(1, len(began) + 1) - np.searchsorted(ended, began, side="right")
    return int(running.max(initial=0))


def _sampling_error(missed_of: Sequence[NDArray[np.bool_]], traffic: PlayedTraffic) -> float:
    """Half width of a 95 % interval of the share of misses: of a stratum with X requests in N
    windows, n of them drawn, and misses y and requests x played in each, the total has the variance
    v = (X / mean(x))^2 (1 - n / N) / n times that of y - x sum(y) / sum(x) (Cochran, 6.11).
    Student's t has sum(v)^2 / sum(v^2 / (n - 1)) degrees of freedom (5.16)."""
    assert traffic.strata is not None
    sums = [
        (part.sums(missed), part.sums(part.counted))
        for missed, part in zip(missed_of, traffic.parts, strict=True)
    ]
    missed, counted = (np.concatenate(each).astype(np.float64) for each in zip(*sums, strict=True))
    stratum = np.concatenate([part.strata for part in traffic.parts])
    variance = of_variance = 0.0
    for number, of in enumerate(traffic.strata):
        misses, requests = missed[stratum == number], counted[stratum == number]
        drawn = len(misses)
        if drawn < 2 or drawn == of.windows:
            continue
        played = max(requests.sum(), 1.0)
        off = misses - requests * misses.sum() / played
        spread = float((off**2).sum()) / (drawn - 1)
        own = (of.requests * drawn / played) ** 2 * (1.0 - drawn / of.windows) / drawn * spread
        variance += own
        of_variance += own**2 / (drawn - 1)
    if not variance:
        return 0.0
    t = student_t.ppf(0.95 if traffic.bound else 0.975, variance**2 / of_variance)
    return float(t) * math.sqrt(variance) / traffic.requests


def _quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], of: NDArray[np.bool_]
) -> tuple[float, float]:
    """Weighted median and 99th percentile of some of the values; NaN without any."""
    if not of.any():
        return math.nan, math.nan
    median, high = np.percentile(values[of], [50, 99], weights=weights[of], method="inverted_cdf")
    return float(median), float(high)


def interval(results: Sequence[Played]) -> tuple[float, float]:
    """95 % interval of the attainment.

    Args:
      results: whole runs of one deployment at the expected times and at both ends of their doubt.
        A shorter time does not always mean fewer misses, so the extremes count.
    """
    low = min(results, key=lambda each: each.attainment)
    high = max(results, key=lambda each: each.attainment)
    return max(low.attainment - low.chance, 0.0), min(high.attainment + high.chance, 1.0)
