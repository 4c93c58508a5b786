"""The parts of the traffic that are played: the busiest ones, all of it, or a sample of windows.

Traffic of up to ``MOST_PLAYED`` requests is played whole. Of more, windows are drawn as a
stratified sample: windows are sorted by the requests that a server which just suffices would serve
late, the strata from the first one on double in size, and as many windows are drawn from each.
Misses gather in the first strata, which are drawn most densely. Every counted request stands for as
many as its stratum has for each that was played. The share of misses is a separate ratio estimate,
whose variance is that of Cochran, Sampling Techniques (1977), sections 6.10 and 6.11.

A sample is played in rounds, each of which doubles the windows. Windows of a round that follow each
other, with what is played before them, are one part.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.plan.played_traffic import PlayedTraffic, Stratum, TrafficPart
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
_LATE_S, _MINUTE_S = 1.0, 60
"""Backlog that makes requests late, as the time in which it is done, and times over which engines
are full, s."""
_LEAD, _MOST_LEAD = 0.5, 3.0
"""Least and greatest time before a sampled window that is played with it so that engines are as
full as they were, as shares of the window."""
_REMEMBERED = 5_000
"""Requests before a part whose prompts prefix caches may still hold."""
_DRAWN, _SCREENED = 16, 6
"""Windows drawn from each stratum, and those that screen deployments."""
_SCREENED_SHARE = 1 / 8
"""Share of the windows, the busiest ones, in whose strata deployments are screened; requests of the
others count as inside the objectives."""


def traffic_to_play(trace: Trace, attainment: float) -> tuple[PlayedTraffic, PlayedTraffic]:
    """Traffic of a run that is to tell the attainment, and of one of many that rule deployments
    out.

    Args:
      trace: the whole traffic.
      attainment: share of the requests that must meet the objectives.
    """
    busy = _in_busy_minutes(trace)
    whole = screen = None
    if len(trace) > MOST_PLAYED:
        sample = _Sample.of(trace, attainment)
        whole, screen = sample.played(trace, busy), sample.screened().played(trace, busy)
    if whole is None or not whole.worth_it:
        whole = _consecutive(trace, [slice(0, len(trace))], busy)
    if screen is None or not screen.worth_it:
        screen = _consecutive(trace, busiest(trace), busy)
    return whole, dataclasses.replace(screen, bound=True)


def _consecutive(trace: Trace, chosen: list[slice], busy: NDArray[np.bool_]) -> PlayedTraffic:
    """Parts of a trace all of whose requests count."""
    parts = tuple(
        TrafficPart(
            trace.chosen(each),
            np.zeros(each.stop - each.start, np.int32),
            busy[each],
            before=_before(trace, each.start),
        )
        for each in chosen
    )
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


@dataclass(frozen=True)
class _Drawn:
    """A window of a sample."""

    stratum: int
    round: int
    """round in which it is played."""
    begin: int
    """first request that is played, so that engines are as full as they were."""
    first: int
    """first request that counts."""
    end: int
    """request behind its last."""


@dataclass(frozen=True)
class _Sample:
    """Windows drawn from a long trace."""

    drawn: tuple[_Drawn, ...]
    """the windows, those of a stratum in the order of their load."""
    strata: tuple[Stratum, ...]
    window_s: float
    """length of a window."""
    window_requests: float
    """requests of a mean window."""
    cut: int
    """windows in which a backlog lasts that is older than what is played before them."""

    @classmethod
    def of(cls, trace: Trace, attainment: float) -> _Sample:
        """The sample of a trace whose requests are to meet their objectives in such a share."""
        rate = len(trace) / trace.duration_s
        window_s = max(_WINDOW_REQUESTS / rate, _WINDOW_S)
        windows = max(int(trace.duration_s / window_s), 1)
        edges = np.searchsorted(trace.arrival_s, np.arange(windows + 1) * window_s)
        edges[-1] = len(trace)
        load = _Load.of(trace, attainment)
        least_s, most_s = _LEAD * window_s, _MOST_LEAD * window_s
        found, strata, requests, cut = [], [], np.diff(edges), 0
        for number, members in enumerate(_doubling(load.order(windows, window_s))):
            strata.append(Stratum(len(members), int(requests[members].sum())))
            drawn = members[_evenly(len(members), _DRAWN)]
            for place, window in enumerate(drawn.tolist()):
                backlog_s = load.backlog_s(window * window_s)
                cut += backlog_s > most_s
                lead_s = min(max(backlog_s, least_s), most_s)
                begin = int(np.searchsorted(trace.arrival_s, window * window_s - lead_s))
                first, end = int(edges[window]), int(edges[window + 1])
                found.append(_Drawn(number, _round(place), begin, first, end))
        return cls(tuple(found), tuple(strata), window_s, rate * window_s, cut)

    def screened(self) -> _Sample:
        """Some of the windows of the busiest strata."""
        windows = np.cumsum([stratum.windows for stratum in self.strata])
        before = np.append(0, windows[:-1])
        strata = self.strata[: max(int((before <= _SCREENED_SHARE * windows[-1]).sum()), 1)]
        found: list[_Drawn] = []
        for number in range(len(strata)):
            drawn = [each for each in self.drawn if each.stratum == number]
            for place, chosen in enumerate(_evenly(len(drawn), _SCREENED).tolist()):
                found.append(dataclasses.replace(drawn[chosen], round=_round(place)))
        return dataclasses.replace(self, drawn=tuple(found), strata=strata)

    def played(self, trace: Trace, busy: NDArray[np.bool_]) -> PlayedTraffic:
        """The parts of the trace that have the windows; ``busy`` is that of all requests."""
        return PlayedTraffic(
            tuple(_part(trace, windows, busy) for windows in self._runs()),
            len(trace),
            self.strata,
            self.window_s,
            self.window_requests,
            _MOST_LEAD * self.window_s,
            self.cut,
        )

    def _runs(self) -> list[list[_Drawn]]:
        """The windows of each round, those together that overlap with what is played before
        them."""
        runs: list[list[_Drawn]] = []
        for window in sorted(self.drawn, key=lambda each: (each.round, each.begin)):
            last = runs[-1] if runs else []
            same_round = bool(last) and last[0].round == window.round
            if same_round and window.begin <= max(each.end for each in last):
                last.append(window)
            else:
                runs.append([window])
        return runs


def _part(trace: Trace, windows: list[_Drawn], busy: NDArray[np.bool_]) -> TrafficPart:
    """The part of a trace with these windows; ``busy`` is that of all requests."""
    begin, end = min(each.begin for each in windows), max(each.end for each in windows)
    window = np.full(end - begin, -1, np.int32)
    for number, each in enumerate(windows):
        window[each.first - begin : each.end - begin] = number
    return TrafficPart(
        trace.chosen(slice(begin, end)),
        window,
        busy[begin:end],
        tuple(each.stratum for each in windows),
        windows[0].round,
        _before(trace, begin),
    )


def _before(trace: Trace, begin: int) -> Trace | None:
    """Requests before a part, which prefix caches may still hold."""
    if trace.blocks is None or not begin:
        return None
    return trace.chosen(slice(max(begin - _REMEMBERED, 0), begin))


def _round(place: int) -> int:
    """Round of a window of a stratum: the first has every fourth, the second every second, the last
    the rest."""
    if not place % 4:
        return 0
    return 1 if not place % 2 else 2


@dataclass(frozen=True, eq=False)
class _Load:
    """Load of each of n seconds by four kinds of work that arrive in them: requests, prompt tokens,
    output tokens, and KV tokens times the steps that they are held. Each is in units of its
    mean."""

    work: NDArray[np.float64]
    """float64[4, n], work that arrives."""
    capacity: NDArray[np.float64]
    """float64[4], work that a fluid server does in a second. This rate is exceeded for three times
    as many minutes as requests may miss, so a deployment that suffices has hardly less."""
    backlog: NDArray[np.float64]
    """float64[4, n], work that the server has not done."""
    empty: NDArray[np.int64]
    """int64[n], the earliest of the last seconds in which each kind of work had no backlog."""

    @classmethod
    def of(cls, trace: Trace, attainment: float) -> _Load:
        """The load of a trace whose requests are to meet their objectives in such a share."""
        seconds = int(trace.duration_s) + 1
        outputs = trace.output_tokens
        held = outputs * (trace.prompt_tokens + 0.5 * outputs)
        sums = [trace.sums(each, 1.0, seconds) for each in (trace.prompt_tokens, outputs, held)]
        work = np.stack([trace.counts(1.0, seconds), *sums])
        work /= work.mean(axis=1, keepdims=True)
        busiest = max(1.0 - 3.0 * (1.0 - attainment), 0.5)
        capacity = np.quantile(_sums_of(work, _MINUTE_S) / _MINUTE_S, busiest, axis=1)
        ahead = np.cumsum(work - capacity[:, None], axis=1)
        backlog = ahead - np.minimum.accumulate(np.minimum(ahead, 0.0), axis=1)
        empty = np.where(backlog == 0.0, np.arange(seconds), 0)
        empty = np.maximum.accumulate(empty, axis=1)
        return cls(work, capacity, backlog, empty.min(axis=0))

    def order(self, windows: int, window_s: float) -> NDArray[np.intp]:
        """int[windows], windows, those first in which most requests meet a backlog of
        ``_LATE_S``, summed over the kinds of work, and of the others those with most work."""
        place = np.minimum(np.arange(self.work.shape[1]) / window_s, windows - 1).astype(np.int64)
        late = ((self.backlog > _LATE_S * self.capacity[:, None]) * self.work[0]).sum(axis=0)
        requests, work = (
            np.bincount(place, each, windows) for each in (late, self.work.sum(axis=0))
        )
        return np.lexsort((-work, -requests))

    def backlog_s(self, time_s: float) -> float:
        """Age of the backlog at a time: seconds since the last one without any."""
        return time_s - float(self.empty[int(time_s)])


def _sums_of(work: NDArray[np.float64], seconds: int) -> NDArray[np.float64]:
    """float64[..., n], sums over the seconds up to each."""
    before = [(0, 0)] * (work.ndim - 1) + [(seconds, 0)]
    sums = np.cumsum(np.pad(work, before), axis=-1)
    return sums[..., seconds:] - sums[..., :-seconds]


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
    minutes = int(trace.duration_s / _BUSY_S) + 1
    counts = trace.counts(_BUSY_S, minutes)
    return np.repeat(counts > _BUSY * len(trace) / minutes, counts)
