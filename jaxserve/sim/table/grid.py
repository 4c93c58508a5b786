"""Grid of a latency table: its axes, and the places of a file's rows on them."""

import numpy as np
from numpy.typing import NDArray

from jaxserve.fields import MAX_BATCH, MAX_CONTEXT_TOKENS, MAX_DEPTH, Tier

BATCH_SIZES = (1, 4, 8, 16, 32, 64, 128, 256, MAX_BATCH)
KV_BUDGETS = (0.1, 0.25, 0.5, 0.75, 1.0)
SPEC_LENGTHS = (0, 1, 2, 4, MAX_DEPTH)
QUANT_TIERS = tuple(map(int, Tier))
PROMPT_LENGTHS = tuple(2**exponent for exponent in range(6, MAX_CONTEXT_TOKENS.bit_length()))
"""Tokens, 64 to 131,072; ``prompt_len_bucket`` counts them from 0."""
LEAST_BUCKETS = 8
"""Number of lengths in every file, up to 8,192 tokens. Longer lengths that a file lacks follow its
cost model."""


def grid_axes(buckets: int) -> dict[str, tuple[float, ...]]:
    """Columns that name a cell, slowest first, with the values each must take.

    Args:
      buckets: lengths that the file has, the shortest of ``PROMPT_LENGTHS``.
    """
    return {
        "batch_size": BATCH_SIZES,
        "kv_budget": KV_BUDGETS,
        "spec_length": SPEC_LENGTHS,
        "quant_tier": QUANT_TIERS,
        "prompt_len_bucket": tuple(range(buckets)),
    }


AXES = tuple(grid_axes(0))
"""Names of the axes, slowest first."""


def grid_shape(buckets: int) -> tuple[int, ...]:
    """Shape of a column's array."""
    return tuple(map(len, grid_axes(buckets).values()))


def grid_rows(buckets: int) -> int:
    """Rows of a file with so many buckets of length."""
    return int(np.prod(grid_shape(buckets)))


def axis_columns(buckets: int) -> dict[str, NDArray[np.float64]]:
    """float64[``grid_rows``] per axis: the cells of the whole grid in order, last axis fastest."""
    axes = grid_axes(buckets)
    mesh = np.meshgrid(*(np.asarray(values, float) for values in axes.values()), indexing="ij")
    return {name: values.ravel() for name, values in zip(axes, mesh, strict=True)}
