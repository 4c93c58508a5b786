"""Traffic classes and arrival counts of recorded requests, as the simulators take them."""

from __future__ import annotations

import math
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
    """The requests of one traffic class: one kind, and one range of prompt lengths."""

    share: float
    """share of the trace's requests."""
    prompt: LengthDistribution
    """prompt lengths, tokens."""
    output: LengthDistribution
    """output lengths, tokens."""


@dataclass(frozen=True)
class ClassMap:
    """Assigns every request to one of F traffic classes: by its kind, then by its prompt length.

    Classes are numbered kind by kind, and those of a kind from short prompts to long ones.
    """

    edges: tuple[tuple[int, ...], ...] = ((),)
    """rising lengths in tokens that cut the prompts of each kind into bins, see
    ``prompt_edges``."""
    kinds: tuple[str, ...] = ()
    """names of a trace's kinds; empty where requests are classed by their prompts alone, all by the
    same edges."""

    def __post_init__(self) -> None:
        if len(self.edges) != max(len(self.kinds), 1):
            checks.refuse("edges", self.edges, "one row for each kind")
        for edges in self.edges:
            if not all(low < high for low, high in pairwise([0, *edges])):
                checks.refuse("edges", list(edges), "rising lengths above 0")

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def kind(self) -> tuple[int, ...]:
        """Index of each class's kind in ``kinds``; 0 without kinds."""
        return tuple(kind for kind, edges in enumerate(self.edges) for _ in range(len(edges) + 1))

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each class, which no other has."""
        kinds = self.kinds or ("bin",)
        bins = (range(len(edges) + 1) for edges in self.edges)
        return tuple(f"{kind}_{i}" for kind, row in zip(kinds, bins, strict=True) for i in row)

    def of(self, trace: Trace) -> NDArray[np.int32]:
        """int32[n], the class of each request.

        Raises:
          InputError: the trace does not have the kinds of this map.
        """
        if self.kinds and self.kinds != trace.kinds:
            checks.refuse("the trace's kinds", trace.kinds, f"those of its classes, {self.kinds}")
        index = np.zeros(len(trace), np.int32)
        for kind, edges in enumerate(self.edges):
            members = trace.kind == kind if self.kinds else slice(None)
            bins = np.searchsorted(np.asarray(edges, np.int64), trace.prompt_tokens[members])
            index[members] = self.kind.index(kind) + bins
        return index


ONE_CLASS = ClassMap()
"""Class map with all requests in one class."""


def class_map(trace: Trace, count: int) -> ClassMap:
    """Cuts a trace into at most ``count`` classes that matter about alike, see ``prompt_edges``.

    Each kind has a class at least. Further ones go one by one to the kind whose classes weigh most,
    of the kinds whose prompts differ in more lengths than they have classes.

    Raises:
      InputError: the trace has more kinds than that.
    """
    if trace.kind is None:
        return ClassMap((prompt_edges(trace.prompt_tokens, count),))
    if len(trace.kinds) > count:
        raise InputError(
            f"the trace has {len(trace.kinds)} kinds of requests, {', '.join(trace.kinds):.200}; "
            f"at most {count} can be told apart, so give some of them one name"
        )
    prompts = [trace.prompt_tokens[trace.kind == kind] for kind in range(len(trace.kinds))]
    lengths_of = [len(np.unique(prompt)) for prompt in prompts]
    tokens = trace.prompt_tokens.sum(dtype=np.int64)
    weights = [len(prompt) / len(trace) + prompt.sum(dtype=np.int64) / tokens for prompt in prompts]
    edges: list[tuple[int, ...]] = [()] * len(prompts)
    bins = [1] * len(prompts)
    while sum(bins) < count:
        divisible = [kind for kind, row in enumerate(edges) if len(row) + 1 < lengths_of[kind]]
        if not divisible:
            break
        heaviest = max(divisible, key=lambda kind: weights[kind] / bins[kind])
        bins[heaviest] += 1
        edges[heaviest] = prompt_edges(prompts[heaviest], bins[heaviest])
    return ClassMap(tuple(edges), trace.kinds)


def prompt_edges(prompt_tokens: NDArray[np.int32], bins: int) -> tuple[int, ...]:
    """Lengths that cut prompts into bins of about equal importance.

    A bin weighs half by its share of the requests and half by its share of the prompt tokens, so
    that neither the many short nor the few long prompts end up in one bin.

    Args:
      prompt_tokens: int32[n], at least one.
      bins: as many as are wanted.

    Returns:
      at most bins - 1 increasing lengths in tokens; a bin holds prompts longer than the edge before
      it, up to and including its own. Fewer where prompts of one length outweigh a bin.
    """
    checks.whole("bins", bins, 1)
    prompt = np.sort(prompt_tokens)
    weight = 0.5 * prompt  # in place from here on: a week has tens of millions
    weight /= prompt.sum(dtype=np.int64)
    weight += 0.5 / len(prompt)
    np.cumsum(weight, out=weight)
    cuts = np.searchsorted(weight, np.arange(1, bins) / bins)
    edges = np.unique(prompt[cuts].astype(int))
    return tuple(int(edge) for edge in edges if edge < prompt[-1])


def split_classes(
    trace: Trace, classes: ClassMap, served: NDArray[np.bool_] | None = None
) -> tuple[TraceClass, ...]:
    """The trace's traffic classes, in the order of ``ClassMap.of``.

    Args:
      trace: n requests.
      classes: see ``class_map``.
      served: bool[n], the requests that count, all by default; a class that has none of them has
        the lengths of all of them, and no share.

    Raises:
      InputError: a class has no request.
    """
    index = classes.of(trace)
    counted = np.ones(len(trace), bool) if served is None else served
    found = []
    for place, name in enumerate(classes.names):
        members = index == place
        if not members.any():
            raise InputError(f"edges {classes.edges} leave class {name} without requests")
        share = float(members[counted].mean())
        members = members & counted if share else counted
        found.append(
            TraceClass(
                share=share,
                prompt=lengths.from_samples(trace.prompt_tokens[members]),
                output=lengths.from_samples(trace.output_tokens[members]),
            )
        )
    return tuple(found)


def to_class_counts(
    trace: Trace,
    classes: ClassMap,
    *,
    window_s: float = 1.0,
    ticks: int = 8,
    counted: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Arrivals per tick and class.

    Args:
      trace: n requests.
      classes: F of them, see ``class_map``.
      window_s: length of a control window, seconds.
      ticks: K, ticks in a window.
      counted: bool[n], the requests that count; all by default.

    Returns:
      float32[W, K, F], whole numbers; the last window is filled up with silence.

    Raises:
      InputError: a bad window, kinds that the trace does not have, or more than ``MAX_COUNTS``
        numbers.
    """
    checks.positive("window_s", window_s)
    checks.whole("ticks", ticks, 1)
    count = len(classes)
    # One tick more, so that the last request is inside.
    windows = math.ceil((trace.duration_s + window_s / ticks) / window_s - 1e-9)
    if windows * ticks * count > MAX_COUNTS:
        raise InputError(
            f"{windows:,} windows of {ticks} ticks and {count} classes are more than "
            f"{MAX_COUNTS:,} counts: take a part of the trace (--for)"
        )
    cell = np.floor(trace.arrival_s * (ticks / window_s)).astype(np.int64)
    # An end that rounding puts a hair beyond the last tick.
    np.minimum(cell, windows * ticks - 1, out=cell)
    cell *= count
    cell += classes.of(trace)
    cell = cell if counted is None else cell[counted]
    counts = np.bincount(cell, minlength=windows * ticks * count)
    return counts.reshape(windows, ticks, count).astype(np.float32)
