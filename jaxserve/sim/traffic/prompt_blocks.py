"""Names of the blocks that prompts consist of: which prompts begin with the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError


@dataclass(frozen=True, eq=False)
class PromptBlocks:
    """The blocks of n prompts; a prompt's last block may be shorter than the others."""

    tokens: int
    """tokens of a block."""
    names: NDArray[np.int64]
    """int64[m], names from 0 on, prompt after prompt. Two blocks have the same name only if all
    tokens up to their end are the same."""
    starts: NDArray[np.int64]
    """int64[n + 1], where each prompt's names begin, and where the last one's end."""

    def __post_init__(self) -> None:
        if self.tokens < 1 or len(self.starts) < 2 or self.starts[-1] != len(self.names):
            raise InputError("prompt blocks need at least one token each, and names for all starts")

    def of(self, prompt: int) -> NDArray[np.int64]:
        """Names of the blocks of one prompt."""
        return self.names[self.starts[prompt] : self.starts[prompt + 1]]

    def chosen(self, prompts: NDArray[np.bool_] | slice) -> PromptBlocks:
        """Some of the prompts.

        Args:
          prompts: bool[n], true for these prompts, or their slice.
        """
        if isinstance(prompts, slice):
            begin, end, _ = prompts.indices(len(self.starts) - 1)
            starts = self.starts[begin : end + 1]
            return PromptBlocks(self.tokens, self.names[starts[0] : starts[-1]], starts - starts[0])
        counts = np.diff(self.starts)
        return PromptBlocks(
            self.tokens,
            self.names[np.repeat(prompts, counts)],
            np.concatenate([[0], np.cumsum(counts[prompts])]),
        )

    def block_tokens(self, prompt_tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """int64[m], tokens of each block in prompts of these lengths."""
        counts = np.diff(self.starts)
        place = np.arange(len(self.names)) - np.repeat(self.starts[:-1], counts)
        left = np.repeat(prompt_tokens.astype(np.int64), counts) - place * self.tokens
        return np.clip(left, 0, self.tokens)

    def repeated_share(self, prompt_tokens: NDArray[np.int32]) -> float:
        """Share of all prompt tokens in blocks that earlier prompts had: a prefix cache without
        limit would spare these."""
        tokens = self.block_tokens(prompt_tokens)
        first = np.unique(self.names, return_index=True)[1]
        return float((tokens.sum() - tokens[first].sum()) / prompt_tokens.sum(dtype=np.int64))


def from_ids(
    ids: Sequence[Sequence[Any]], prompt_tokens: NDArray[np.integer], usual_tokens: int
) -> PromptBlocks | None:
    """Blocks by the ids that a trace gives them.

    Args:
      ids: of each prompt's blocks, in order; anything with a text. An id need not stand for what is
        before its block: ids are chained here, as an engine chains its hashes.
      prompt_tokens: int[n], lengths of the prompts.
      usual_tokens: of a block in such a trace; another power of two is taken where it explains
        more of the counts of ids.

    Returns:
      the blocks; None if no prompt has ids.
    """
    counts = np.array([len(row) for row in ids])
    if not counts.any():
        return None
    tokens = told_block_tokens(counts, prompt_tokens, usual_tokens)
    chained: dict[tuple[int, str], int] = {}
    names: list[int] = []
    kept = np.minimum(counts, -(-prompt_tokens // tokens))
    for row, count in zip(ids, kept.tolist(), strict=True):
        name = -1
        for id in row[:count]:
            name = chained.setdefault((name, str(id)), len(chained))
            names.append(name)
    return PromptBlocks(
        tokens, np.array(names, np.int64), np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    )


def told_block_tokens(
    counts: NDArray[np.integer], prompt_tokens: NDArray[np.integer], usual: int
) -> int:
    """Tokens of a block: the power of two with which most prompts have as many ids as blocks, full
    ones or all.

    Args:
      counts: int[n], ids of each prompt, some above 0.
      prompt_tokens: int[n], lengths of the prompts.
      usual: the size that is taken where others explain no more prompts.
    """
    told = counts > 0
    counts, prompt_tokens = counts[told], prompt_tokens[told]

    def explained(size: int) -> int:
        full = prompt_tokens // size
        return int(((counts == full) | (counts == -(-prompt_tokens // size))).sum())

    return max((usual, *(2**power for power in range(4, 13))), key=explained)
