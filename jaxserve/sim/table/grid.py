"""The grid of a latency table: its axes, and where a row of the file lies on them."""

import numpy as np
from numpy.typing import NDArray

from jaxserve.sim.machine.acceptance import MAX_DEPTH
from jaxserve.types import Tier

BATCH_SIZES = (1, 4, 8, 16, 32, 64, 128, 256, 512)
KV_BUDGETS = (0.1, 0.25, 0.5, 0.75, 1.0)
SPEC_LENGTHS = (0, 1, 2, 4, MAX_DEPTH)
QUANT_TIERS = tuple(map(int, Tier))
PROMPT_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens; ``prompt_len_bucket`` counts them from 0."""

AXES: dict[str, tuple[float, ...]] = {
    "batch_size": BATCH_SIZES,
    "kv_budget": KV_BUDGETS,
    "spec_length": SPEC_LENGTHS,
    "quant_tier": QUANT_TIERS,
    "prompt_len_bucket": tuple(range(len(PROMPT_LENGTHS))),
}
"""Columns that name a cell, slowest first, with the values each must take."""

GRID_SHAPE = tuple(len(values) for values in AXES.values())
GRID_ROWS = int(np.prod(GRID_SHAPE))


def axis_columns() -> dict[str, NDArray[np.float64]]:
    """float64[GRID_ROWS] per axis: the cells of the whole grid in order, last axis fastest."""
    mesh = np.meshgrid(*(np.asarray(values, float) for values in AXES.values()), indexing="ij")
    return {name: values.ravel() for name, values in zip(AXES, mesh, strict=True)}
