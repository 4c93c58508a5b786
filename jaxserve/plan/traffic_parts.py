"""The parts of the traffic that are played: the busiest ones, all of it, or a sample of windows.

Every request of a part stands for ``weight`` requests of the whole traffic. Traffic of up to
``MOST_PLAYED`` requests is played whole. Of more, windows are drawn as a stratified sample: windows
are sorted by their load, the strata from the busiest one on double in size, and as many windows are
drawn from each. Misses gather in the busiest windows, which are drawn most densely. The share of
misses is a separate ratio estimate, whose variance is that of Cochran, Sampling Techniques (1977),
sections 6.10 and 6.11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.sim.traffic.traces import Trace

MOST_PLAYED = 100_000
"""Requests of the longest traffic that is played whole."""
_SLICES = 3
_SLICE_SHARE = 1 / 24
_SLICE_LEAST_S = 90.0
_BUSY_S = 60.0
_BUSY = 1.1
"""Times the mean rate from which on a minute is busy."""
_WINDOW_REQUESTS, _SCREENED_REQUESTS, _WINDOW_S = 600, 300, 30.0
"""Requests of a sampled window, those of one that screens deployments, and its shortest length,
s."""
_LEAD, _LEAD_S = 0.25, 15.0
"""Time before a sampled window that is played with it so that engines are as full as they were, as
a share of the window, and at least, s."""
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
    weight: NDArray[np.float64]
    """float64[n], requests of the whole traffic that each stands for; 0 for those that are played
    but not counted."""
    busy: NDArray[np.bool_]
    """bool[n], whether each arrives in a minute busier than the mean one."""
    stratum: int = 0
    """stratum of a sampled window."""
    before: Trace | None = None
    """requests before it, which prefix caches may still hold; None where no prompts are shared."""


@dataclass(frozen=True, eq=False)
class PlayedTraffic:
    """Parts of the traffic that one run plays."""

    parts: tuple[TrafficPart, ...]
    requests: int
    """requests of the whole traffic."""
    strata: tuple[int, ...] | None = None
    """windows in each stratum of a sample; None where the parts are no sample, and requests
    outside of them count as inside the objectives."""
    window_s: float = math.nan
    """length of a window of a sample."""
    bound: bool = False
    """whether the run is to tell an upper bound of the attainment, not its expectation."""

    @property
    def description(self) -> str | None:
        """Sentence on what is played; None for the whole traffic."""
        if self.strata is None:
            return None
        played = sum(int((part.weight > 0).sum()) for part in self.parts)
        return (
            f"{len(self.parts)} windows of {self.window_s:,.0f} s with {played:,} requests are "
            f"played for all {self.requests:,}: the busiest ones all, the others as a sample by "
            "their load, whose error is in the interval."
        )


def traffic_to_play(trace: Trace, screen: bool) -> PlayedTraffic:
    """Traffic of a run.

    Args:
      trace: the whole traffic.
      screen: whether the run is one of many that rule deployments out.
    """
    if len(trace) > MOST_PLAYED:
        return _sample(trace, screen)
    busy = _in_busy_minutes(trace)
    chosen = busiest(trace) if screen else [slice(0, len(trace))]
    parts = [_part(trace, each, np.ones(each.stop - each.start), busy[each]) for each in chosen]
    return PlayedTraffic(tuple(parts), len(trace), bound=screen)


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


def _sample(trace: Trace, screen: bool) -> PlayedTraffic:
    """The sample of the windows of a long trace."""
    rate = len(trace) / trace.duration_s
    window_s = max((_SCREENED_REQUESTS if screen else _WINDOW_REQUESTS) / rate, _WINDOW_S)
    lead_s = max(_LEAD * window_s, _LEAD_S)
    windows = max(int(trace.duration_s / window_s), 1)
    edges = np.searchsorted(trace.arrival_s, np.arange(windows + 1) * window_s)
    edges[-1] = len(trace)
    busy = _in_busy_minutes(trace)
    load = sum(
        _sums(values, edges) / max(float(values.mean()), 1e-9)
        for values in (trace.prompt_tokens, trace.output_tokens, np.ones(len(trace)))
    )
    order = np.argsort(-np.asarray(load), kind="stable")
    parts, strata, requests = [], [], np.diff(edges)
    for number, members in enumerate(_doubling(order)):
        if screen and number and sum(strata) > _SCREENED_SHARE * windows:
            break
        drawn = members[_evenly(len(members), _DRAWN)]
        if screen:
            drawn = drawn[_evenly(len(drawn), _SCREENED)]
        stands_for = float(requests[members].sum()) / max(float(requests[drawn].sum()), 1.0)
        strata.append(len(members))
        for window in drawn.tolist():
            begin, end = int(edges[window]), int(edges[window + 1])
            lead = int(np.searchsorted(trace.arrival_s, window * window_s - lead_s))
            weight = np.full(end - lead, stands_for)
            weight[: begin - lead] = 0.0
            part = slice(lead, end)
            parts.append(_part(trace, part, weight, busy[part], number))
    return PlayedTraffic(tuple(parts), len(trace), tuple(strata), window_s, screen)


def _part(
    trace: Trace,
    requests: slice,
    weight: NDArray[np.float64],
    busy: NDArray[np.bool_],
    stratum: int = 0,
) -> TrafficPart:
    """The part of a trace with these requests."""
    before = None
    if trace.blocks is not None and requests.start:
        before = trace.chosen(slice(max(requests.start - _REMEMBERED, 0), requests.start))
    return TrafficPart(trace.chosen(requests), weight, busy, stratum, before)


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


def _sums(values: NDArray[np.generic], edges: NDArray[np.intp]) -> NDArray[np.float64]:
    """Sums of values between edges."""
    return np.diff(np.append(0.0, np.cumsum(values, dtype=np.float64))[edges])


def _in_busy_minutes(trace: Trace) -> NDArray[np.bool_]:
    """bool[n], whether a request arrives in a minute with more requests than the mean one."""
    minute = (trace.arrival_s / _BUSY_S).astype(np.int64)
    counts = np.bincount(minute)
    return (counts > _BUSY * len(trace) / len(counts))[minute]
