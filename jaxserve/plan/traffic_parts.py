"""The parts of the traffic that are played: the busiest ones, all of it, or a sample of windows.

Traffic of up to ``MOST_PLAYED`` requests is played whole. Of more, windows are drawn as a
stratified sample: windows are sorted by their load, the strata from the busiest one on double in
size, and as many windows are drawn from each. Misses gather in the busiest windows, which are drawn
most densely. Every counted request stands for as many as its stratum has for each that was played.
The share of misses is a separate ratio estimate, whose variance is that of Cochran, Sampling
Techniques (1977), sections 6.10 and 6.11.

A sample is played in rounds, each of which doubles the windows, so that a run can end as soon as
the answer to its question is sure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from jaxserve.sim.traffic.traces import Trace

MOST_PLAYED = 100_000
"""Requests of the longest traffic that is played whole."""
_SLICES = 3
_SLICE_SHARE = 1 / 24
_SLICE_LEAST_S = 90.0
_BUSY_S = 60.0
_BUSY = 1.1
"""Times the mean rate from which on a minute is busy."""
_WINDOW_REQUESTS, _WINDOW_S = 600, 300.0
"""Requests of a sampled window, and its shortest length, s."""
_WORTH = 0.5
"""Share of the requests below which a sample is played in place of all of them."""
_BURST_S, _MINUTE_S = 10, 60
"""Lengths of bursts, in which requests miss and which the mean of a window hides, and of times over
which engines are full, s."""
_LEAD, _MOST_LEAD = 0.5, 6.0
"""Least and greatest time before a sampled window that is played with it so that engines are as
full as they were, as shares of the window."""
_REMEMBERED = 5_000
"""Requests before a part whose prompts prefix caches may still hold."""
_DRAWN, _SCREENED = 16, 6
"""Windows drawn from each stratum, and those that screen deployments."""
_SCREENED_SHARE = 1 / 8
"""Share of the windows, the busiest ones, in whose strata deployments are screened; requests of the
others count as inside the objectives."""


@dataclass(frozen=True, eq=False)
class TrafficPart:
    """Consecutive requests that are played together."""

    trace: Trace
    """the n requests, the first at 0 s."""
    counted: NDArray[np.bool_]
    """bool[n], whether each counts; the others are played so that engines are as full as they
    were."""
    busy: NDArray[np.bool_]
    """bool[n], whether each arrives in a minute busier than the mean one."""
    stratum: int = 0
    """stratum of a sampled window."""
    round: int = 0
    """round in which a sampled window is played."""
    before: Trace | None = None
    """requests before it, which prefix caches may still hold; None where no prompts are shared."""


@dataclass(frozen=True)
class Stratum:
    """Windows of like load."""

    windows: int
    requests: int
    """requests that arrive in the windows."""


@dataclass(frozen=True, eq=False)
class PlayedTraffic:
    """Parts of the traffic that one run plays."""

    parts: tuple[TrafficPart, ...]
    requests: int
    """requests of the whole traffic."""
    strata: tuple[Stratum, ...] | None = None
    """strata of a sample; None where the parts are no sample, and requests outside of them count
    as inside the objectives."""
    window_s: float = math.nan
    """length of a window of a sample."""
    cut: int = 0
    """windows of a sample in which a backlog lasts that is older than what is played before
    them."""
    bound: bool = False
    """whether the run is to tell an upper bound of the attainment, not its expectation."""

    @property
    def weights(self) -> list[NDArray[np.float64]]:
        """float64[n] of each part, requests of the whole traffic that each request stands for."""
        if self.strata is None:
            return [part.counted.astype(np.float64) for part in self.parts]
        played = np.zeros(len(self.strata))
        for part in self.parts:
            played[part.stratum] += part.counted.sum()
        requests = np.array([stratum.requests for stratum in self.strata])
        each = requests / np.maximum(played, 1.0)
        return [part.counted * each[part.stratum] for part in self.parts]

    def rounds(self) -> Iterator[PlayedTraffic]:
        """The traffic after each round, in the order of the rounds; the last is all of it."""
        parts = sorted(self.parts, key=lambda part: part.round)
        for last in sorted({part.round for part in parts}):
            until = tuple(part for part in parts if part.round <= last)
            yield dataclasses.replace(self, parts=until)

    @property
    def worth_it(self) -> bool:
        """Whether a sample has so few requests that it is played in place of all of them."""
        return sum(len(part.trace) for part in self.parts) < _WORTH * self.requests

    @property
    def description(self) -> str | None:
        """Sentence on what is played; None for the whole traffic."""
        if self.strata is None:
            return None
        played = sum(int(part.counted.sum()) for part in self.parts)
        cut = ""
        if self.cut:
            cut = (
                f" Before each window at most {_MOST_LEAD * self.window_s / 60:.0f} minutes are "
                f"played; in {self.cut} of them a server that just suffices would have a longer "
                "queue, whose older part is not seen."
            )
        return (
            f"Up to {len(self.parts)} windows of {self.window_s:,.0f} s with {played:,} requests "
            f"are played for all {self.requests:,}, until it is sure whether the objectives are "
            "met: the busiest ones all, the others as a sample by their load, whose error is in "
            f"the interval.{cut}"
        )


def traffic_to_play(trace: Trace, attainment: float) -> tuple[PlayedTraffic, PlayedTraffic]:
    """Traffic of a run that is to tell the attainment, and of one of many that rule deployments
    out.

    Args:
      trace: the whole traffic.
      attainment: share of the requests that must meet the objectives.
    """
    busy = _in_busy_minutes(trace)
    sample = _sample(trace, attainment, busy) if len(trace) > MOST_PLAYED else None
    screen = None if sample is None else _screened(sample)
    if sample is None or not sample.worth_it:
        sample = _consecutive(trace, [slice(0, len(trace))], busy)
    if screen is None or not screen.worth_it:
        parts = _consecutive(trace, busiest(trace), busy)
        screen = dataclasses.replace(parts, bound=True)
    return sample, screen


def _consecutive(trace: Trace, chosen: list[slice], busy: NDArray[np.bool_]) -> PlayedTraffic:
    """Parts of a trace all of whose requests count."""
    parts = tuple(_part(trace, each, busy, each.start) for each in chosen)
    return PlayedTraffic(parts, len(trace))


def busiest(trace: Trace) -> list[slice]:
    """Disjoint parts of a trace: with the most prompt tokens, the most output tokens and the most
    requests. A trace that they would cover to a half is one part."""
    length_s = max(_SLICE_SHARE * trace.duration_s, _SLICE_LEAST_S)
    if 2 * _SLICES * length_s > trace.duration_s:
        return [slice(0, len(trace))]
    chosen = np.zeros(len(trace), bool)
    parts = []
    ends = np.searchsorted(trace.arrival_s, trace.arrival_s + length_s)
    for weights in (trace.prompt_tokens, trace.output_tokens, np.ones(len(trace))):
        sums = np.append(0.0, np.cumsum(np.where(chosen, 0.0, weights)))
        first = int((sums[ends] - sums[:-1]).argmax())
        fresh = np.flatnonzero(~chosen[first : ends[first]]) + first
        if len(fresh):
            # What earlier parts took lies at an end of this one, which is as long as they are.
            parts.append(slice(int(fresh[0]), int(fresh[-1]) + 1))
            chosen[parts[-1]] = True
    return parts


def _sample(trace: Trace, attainment: float, busy: NDArray[np.bool_]) -> PlayedTraffic:
    """The sample of the windows of a long trace, those of a stratum in the order of their load."""
    rate = len(trace) / trace.duration_s
    window_s = max(_WINDOW_REQUESTS / rate, _WINDOW_S)
    windows = max(int(trace.duration_s / window_s), 1)
    edges = np.searchsorted(trace.arrival_s, np.arange(windows + 1) * window_s)
    edges[-1] = len(trace)
    load = _Load.of(trace, attainment)
    least_s, most_s = _LEAD * window_s, _MOST_LEAD * window_s
    parts, strata, requests, cut = [], [], np.diff(edges), 0
    for number, members in enumerate(_doubling(load.order(windows, window_s))):
        strata.append(Stratum(len(members), int(requests[members].sum())))
        drawn = members[_evenly(len(members), _DRAWN)]
        for place, window in enumerate(drawn.tolist()):
            backlog_s = load.backlog_s(window * window_s)
            cut += backlog_s > most_s
            begin_s = window * window_s - min(max(backlog_s, least_s), most_s)
            begin = int(np.searchsorted(trace.arrival_s, begin_s))
            part = _part(trace, slice(begin, int(edges[window + 1])), busy, int(edges[window]))
            parts.append(dataclasses.replace(part, stratum=number, round=_round(number, place)))
    return PlayedTraffic(tuple(parts), len(trace), tuple(strata), window_s, cut)


def _screened(sample: PlayedTraffic) -> PlayedTraffic:
    """Some of the windows of the busiest strata of a sample."""
    assert sample.strata is not None
    windows = np.cumsum([stratum.windows for stratum in sample.strata])
    before = np.append(0, windows[:-1])
    strata = sample.strata[: max(int((before <= _SCREENED_SHARE * windows[-1]).sum()), 1)]
    parts = []
    for number in range(len(strata)):
        drawn = [part for part in sample.parts if part.stratum == number]
        for place, chosen in enumerate(_evenly(len(drawn), _SCREENED).tolist()):
            parts.append(dataclasses.replace(drawn[chosen], round=_round(number, place)))
    return dataclasses.replace(sample, parts=tuple(parts), strata=strata, bound=True)


def _round(stratum: int, place: int) -> int:
    """Round of a window: the first has all of the busiest stratum, and of the others every fourth,
    the second every second, the last the rest."""
    if not stratum or not place % 4:
        return 0
    return 1 if not place % 2 else 2


@dataclass(frozen=True, eq=False)
class _Load:
    """Load of each of n seconds by four kinds of work that arrive in them: requests, prompt tokens,
    output tokens, and KV tokens times the steps that they are held. Each is in units of its
    mean."""

    work: NDArray[np.float64]
    """float64[4, n], work that arrives."""
    backlog: NDArray[np.float64]
    """float64[4, n], work that a fluid server has not done. Its rate is exceeded for three times as
    many minutes as requests may miss, so a deployment that suffices has hardly less of a
    backlog."""
    empty: NDArray[np.int64]
    """int64[n], the earliest of the last seconds in which each kind of work had no backlog."""

    @classmethod
    def of(cls, trace: Trace, attainment: float) -> _Load:
        """The load of a trace whose requests are to meet their objectives in such a share."""
        second = trace.arrival_s.astype(np.int64)
        outputs = trace.output_tokens
        held = outputs * (trace.prompt_tokens + 0.5 * outputs)
        kinds = [None, trace.prompt_tokens, outputs, held]
        work = np.stack([np.bincount(second, each).astype(np.float64) for each in kinds])
        work /= work.mean(axis=1, keepdims=True)
        busiest = max(1.0 - 3.0 * (1.0 - attainment), 0.5)
        capacity = np.quantile(_sums_of(work, _MINUTE_S) / _MINUTE_S, busiest, axis=1)
        ahead = np.cumsum(work - capacity[:, None], axis=1)
        backlog = ahead - np.minimum.accumulate(np.minimum(ahead, 0.0), axis=1)
        seconds = np.arange(work.shape[1])
        empty = np.maximum.accumulate(np.where(backlog == 0.0, seconds, 0), axis=1)
        return cls(work, backlog, empty.min(axis=0))

    def order(self, windows: int, window_s: float) -> NDArray[np.intp]:
        """int[windows], windows, the busiest first: of the ranks by the busiest seconds, by all
        seconds and by the greatest backlog of each kind the best one counts."""
        seconds = self.work.shape[1]
        of = np.minimum((np.arange(seconds) / window_s).astype(np.int64), windows - 1)
        loads = [np.bincount(of, each, windows).astype(np.float64) for each in self.work]
        for each in (_sums_of(self.work.sum(axis=0), _BURST_S), *self.backlog):
            greatest = np.zeros(windows)
            np.maximum.at(greatest, of, each)
            loads.append(greatest)
        ranks = [rankdata(-load, method="ordinal") for load in loads]
        return np.argsort(np.min(ranks, axis=0), kind="stable")

    def backlog_s(self, time_s: float) -> float:
        """Age of the backlog at a time: seconds since the last one without any."""
        return time_s - float(self.empty[int(time_s)])


def _sums_of(work: NDArray[np.float64], seconds: int) -> NDArray[np.float64]:
    """float64[..., n], sums over the seconds up to each."""
    before = [(0, 0)] * (work.ndim - 1) + [(seconds, 0)]
    sums = np.cumsum(np.pad(work, before), axis=-1)
    return sums[..., seconds:] - sums[..., :-seconds]


def _part(trace: Trace, requests: slice, busy: NDArray[np.bool_], begin: int) -> TrafficPart:
    """The part of a trace with these requests, which count from ``begin`` on; ``busy`` is that of
    all requests."""
    before = None
    if trace.blocks is not None and requests.start:
        before = trace.chosen(slice(max(requests.start - _REMEMBERED, 0), requests.start))
    counted = np.arange(requests.start, requests.stop) >= begin
    return TrafficPart(trace.chosen(requests), counted, busy[requests], before=before)


def _doubling(order: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Windows in the order of their load in strata that double in size; what is left at the end is
    the last one's."""
    found, begin, size = [], 0, _DRAWN
    while begin < len(order):
        end = begin + size
        if len(order) - end < size:
            end = len(order)
        found.append(order[begin:end])
        begin, size = end, 2 * size
    return found


def _evenly(count: int, most: int) -> NDArray[np.intp]:
    """Places of up to ``most`` of ``count`` things in order, as far from each other as from the
    ends."""
    if count <= most:
        return np.arange(count)
    return ((np.arange(most) + 0.5) * count / most).astype(np.intp)


def _in_busy_minutes(trace: Trace) -> NDArray[np.bool_]:
    """bool[n], whether a request arrives in a minute with more requests than the mean one."""
    minute = (trace.arrival_s / _BUSY_S).astype(np.int64)
    counts = np.bincount(minute)
    return (counts > _BUSY * len(trace) / len(counts))[minute]
