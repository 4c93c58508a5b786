"""The load-test columns of a latency table, interpolated over all five axes.

What an operator knows of an engine before it is in use: TTFT, TPOT, throughput, memory and price of
a closed loop at each setting. The simulator's dynamics do not use them; `jaxserve.sim.table` holds
the times that those do.
"""

from __future__ import annotations

import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.table_file import LOAD_TEST_COLUMNS, TableFile
from jaxserve.sim.table_grid import (
    BATCH_SIZES,
    GRID_SHAPE,
    KV_BUDGETS,
    PROMPT_LENGTHS,
    QUANT_TIERS,
    SPEC_LENGTHS,
)

_STRIDES = np.cumprod((1, *GRID_SHAPE[:0:-1]))[::-1].tolist()


@flax.struct.dataclass
class LoadTest:
    """Load-test columns of one model on one GPU."""

    rows: jax.Array
    """float32[5400, 6]: the cells of the grid in order, `LOAD_TEST_COLUMNS` in each."""


def load_test(file: TableFile) -> LoadTest:
    """The load-test columns of a table file."""
    columns = [file.columns[name].ravel() for name in LOAD_TEST_COLUMNS]
    return LoadTest(rows=jnp.asarray(np.stack(columns, axis=1), jnp.float32))


def lookup(
    load_test: LoadTest,
    batch_size: jax.Array,
    kv_budget: jax.Array,
    spec_length: jax.Array,
    quant_tier: jax.Array,
    prompt_tokens: jax.Array,
) -> jax.Array:
    """float32[6], `LOAD_TEST_COLUMNS` at one setting (scalars).

    Multilinear in log2(batch), KV budget, depth and log2(prompt), clamped at the edges; tiers are
    not interpolated. Sixteen rows of six values that lie together are read.
    """
    tier = jnp.clip(jnp.asarray(quant_tier, jnp.int32), 0, len(QUANT_TIERS) - 1)
    axes = (
        _cell(jnp.log2(jnp.maximum(batch_size, BATCH_SIZES[0])), np.log2(BATCH_SIZES)),
        _cell(kv_budget, KV_BUDGETS),
        _cell(spec_length, SPEC_LENGTHS),
        _cell(jnp.log2(jnp.maximum(prompt_tokens, PROMPT_LENGTHS[0])), np.log2(PROMPT_LENGTHS)),
    )
    batch_stride, kv_stride, spec_stride, tier_stride, prompt_stride = _STRIDES
    strides = (batch_stride, kv_stride, spec_stride, prompt_stride)
    first = tier_stride * tier + sum(
        stride * index for stride, (index, _) in zip(strides, axes, strict=True)
    )
    total = jnp.zeros(len(LOAD_TEST_COLUMNS), jnp.float32)
    for corner in itertools.product((0, 1), repeat=len(axes)):
        step = sum(stride * upper for stride, upper in zip(strides, corner, strict=True))
        row = load_test.rows.at[first + step].get(mode="promise_in_bounds")
        weight = 1.0
        for (_, place), upper in zip(axes, corner, strict=True):
            weight = weight * (place if upper else 1.0 - place)
        total = total + weight * row
    return total


def _cell(value: jax.Array, knots: object) -> tuple[jax.Array, jax.Array]:
    """Index of the cell that holds `value` (int32) and the place in it (0..1)."""
    edges = jnp.asarray(np.asarray(knots, np.float32))
    index = jnp.sum(jnp.asarray(value) >= edges[1:-1], dtype=jnp.int32)
    low, high = edges[index], edges[index + 1]
    return index, jnp.clip((value - low) / (high - low), 0.0, 1.0)
