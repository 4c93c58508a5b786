"""Counters and statistics of the reference simulator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from jaxserve.sim.reference.request import Request


@dataclass
class Work:
    """Work done at one quantisation tier, from which energy is computed."""

    iterations: int = 0
    """engine iterations, each a pass over the weights."""
    tokens: int = 0
    """tokens through the linear layers, rejected drafts included."""
    kv_tokens: int = 0
    """KV tokens that decoding read."""


@dataclass
class Counters:
    """Counts since these counters were made; all engines of a deployment share them."""

    first_tokens: list[Request] = field(default_factory=list)
    completed: list[Request] = field(default_factory=list)
    rejected: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    oom_restarts: int = 0
    preemptions: int = 0
    tokens: int = 0
    drafted: int = 0
    draft_accepted: int = 0
    decodes: list[tuple[float, int]] = field(default_factory=list)
    """seconds of each iteration that decoded, and how many sequences it advanced."""
    peak_memory_bytes: float = 0.0
    work: tuple[Work, Work, Work] = field(default_factory=lambda: (Work(), Work(), Work()))

    @property
    def ended(self) -> int:
        """Requests that completed, were rejected or lost."""
        return len(self.completed) + len(self.rejected) + len(self.lost)

    def itl_s(self) -> tuple[float, float, float]:
        """Mean, median and 99th percentile of the time between a sequence's decode steps, NaN when
        nothing decoded.

        Each step of each sequence counts once.
        """
        if not self.decodes:
            return math.nan, math.nan, math.nan
        mean_s = sum(n * s for s, n in self.decodes) / sum(n for _, n in self.decodes)
        seconds, sequences = np.array(self.decodes).T
        median_s, p99_s = np.quantile(
            seconds, (0.5, 0.99), weights=sequences, method="inverted_cdf"
        )
        return mean_s, float(median_s), float(p99_s)


@dataclass(frozen=True)
class WindowStats:
    """Statistics between two control points."""

    end_s: float
    """end of the window, seconds since the start."""
    arrivals: int
    """requests that arrived in the window."""
    rejected: int
    """requests turned away in the window."""
    completed: int
    """requests that finished in the window."""
    lost: int
    """requests lost in the window: out of memory, or a context longer than the KV pool."""
    oom_restarts: int
    """GPUs that ran out of memory in the window."""
    preemptions: int
    """sequences preempted in the window."""
    running: int
    """requests running at the end, those in a KV transfer included."""
    waiting: int
    """requests waiting at the end."""
    first_tokens: np.ndarray
    """``LOG_DTYPE`` rows of requests whose first token came in the window."""
    completions: np.ndarray
    """``LOG_DTYPE`` rows of requests that finished in the window."""
    tokens: int
    """output tokens produced."""
    itl_s: float
    """mean time between a sequence's decode steps; NaN when nothing decoded."""
    p50_itl_s: float
    """median of the same; NaN when nothing decoded."""
    p99_itl_s: float
    """99th percentile of the same; NaN when nothing decoded."""
    drafted: int
    """tokens drafted."""
    draft_accepted: int
    """drafted tokens that were kept."""
    kv_occupancy: float
    """share of the KV blocks of the serving GPUs in use at the end."""
    peak_memory_bytes: float
    """highest of any GPU; 0 without a memory meter."""
    capacity: float
    """share of the GPUs that served, averaged over the window."""
    tier: int
    """quantisation tier that most GPUs had for most of the window."""
    prefill_gpus: int
    """GPUs that only prefilled, for most of the window."""
    work: tuple[Work, Work, Work]
    """work of iterations that started in the window, by tier, for energy."""
    serving: float
    """replicas that served, averaged over the window; a restart is not counted."""
    rented_s: float
    """seconds of replicas that were paid for, starting and draining ones included."""

    @property
    def ttft_s(self) -> np.ndarray:
        """Times to first token, front end included, of first tokens in the window."""
        return self.first_tokens["ttft_s"]

    @property
    def tpot_s(self) -> np.ndarray:
        """Times per output token of requests that completed in the window."""
        return self.completions["tpot_s"]
