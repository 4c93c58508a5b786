"""From recorded requests to what the simulators take: figures, traffic classes, arrival counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.sim import bursts, lengths
from jaxserve.sim.lengths import LengthDistribution
from jaxserve.sim.traces import Trace

MAX_COUNTS = 2**26
"""Most numbers (windows x ticks x classes) in an array of counts, 256 MiB."""


@dataclass(frozen=True)
class TraceStatistics:
    """Figures of a trace; None where the trace is too short for one."""

    requests: int
    duration_s: float
    """seconds from the first to the last request."""
    rate_rps: float | None
    """requests per second."""
    gap_cv: float | None
    """coefficient of variation of the times between requests; 1 for Poisson."""
    dispersion_1s: float | None
    """variance / mean of the requests in windows of 1 s; 1 for Poisson."""
    dispersion_10s: float | None
    """the same in windows of 10 s."""
    dispersion_60s: float | None
    """the same in windows of 60 s."""
    prompt_mean: float
    """tokens."""
    prompt_quantiles: tuple[float, float, float]
    """p50, p90 and p99, tokens."""
    output_mean: float
    """tokens."""
    output_quantiles: tuple[float, float, float]
    """p50, p90 and p99, tokens."""
    rank_correlation: float | None
    """Spearman's correlation of prompt and output length, -1..1."""


@dataclass(frozen=True)
class TraceClass:
    """The requests of one traffic class: one range of prompt lengths, one priority group."""

    share: float
    """share of the trace's requests."""
    priority: int
    """priority group, 0 = served first."""
    prompt: LengthDistribution
    """prompt lengths, tokens."""
    output: LengthDistribution
    """output lengths, tokens."""


def trace_statistics(trace: Trace) -> TraceStatistics:
    """Rate, burstiness and lengths of a trace."""
    spread = trace.duration_s > 0.0

    def dispersion(window_s: float) -> float | None:
        enough = trace.duration_s >= 2.0 * window_s
        return bursts.dispersion(trace.arrival_s, window_s) if enough else None

    def quantiles(tokens: NDArray[np.int32]) -> tuple[float, float, float]:
        p50, p90, p99 = (float(q) for q in np.quantile(tokens, [0.5, 0.9, 0.99]))
        return p50, p90, p99

    return TraceStatistics(
        requests=len(trace),
        duration_s=trace.duration_s,
        rate_rps=(len(trace) - 1) / trace.duration_s if spread else None,
        gap_cv=bursts.gap_cv(trace.arrival_s) if spread and len(trace) > 2 else None,
        dispersion_1s=dispersion(1.0),
        dispersion_10s=dispersion(10.0),
        dispersion_60s=dispersion(60.0),
        prompt_mean=float(trace.prompt_tokens.mean()),
        prompt_quantiles=quantiles(trace.prompt_tokens),
        output_mean=float(trace.output_tokens.mean()),
        output_quantiles=quantiles(trace.output_tokens),
        rank_correlation=_rank_correlation(trace.prompt_tokens, trace.output_tokens),
    )


def prompt_edges(trace: Trace, bins: int) -> tuple[int, ...]:
    """Where to cut the prompt lengths into bins that matter about alike.

    A bin weighs half by its share of the requests and half by its share of the prompt tokens, so
    that neither the many short nor the few long prompts end up in one bin.

    Returns:
      at most bins - 1 increasing lengths in tokens; a bin holds prompts longer than the edge before
      it, up to and including its own. Fewer where prompts of one length outweigh a bin.
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}")
    prompt = np.sort(trace.prompt_tokens).astype(np.float64)
    weight = np.cumsum(0.5 / len(prompt) + 0.5 * prompt / prompt.sum())
    cuts = np.searchsorted(weight, np.arange(1, bins) / bins)
    edges = np.unique(prompt[cuts].astype(int))
    return tuple(int(edge) for edge in edges if edge < prompt[-1])


def split_classes(
    trace: Trace, edges: Sequence[int], priorities: int = 1
) -> tuple[TraceClass, ...]:
    """The trace's traffic classes, in the order of `to_class_counts`.

    A class without requests has the lengths of all requests in its range of prompt lengths.

    Raises:
      InputError: the edges do not increase, leave a bin without any request, or the trace has a
        priority group from `priorities` on.
    """
    index = _class_index(trace, edges, priorities)
    bins = len(edges) + 1
    classes = []
    for number in range(bins * priorities):
        group, bin = divmod(number, bins)
        members = index == number
        present = members if members.any() else index % bins == bin
        if not present.any():
            raise InputError(f"edges {list(edges)} leave bin {bin} without requests")
        classes.append(
            TraceClass(
                share=float(members.mean()),
                priority=group,
                prompt=lengths.from_samples(trace.prompt_tokens[present]),
                output=lengths.from_samples(trace.output_tokens[present]),
            )
        )
    return tuple(classes)


def to_class_counts(
    trace: Trace,
    edges: Sequence[int],
    *,
    priorities: int = 1,
    window_s: float = 1.0,
    ticks: int = 8,
    start_s: float = 0.0,
    duration_s: float | None = None,
) -> NDArray[np.float32]:
    """Arrivals per tick and class.

    Args:
      trace: n requests.
      edges: B - 1 increasing prompt lengths that cut the requests into B bins, see `prompt_edges`.
      priorities: G, number of priority groups; class g * B + b is bin b of group g.
      window_s: length of a control window, seconds.
      ticks: K, ticks in a window.
      start_s: where in the trace to begin, seconds.
      duration_s: how much of it to take; None for all that is left. The last window is filled up
        with silence.

    Returns:
      float32[W, K, B * G], whole numbers.

    Raises:
      InputError: a bad range or edges, or more than `MAX_COUNTS` numbers.
    """
    if not (math.isfinite(window_s) and window_s > 0.0) or ticks < 1:
        raise InputError(
            f"window_s must be above 0 and ticks at least 1, but are {window_s} and {ticks}"
        )
    if not 0.0 <= start_s <= trace.duration_s:
        raise InputError(f"start_s must lie in 0..{trace.duration_s:g} s, not {start_s}")
    if duration_s is None:
        # One tick more, so that the last request is inside.
        duration_s = trace.duration_s - start_s + window_s / ticks
    if not (math.isfinite(duration_s) and duration_s > 0.0):
        raise InputError(f"duration_s must be a finite time above 0, not {duration_s}")
    classes = (len(edges) + 1) * priorities
    windows = math.ceil(duration_s / window_s - 1e-9)
    if windows * ticks * classes > MAX_COUNTS:
        raise InputError(
            f"{windows:,} windows of {ticks} ticks and {classes} classes are more than "
            f"{MAX_COUNTS:,} counts: take less of the trace with start_s and duration_s"
        )
    tick = np.floor((trace.arrival_s - start_s) * (ticks / window_s)).astype(np.int64)
    taken = (trace.arrival_s >= start_s) & (trace.arrival_s < start_s + duration_s)
    # An end that rounding puts a hair beyond the last tick.
    tick = np.minimum(tick[taken], windows * ticks - 1)
    cell = tick * classes + _class_index(trace, edges, priorities)[taken]
    counts = np.bincount(cell, minlength=windows * ticks * classes)
    return counts.reshape(windows, ticks, classes).astype(np.float32)


def _class_index(trace: Trace, edges: Sequence[int], priorities: int) -> NDArray[np.int64]:
    if not all(low < high for low, high in pairwise([0, *edges])):
        raise InputError(f"edges must be increasing lengths above 0, but are {list(edges)}")
    highest = int(trace.priority.max())
    if not 0 <= highest < priorities or trace.priority.min() < 0:
        raise InputError(f"the trace has priority group {highest}, but priorities is {priorities}")
    bins = np.searchsorted(np.asarray(edges, np.int64), trace.prompt_tokens, side="left")
    return trace.priority.astype(np.int64) * (len(edges) + 1) + bins


def _rank_correlation(first: NDArray[np.int32], second: NDArray[np.int32]) -> float | None:
    x, y = _centred_ranks(first), _centred_ranks(second)
    scale = math.sqrt((x @ x) * (y @ y))
    return float(x @ y) / scale if scale > 0.0 else None


def _centred_ranks(values: NDArray[np.int32]) -> NDArray[np.float64]:
    """Ranks less their mean, equal values sharing one rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - 0.5 * (counts - 1)
    return np.take(rank, inverse) - 0.5 * (len(values) + 1)
