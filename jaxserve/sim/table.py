"""Iteration times by interpolation: the fast simulator's view of a latency table.

Times are interpolated as log(seconds), multilinear in log2(batch) and log2(length): exact at grid
points, monotone where the data is, clamped at the edges. A cost that is constant in one range and
proportional in the next is close to straight there; interpolating seconds would err up to 6 %
between powers of two.

Speculation depth and tier hold for a whole control window, so `contract` copies their row once and
a tick gathers only the four corners of a (batch, length) cell from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.table_file import TableFile, read_table_file
from jaxserve.sim.table_grid import (
    BATCH_SIZES,
    MAX_DEPTH,
    PROMPT_LENGTHS,
    QUANT_TIERS,
    SPEC_LENGTHS,
)

_BATCHES, _LENGTHS = len(BATCH_SIZES), len(PROMPT_LENGTHS)
_CELLS = _BATCHES * _LENGTHS
_ADDED, _ALONE, _ROW = _CELLS, 2 * _CELLS, 2 * _CELLS + _LENGTHS


@flax.struct.dataclass
class LatencyTable:
    """Times of one model on one GPU. The leaf may be stacked to batch hardware under `jax.vmap`."""

    log_s: jax.Array
    """float32[9, 3, 152]: depth 0..8, tier, then log(seconds) of 9 x 8 decode iterations [batch,
    mean context], of 9 x 8 added prefills per prompt token [batch, prompt] and of 8 lone prefills
    per prompt token [prompt]."""


@flax.struct.dataclass
class WindowTable:
    """The rows of a `LatencyTable` at one depth and tier.

    With trailing batch axes the functions below still work; `row_contiguous` then makes them fast.
    """

    log_s: jax.Array
    """float32[152], one row of `LatencyTable.log_s`; after `row_contiguous` many, end to end."""
    offset: jax.Array
    """int32, where this window's row starts in ``log_s``."""

    @property
    def added_log(self) -> jax.Array:
        """float32[9, 8], log seconds per prompt token that a prefill adds to a decode batch."""
        return self.log_s[_ADDED:_ALONE].reshape(_BATCHES, _LENGTHS)


def load_table(name_or_path: str | Path) -> LatencyTable:
    """A packaged table by its name (model__hardware), or a table file by its path.

    Raises:
      InputError: see `jaxserve.sim.table_file.read_table_file`.
    """
    return latency_table(read_table_file(name_or_path))


def latency_table(file: TableFile) -> LatencyTable:
    """The dynamics' part of a table file, with rows for every depth 0..8.

    Between the depths of the grid the table follows its own cost model: what is interpolated is
    the ratio of table to model, so that the kink where a verify step leaves the memory-bound range
    is where the model has it and not smeared over the gap.
    """
    depths = np.arange(MAX_DEPTH + 1)
    model = _model_log_s(file, depths)
    ratio = _grid_log_s(file) - model[list(SPEC_LENGTHS)]
    correction = np.empty_like(model)
    for index in np.ndindex(model.shape[1:]):
        correction[:, *index] = np.interp(depths, SPEC_LENGTHS, ratio[:, *index])
    return LatencyTable(log_s=jnp.asarray(model + correction, jnp.float32))


def contract(table: LatencyTable, depth: jax.Array, tier: jax.Array) -> WindowTable:
    """The table at one speculation depth and tier (scalars, whole numbers; clamped)."""
    depth = jnp.clip(jnp.asarray(depth, jnp.int32), 0, MAX_DEPTH)
    tier = jnp.clip(jnp.asarray(tier, jnp.int32), 0, len(QUANT_TIERS) - 1)
    row = table.log_s.at[depth, tier].get(mode="promise_in_bounds")
    return WindowTable(log_s=row, offset=jnp.int32(0))


def row_contiguous(table: WindowTable) -> WindowTable:
    """The same table with its trailing batch axis, if it has one, laid out row after row.

    A lookup touches one or two cache lines of its own row instead of four of a transposed array:
    3 ns instead of 13 on CPU at batch 4096. Where the axis was moved last in the same program, XLA
    cancels the two moves.
    """
    if table.log_s.ndim == 1:
        return table
    starts = _ROW * jnp.arange(table.log_s.shape[-1], dtype=jnp.int32)
    return WindowTable(
        log_s=jnp.moveaxis(table.log_s, -1, 0).reshape(-1), offset=table.offset + starts
    )


def itl_s(table: WindowTable, batch: jax.Array, context: jax.Array) -> jax.Array:
    """Seconds of a decode iteration of `batch` sequences with mean `context` KV tokens each."""
    return _interpolate(table, 0, batch, context)


def prefill_added_s_per_token(
    table: WindowTable, batch: jax.Array, chunk_tokens: jax.Array
) -> jax.Array:
    """Seconds per prompt token that prefilling `chunk_tokens` adds to a decode batch."""
    return _interpolate(table, _ADDED, batch, chunk_tokens)


def prefill_s_per_token(table: WindowTable, chunk_tokens: jax.Array) -> jax.Array:
    """Seconds per prompt token of prefilling `chunk_tokens` on an idle engine."""
    table = row_contiguous(table)
    column, along = _cell(_length_position(chunk_tokens), _LENGTHS)
    at = _corners(table, _ALONE + column)
    return jnp.exp(_lerp(at(0), at(1), along))


def batch_weights(batch: jax.Array) -> jax.Array:
    """float32[9, ...]: weight of each batch size of the grid at `batch` (any shape)."""
    return jnp.stack(_hat_weights(_batch_position(batch), _BATCHES))


def length_rows(log_s: jax.Array, tokens: jax.Array) -> jax.Array:
    """float32[9, F]: a [9, 8] array such as `WindowTable.added_log` at the lengths `tokens`, [F]."""
    weights = _hat_weights(_length_position(tokens), _LENGTHS)
    # Unrolled, because XLA's CPU reductions over a short axis do not vectorise.
    return functools.reduce(
        jnp.add, [log_s[:, column, None] * weight for column, weight in enumerate(weights)]
    )


def _interpolate(
    table: WindowTable, start: int, batch: jax.Array, tokens: jax.Array
) -> jax.Array:
    """exp of the [9, 8] part that begins at `start` in each row, bilinear at `batch`, `tokens`."""
    table = row_contiguous(table)
    row, down = _cell(_batch_position(batch), _BATCHES)
    column, across = _cell(_length_position(tokens), _LENGTHS)
    at = _corners(table, start + row * _LENGTHS + column)
    low = _lerp(at(0), at(1), across)
    high = _lerp(at(_LENGTHS), at(_LENGTHS + 1), across)
    return jnp.exp(_lerp(low, high, down))


def _corners(table: WindowTable, index: jax.Array) -> Callable[[int], jax.Array]:
    """Reads the table at `index` plus a step."""
    first = table.offset + index
    return lambda step: table.log_s.at[first + step].get(mode="promise_in_bounds")


def _lerp(low: jax.Array, high: jax.Array, along: jax.Array) -> jax.Array:
    """Linear interpolation that is exact at both ends."""
    return (1.0 - along) * low + along * high


def _batch_position(batch: jax.Array) -> jax.Array:
    """Place on the batch axis, 0..8: its knots are powers of two but for the gap from 1 to 4."""
    octave = jnp.log2(jnp.clip(batch, BATCH_SIZES[0], BATCH_SIZES[-1]))
    return jnp.maximum(0.5 * octave, octave - 1.0)


def _length_position(tokens: jax.Array) -> jax.Array:
    """Place on the length axis, 0..7: its knots are powers of two."""
    octave = jnp.log2(jnp.clip(tokens, PROMPT_LENGTHS[0], PROMPT_LENGTHS[-1]))
    return octave - np.log2(PROMPT_LENGTHS[0])


def _cell(position: jax.Array, knots: int) -> tuple[jax.Array, jax.Array]:
    """Index of the cell (int32, at most knots - 2) and the place inside it, 0..1."""
    index = jnp.clip(position.astype(jnp.int32), 0, knots - 2)
    return index, position - index


def _hat_weights(position: jax.Array, knots: int) -> list[jax.Array]:
    """Weights of linear interpolation on knots 0, 1, ...; at most two are above zero."""
    return [jnp.maximum(1.0 - jnp.abs(position - knot), 0.0) for knot in range(knots)]


def _grid_log_s(file: TableFile) -> np.ndarray:
    """float64[5, 3, 152]: the grid of the file as rows of `LatencyTable.log_s`."""
    # [batch, kv, spec, tier, prompt]; no time depends on the KV budget.
    itl_s, added_s, alone_s = (
        np.moveaxis(file.columns[name][:, 0] / 1e3, 0, 2)
        for name in ("itl_ms", "prefill_added_ms", "prefill_ms")
    )
    return _rows(itl_s, added_s, alone_s[:, :, 0])


def _model_log_s(file: TableFile, depths: np.ndarray) -> np.ndarray:
    """float64[len(depths), 3, 152]: the same from the cost model of the file."""
    cost, budget = file.metadata.cost_model, file.metadata.chunk_budget
    prompts = np.asarray(PROMPT_LENGTHS, float)
    batches, column = np.asarray(BATCH_SIZES, float)[:, None], depths[:, None, None]
    itl_s, added_s, alone_s = (
        np.stack([times(tier) for tier in QUANT_TIERS], axis=1)
        for times in (
            lambda tier: cost.decode_s(batches, prompts, column, tier),
            lambda tier: cost.prefill_added_s(batches, prompts, column, tier, budget),
            lambda tier: cost.prefill_alone_s(prompts, tier, budget, depths[:, None]),
        )
    )
    return _rows(itl_s, added_s, alone_s)


def _rows(itl_s: np.ndarray, added_s: np.ndarray, alone_s: np.ndarray) -> np.ndarray:
    """Times [D, 3, 9, 8], [D, 3, 9, 8] and [D, 3, 8], the last two of whole prompts, as rows."""
    prompts = np.asarray(PROMPT_LENGTHS, float)
    parts: Sequence[np.ndarray] = (itl_s, added_s / prompts, alone_s / prompts)
    flat = [part.reshape(*alone_s.shape[:2], -1) for part in parts]
    return np.log(np.concatenate(flat, axis=2))
