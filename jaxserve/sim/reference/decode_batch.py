"""The decoding sequences of one engine, as arrays: a step of all of them is a few vector sums."""

from __future__ import annotations

import numpy as np

from jaxserve.fields import MAX_DEPTH
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import SchedulerSettings


class DecodeBatch:
    """Sequences in the order in which they were admitted; row i of every array is sequence i."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.sequences: list[Request] = []
        """the requests of the rows."""
        self.kv_tokens = 0
        """KV tokens of all rows."""
        self._settings = settings
        self._context = np.zeros(64, np.int64)  # KV tokens held
        self._remaining = np.zeros(64, np.int64)  # output tokens to come
        self._blocks = np.zeros(64, np.int64)  # KV blocks held
        self._survival = np.zeros((64, MAX_DEPTH))  # chance that draft position 1..8 is accepted
        self.steps_to_finish = 0
        """lower bound of the steps until the first sequence ends."""

    def __len__(self) -> int:
        return len(self.sequences)

    def join(self, request: Request, blocks: int) -> None:
        """Adds a prefilled sequence that holds ``blocks``."""
        row = len(self)
        if row == len(self._context):
            grow = ((0, row),)
            self._context = np.pad(self._context, grow)
            self._remaining = np.pad(self._remaining, grow)
            self._blocks = np.pad(self._blocks, grow)
            self._survival = np.pad(self._survival, (*grow, (0, 0)))
        # The newest token has been sampled, but its KV is written by its own step.
        context = request.prompt_tokens + request.generated - 1
        remaining = request.output_tokens - request.generated
        self._context[row] = context
        self._remaining[row] = remaining
        self._blocks[row] = blocks
        self._survival[row] = request.draft_survival()
        self.kv_tokens += context
        self.steps_to_finish = min(self.steps_to_finish, remaining) if row else remaining
        self.sequences.append(request)

    def remove(self, request: Request) -> tuple[int, int, int]:
        """Takes a sequence out before its end; its progress is written into ``request``.

        Returns:
          the row that it had, its blocks, and how many of them are full.
        """
        row = self.sequences.index(request)
        request.generated = request.output_tokens - int(self._remaining[row])
        blocks, full = (
            int(self._blocks[row]),
            int(self._context[row]) // self._settings.block_tokens,
        )
        self._drop(np.array([row]))
        return row, blocks, full

    def tokens_of(self, rows: int) -> int:
        """KV tokens of the first ``rows``."""
        if rows == len(self):
            return self.kv_tokens
        return int(self._context[:rows].sum())

    def missing(self, start: int, stop: int, positions: int) -> np.ndarray:
        """Blocks that rows ``start`` to ``stop`` lack for ``positions`` more tokens.

        A sequence keeps blocks for drafts that were rejected.
        """
        needed = self._settings.blocks(self._context[start:stop] + positions)
        return np.maximum(needed - self._blocks[start:stop], 0)

    def grow(self, start: int, blocks: np.ndarray) -> None:
        """Notes ``blocks`` more for the rows from ``start``."""
        self._blocks[start : start + len(blocks)] += blocks

    def advance(
        self, rows: int, depth: int, rng: np.random.Generator
    ) -> tuple[int, list[tuple[Request, int]]]:
        """Advances the first ``rows`` sequences by a step, with ``depth`` draft tokens for each.

        Returns:
          how many tokens they made, and the sequences that are through, which leave the batch,
          with the blocks that they held.
        """
        remaining = self._remaining[:rows]
        if depth == 0:
            self._context[:rows] += 1
            remaining -= 1
            tokens = rows
        else:
            # A position counts if it survives and all before it did: one draw decides how far.
            draws = rng.random((rows, 1))
            steps = 1 + (draws < self._survival[:rows, :depth]).sum(axis=1)
            np.minimum(steps, remaining, out=steps)
            self._context[:rows] += steps
            remaining -= steps
            tokens = int(steps.sum())
        self.kv_tokens += tokens
        self.steps_to_finish -= depth + 1
        through: list[tuple[Request, int]] = []
        if self.steps_to_finish <= 0:
            ended = np.flatnonzero(remaining == 0)
            through = [(self.sequences[row], int(self._blocks[row])) for row in ended]
            if through:
                self._drop(ended)
            self.steps_to_finish = int(self._remaining[: len(self)].min(initial=2**60))
        return tokens, through

    def pass_steps(self, steps: int) -> None:
        """Advances all sequences by ``steps`` without drafts, fewer than ``steps_to_finish``."""
        rows = len(self)
        self._context[:rows] += steps
        self._remaining[:rows] -= steps
        self.kv_tokens += steps * rows
        self.steps_to_finish -= steps

    def record_generated(self) -> None:
        """Writes the progress of all into their requests; ``advance`` does not."""
        for request, remaining in zip(self.sequences, self._remaining.tolist(), strict=False):
            request.generated = request.output_tokens - remaining

    def clear(self) -> list[Request]:
        """Takes every sequence out, its progress written into the request."""
        self.record_generated()
        cleared, self.sequences, self.kv_tokens = self.sequences, [], 0
        return cleared

    def _drop(self, rows: np.ndarray) -> None:
        """Takes rows out, keeping the order of the others."""
        count = len(self)
        self.kv_tokens -= int(self._context[rows].sum())
        kept = np.delete(np.arange(count), rows)
        for array in (self._context, self._remaining, self._blocks, self._survival):
            array[: len(kept)] = array[kept]
        self.sequences = [self.sequences[row] for row in kept]
