"""What the tests of the reference simulator share: timers, traffic, and how windows pass."""

from dataclasses import dataclass, field

import numpy as np

from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs

ACCEPTANCE = 1 + np.concatenate([[0.0], np.cumsum(0.8 ** np.arange(1, 9))])
ROOMY = Knobs(batch_cap=64, kv_capacity_tokens=100_000)


@dataclass
class LinearTimer:
    """Seconds linear in tokens; remembers every iteration it was asked about."""

    base_s: float = 0.010
    token_s: float = 0.00002
    seen: list = field(default_factory=list)

    def iteration_s(self, *, decode_seqs, kv_tokens, chunks=(), speculation_depth=0, tier=0):
        """As a timer of the simulator; each tier is faster than the one before."""
        self.seen.append((decode_seqs, kv_tokens, chunks, speculation_depth, tier))
        tokens = decode_seqs * (speculation_depth + 1) + sum(chunk for chunk, _ in chunks)
        return (self.base_s + self.token_s * tokens) / (1 + tier)


@dataclass
class RowLimit:
    """A device on which an iteration with more rows of logits does not fit."""

    rows: int
    device_bytes: float = 1.0

    def used_bytes(self, *, tokens, logits_rows, speculation_depth, tier):
        """As a memory model of the simulator."""
        return 0.9 if logits_rows <= self.rows else 1.1


def poisson(rate_rps, seconds, seed=0, prompt=(20, 400), output=(1, 80)):
    """Requests with Poisson arrivals and uniform lengths."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_rps, int(2 * rate_rps * seconds)))
    return [
        Request(
            i,
            float(t),
            int(rng.integers(*prompt)),
            int(rng.integers(*output)),
            priority=int(rng.integers(0, 3)),
            acceptance=ACCEPTANCE,
        )
        for i, t in enumerate(times[times < seconds])
    ]


def windows(simulator, knobs, count, seconds=1.0):
    """Statistics of the next windows under constant knobs."""
    start = simulator.now_s
    return [simulator.advance(start + (i + 1) * seconds, knobs) for i in range(count)]
