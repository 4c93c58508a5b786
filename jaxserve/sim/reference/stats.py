"""What the reference simulator counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jaxserve.sim.reference.request import Request


@dataclass
class Work:
    """Work done at one quantisation tier; what energy is computed from.

    Attributes:
      iterations: engine iterations, each a pass over the weights.
      tokens: tokens through the linear layers, rejected drafts included.
      kv_tokens: KV tokens that decoding read.
    """

    iterations: int = 0
    tokens: int = 0
    kv_tokens: int = 0


@dataclass
class Tally:
    """What engines did since the tally was made; one tally is shared by all of a deployment."""

    first_tokens: list[Request] = field(default_factory=list)
    completed: list[Request] = field(default_factory=list)
    rejected: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    preemptions: int = 0
    tokens: int = 0
    drafted: int = 0
    draft_accepted: int = 0
    decode_s: float = 0.0
    decode_steps: int = 0
    peak_memory_bytes: float = 0.0
    work: tuple[Work, Work, Work] = field(default_factory=lambda: (Work(), Work(), Work()))


@dataclass(frozen=True)
class WindowStats:
    """What happened between two control points.

    Attributes:
      end_s: end of the window, seconds since the start.
      arrivals, rejected, completed, lost, preemptions: events in the window, requests.
      running, waiting: at the end, requests; a request in a KV transfer is running.
      first_tokens, completions: `LOG_DTYPE` rows of requests with that event in the window.
      tokens: output tokens produced.
      itl_s: mean time between a sequence's decode steps; NaN when nothing decoded.
      drafted, draft_accepted: speculated tokens, and those that were kept.
      kv_occupancy: share of the KV blocks of the serving GPUs in use at the end.
      peak_memory_bytes: highest of any GPU; 0 without a memory meter.
      capacity: share of the GPUs that served, averaged over the window.
      work: of iterations that started in the window, by tier, for energy.
    """

    end_s: float
    arrivals: int
    rejected: int
    completed: int
    lost: int
    preemptions: int
    running: int
    waiting: int
    first_tokens: np.ndarray
    completions: np.ndarray
    tokens: int
    itl_s: float
    drafted: int
    draft_accepted: int
    kv_occupancy: float
    peak_memory_bytes: float
    capacity: float
    work: tuple[Work, Work, Work]

    @property
    def ttft_s(self) -> np.ndarray:
        """Times to first token, front end included, of first tokens in the window."""
        return self.first_tokens["ttft_s"]

    @property
    def tpot_s(self) -> np.ndarray:
        """Times per output token of requests that completed in the window."""
        return self.completions["tpot_s"]
