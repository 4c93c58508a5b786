"""The latest steps of an engine, each with its load and its time, for calibration."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple


class StepLoad(NamedTuple):
    """Load of one engine step."""

    decode_seqs: int
    """decoding sequences."""
    decode_tokens: int
    """tokens of the decoding sequences, drafts to verify included."""
    kv_tokens: float
    """KV tokens that the decoding sequences read, the first token of this step included."""
    chunks: int
    """prompts, or pieces of prompts."""
    prompt_tokens: int
    """tokens of the chunks."""
    pairs: float
    """pairs of query and key in the chunks' attention: the sum of n (prefix + n / 2)."""
    depth: int
    """drafted tokens for each sequence."""


KEPT_STEPS = 8192
COLUMNS = ("step", "seconds", *StepLoad._fields, "running", "waiting")


class StepLog:
    """Rows of ``COLUMNS`` for the latest steps."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        """Args: number of steps to keep."""
        self._rows: deque[tuple[float, ...]] = deque(maxlen=kept)
        self.steps = 0
        """steps since the start."""

    def add(self, seconds: float, load: StepLoad, running: int, waiting: int) -> None:
        """Adds the next step.

        Args:
          seconds: duration of the step.
          load: load of the step.
          running: sequences that ran in the step.
          waiting: sequences that waited when the step began.
        """
        self.steps += 1
        self._rows.append((self.steps, seconds, *load, running, waiting))

    def after(self, step: int) -> dict[str, Any]:
        """The kept rows after step number ``step``, as JSON; 0 gives all."""
        return {"columns": COLUMNS, "rows": [row for row in self._rows if row[0] > step]}
