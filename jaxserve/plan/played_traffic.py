"""The traffic that a run plays, in parts, and what each request of it stands for.

Of a sample the windows are played in rounds, so that a run can end as soon as the answer to its
question is sure. Of many replicas a few are played, with their share of the requests: the router
spreads requests evenly, so each replica meets what it would meet beside the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.sim.traffic.traces import Trace

_WORTH = 0.5
"""Share of the requests below which a sample is played in place of all of them."""
_PLAYED_REQUESTS = 5_000
"""Requests of a mean window of a sample that are played, at least; as many as there are where it
has fewer."""


@dataclass(frozen=True, eq=False)
class TrafficPart:
    """Consecutive requests that are played together."""

    trace: Trace
    """the n requests, the first at 0 s."""
    window: NDArray[np.int32]
    """int32[n], index of the window of a sample to which each belongs, 0 without a sample; -1 for
    requests that do not count and are played so that engines are as full as they were."""
    busy: NDArray[np.bool_]
    """bool[n], whether each arrives in a minute busier than the mean one."""
    strata: tuple[int, ...] = (0,)
    """stratum of each of its windows."""
    round: int = 0
    """round in which its windows are played."""
    before: Trace | None = None
    """requests before it, which prefix caches may still hold; None where no prompts are shared."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """bool[n], whether each request counts."""
        return self.window >= 0

    def sums(self, of: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64[W], the requests of each window for which ``of``, bool[n], is true."""
        return np.bincount(self.window[of & self.counted], minlength=len(self.strata))


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
    window_requests: float = math.nan
    """requests of a mean window of a sample."""
    lead_s: float = math.nan
    """longest time that is played before a window of a sample."""
    cut: int = 0
    """windows of a sample in which a backlog lasts that is older than what is played before
    them."""
    bound: bool = False
    """whether the run is to tell an upper bound of the attainment, not its expectation."""

    @property
    def weights(self) -> list[NDArray[np.float64]]:
        """float64[n] of each part, requests of the whole traffic that each request stands for."""
        each = self._each
        return [part.counted * each[list(part.strata)][part.window] for part in self.parts]

    def total(self, of: Sequence[NDArray[np.bool_]]) -> float:
        """Requests of the whole traffic for which ``of``, bool[n] of each part, is true."""
        return float(self._played(of) @ self._each)

    @property
    def _each(self) -> NDArray[np.float64]:
        """float64[strata], requests of the whole traffic for each that is played."""
        if self.strata is None:
            return np.ones(1)
        played = self._played([part.counted for part in self.parts])
        requests = np.array([stratum.requests for stratum in self.strata])
        return requests / np.maximum(played, 1.0)

    def _played(self, of: Sequence[NDArray[np.bool_]]) -> NDArray[np.float64]:
        """float64[strata], played requests for which ``of``, bool[n] of each part, is true."""
        played = np.zeros(1 if self.strata is None else len(self.strata))
        for part, chosen in zip(self.parts, of, strict=True):
            np.add.at(played, list(part.strata), part.sums(chosen))
        return played

    def played_replicas(self, replicas: int, prefill: int = 0) -> int:
        """Replicas of a deployment that are played: of a sample as many as get
        ``_PLAYED_REQUESTS`` of a mean window, and as large a share of the ``prefill`` ones."""
        if self.strata is None:
            return replicas
        fewest = math.ceil(_PLAYED_REQUESTS * replicas / self.window_requests)
        counts = range(min(fewest, replicas), replicas + 1)
        return next(count for count in counts if not prefill * count % replicas)

    def shared(self, played: int, replicas: int) -> PlayedTraffic:
        """The requests, evenly spaced, that so many of the replicas get."""
        if played == replicas:
            return self

        def share(trace: Trace) -> NDArray[np.bool_]:
            return np.diff(np.arange(len(trace) + 1) * played // replicas) > 0

        parts = []
        for part in self.parts:
            chosen, before = share(part.trace), part.before
            parts.append(
                dataclasses.replace(
                    part,
                    trace=part.trace.chosen(chosen),
                    window=part.window[chosen],
                    busy=part.busy[chosen],
                    before=before and before.chosen(share(before)),
                )
            )
        return dataclasses.replace(self, parts=tuple(parts))

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
        windows = sum(len(part.strata) for part in self.parts)
        played = sum(int(part.counted.sum()) for part in self.parts)
        cut = ""
        if self.cut:
            cut = (
                f" Before each window at most {self.lead_s / 60:.0f} minutes are "
                f"played; in {self.cut} of them a server that just suffices would have a longer "
                "queue, whose older part is not seen."
            )
        return (
            f"Up to {windows} windows of {self.window_s:,.0f} s with {played:,} requests "
            f"are played for all {self.requests:,}, until it is sure whether the objectives are "
            "met: the busiest ones most densely, the others as a sample by their load, whose error "
            f"is in the interval.{cut}"
        )
