"""From recorded requests to what the simulators take: traffic classes and arrival counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic import lengths
from jaxserve.sim.traffic.lengths import LengthDistribution
from jaxserve.sim.traffic.traces import Trace

MAX_COUNTS = 2**26
"""Most numbers (windows x ticks x classes) in an array of counts, 256 MiB."""


@dataclass(frozen=True)
class TraceClass:
    """The requests of one traffic class: one range of prompt lengths."""

    share: float
    """share of the trace's requests."""
    prompt: LengthDistribution
    """prompt lengths, tokens."""
    output: LengthDistribution
    """output lengths, tokens."""


def prompt_edges(trace: Trace, bins: int) -> tuple[int, ...]:
    """Where to cut the prompt lengths into bins that matter about alike.

    A bin weighs half by its share of the requests and half by its share of the prompt tokens, so
    that neither the many short nor the few long prompts end up in one bin.

    Returns:
      at most bins - 1 increasing lengths in tokens; a bin holds prompts longer than the edge before
      it, up to and including its own. Fewer where prompts of one length outweigh a bin.
    """
    checks.whole("bins", bins, 1)
    prompt = np.sort(trace.prompt_tokens).astype(np.float64)
    weight = np.cumsum(0.5 / len(prompt) + 0.5 * prompt / prompt.sum())
    cuts = np.searchsorted(weight, np.arange(1, bins) / bins)
    edges = np.unique(prompt[cuts].astype(int))
    return tuple(int(edge) for edge in edges if edge < prompt[-1])


def split_classes(trace: Trace, edges: Sequence[int]) -> tuple[TraceClass, ...]:
    """The trace's traffic classes, in the order of ``to_class_counts``.

    Raises:
      InputError: the edges do not increase, or leave a bin without any request.
    """
    index = class_index(trace, edges)
    classes = []
    for bin in range(len(edges) + 1):
        members = index == bin
        if not members.any():
            raise InputError(f"edges {list(edges)} leave bin {bin} without requests")
        classes.append(
            TraceClass(
                share=float(members.mean()),
                prompt=lengths.from_samples(trace.prompt_tokens[members]),
                output=lengths.from_samples(trace.output_tokens[members]),
            )
        )
    return tuple(classes)


def to_class_counts(
    trace: Trace, edges: Sequence[int], *, window_s: float = 1.0, ticks: int = 8
) -> NDArray[np.float32]:
    """Arrivals per tick and class.

    Args:
      trace: n requests.
      edges: B - 1 increasing prompt lengths that cut the requests into B bins, see
        ``prompt_edges``; each bin is a class.
      window_s: length of a control window, seconds.
      ticks: K, ticks in a window.

    Returns:
      float32[W, K, B], whole numbers; the last window is filled up with silence.

    Raises:
      InputError: a bad window or edges, or more than ``MAX_COUNTS`` numbers.
    """
    checks.positive("window_s", window_s)
    checks.whole("ticks", ticks, 1)
    classes = len(edges) + 1
    # One tick more, so that the last request is inside.
    windows = math.ceil((trace.duration_s + window_s / ticks) / window_s - 1e-9)
    if windows * ticks * classes > MAX_COUNTS:
        raise InputError(
            f"{windows:,} windows of {ticks} ticks and {classes} classes are more than "
            f"{MAX_COUNTS:,} counts: cut the trace first"
        )
    tick = np.floor(trace.arrival_s * (ticks / window_s)).astype(np.int64)
    # An end that rounding puts a hair beyond the last tick.
    tick = np.minimum(tick, windows * ticks - 1)
    cell = tick * classes + class_index(trace, edges)
    counts = np.bincount(cell, minlength=windows * ticks * classes)
    return counts.reshape(windows, ticks, classes).astype(np.float32)


def class_index(trace: Trace, edges: Sequence[int]) -> NDArray[np.int64]:
    """int64[n], the bin of each request's prompt length."""
    if not all(low < high for low, high in pairwise([0, *edges])):
        checks.refuse("edges", list(edges), "rising lengths above 0")
    return np.searchsorted(np.asarray(edges, np.int64), trace.prompt_tokens, side="left")
