"""The latest steps of the engine, each with its load and its time."""

from __future__ import annotations

from collections import deque
from typing import Any

from jaxserve.sim.machine.cost_model import CostModel

KEPT_STEPS = 8192
COLUMNS = (
    "step",
    "seconds",
    "decode_seqs",
    "decode_tokens",
    "kv_tokens",
    "chunks",
    "prompt_tokens",
    "pairs",
    "depth",
    "running",
    "waiting",
)


class StepTrace:
    """Times the engine's iterations by a cost model, and remembers what it was asked."""

    def __init__(self, cost: CostModel) -> None:
        """Args: seconds of an iteration."""
        self._cost = cost
        self._load: tuple[float, ...] = ()
        self._rows: deque[tuple[float, ...]] = deque(maxlen=KEPT_STEPS)
        self.steps = 0
        """that have ended since the start."""
        self.tokens = 0
        """in the latest of them."""

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; see ``CostModel.iteration_s``."""
        seconds = self._cost.iteration_s(
            decode_seqs=decode_seqs,
            kv_tokens=kv_tokens,
            chunks=chunks,
            speculation_depth=speculation_depth,
            tier=tier,
        )
        decode_tokens = decode_seqs * (speculation_depth + 1)
        prompt_tokens = sum(chunk for chunk, _ in chunks)
        pairs = sum(chunk * (prefix + 0.5 * chunk) for chunk, prefix in chunks)
        load = (decode_seqs, decode_tokens, kv_tokens, len(chunks), prompt_tokens, pairs)
        self._load = (seconds, *load, speculation_depth)
        self.tokens = decode_tokens + prompt_tokens
        return seconds

    def ended(self, running: int, waiting: int) -> None:
        """The iteration that was asked about last has ended.

        Args:
          running: sequences that ran in it.
          waiting: sequences that waited when it began.
        """
        self.steps += 1
        self._rows.append((self.steps, *self._load, running, waiting))

    def after(self, step: int) -> dict[str, Any]:
        """Rows of the steps after number ``step``."""
        return {"columns": COLUMNS, "rows": [row for row in self._rows if row[0] > step]}
