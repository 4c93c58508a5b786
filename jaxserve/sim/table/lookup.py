"""Iteration times by interpolation: the fast simulator's view of a latency table.

Seconds are interpolated bilinearly in batch and length inside each cell of the grid: exact at grid
points, monotone where the data is, clamped at the edges. A decode iteration is a constant, plus a
part per sequence, plus a part per KV token (batch times context), which is what such a cell holds:
against the cost model it errs 0.1 % on average where interpolation in log2(batch), log2(length) and
log(seconds) errs 1.1 %, always upwards. The knots stay powers of two, so that the exponent of a
float is its cell and neither a logarithm nor a search is needed.

Speculation depth and tier hold for a whole control window, so ``contract`` finds their row once and
a tick gathers only the four corners of a (batch, length) cell from it: 2 ns a query on CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.shared_rows import SharedRows
from jaxserve.sim.machine.acceptance import MAX_DEPTH
from jaxserve.sim.table.file import TableFile
from jaxserve.sim.table.grid import (
    BATCH_SIZES,
    PROMPT_LENGTHS,
    QUANT_TIERS,
    SPEC_LENGTHS,
)

_BATCHES, _LENGTHS = len(BATCH_SIZES), len(PROMPT_LENGTHS)
_CELLS = _BATCHES * _LENGTHS
_ADDED, _ALONE, _ROW = _CELLS, 2 * _CELLS, 2 * _CELLS + _LENGTHS
_FIRST_EXPONENT = 6  # of the shortest length, 64


@flax.struct.dataclass
class LatencyTable:
    """Times of one model on one GPU. The leaf may be stacked to batch hardware under
    ``jax.vmap``."""

    seconds: jax.Array
    """float32[4104]: a row of 152 for each of 9 depths (0..8) x 3 tiers. A row has the seconds of 9
    x 8 decode iterations [batch, mean context], of 9 x 8 prefills beside a batch [batch, prompt]
    and of 8 prefills alone [prompt]."""


WindowTable = SharedRows
"""A ``LatencyTable`` at one depth and tier: the same numbers, and where that row starts."""


def latency_table(file: TableFile, token_budget: int | None = None) -> LatencyTable:
    """The dynamics' part of a table file, with rows for every depth 0..8.

    Between the depths of the grid, and at another token budget, the table follows its own cost
    model: what is interpolated is the ratio of table to model, so that a kink (where a verify step
    leaves the memory-bound range, or a draft needs more passes) is where the model has it and not
    smeared over the gap.

    Args:
      token_budget: tokens of an iteration, by which prompts are cut; None for the file's own.
    """
    own_budget = file.metadata.token_budget
    depths = np.arange(MAX_DEPTH + 1)
    ratio = _grid_seconds(file) / _model_seconds(file, depths, own_budget)[list(SPEC_LENGTHS)]
    model_s = _model_seconds(file, depths, token_budget or own_budget)
    correction = np.empty_like(model_s)
    for index in np.ndindex(model_s.shape[1:]):
        correction[:, *index] = np.interp(depths, SPEC_LENGTHS, ratio[:, *index])
    return LatencyTable(seconds=jnp.asarray((model_s * correction).ravel(), jnp.float32))


def contract(table: LatencyTable, depth: jax.Array, tier: jax.Array) -> WindowTable:
    """The table at one speculation depth and tier (whole numbers of one shape; clamped)."""
    depth = jnp.clip(jnp.asarray(depth, jnp.int32), 0, MAX_DEPTH)
    tier = jnp.clip(jnp.asarray(tier, jnp.int32), 0, len(QUANT_TIERS) - 1)
    return SharedRows(values=table.seconds, offset=_ROW * (depth * len(QUANT_TIERS) + tier))


def itl_s(table: WindowTable, batch: jax.Array, context: jax.Array) -> jax.Array:
    """Seconds of a decode iteration of ``batch`` sequences with mean ``context`` KV tokens each."""
    return _bilinear(table, 0, batch, context)


def prefill_added_s_per_token(
    table: WindowTable, batch: jax.Array, chunk_tokens: jax.Array
) -> jax.Array:
    """Seconds per prompt token that prefilling ``chunk_tokens`` adds to a decode batch."""
    tokens = _clip(chunk_tokens, PROMPT_LENGTHS)
    return _bilinear(table, _ADDED, batch, tokens) / tokens


def prefill_s_per_token(table: WindowTable, chunk_tokens: jax.Array) -> jax.Array:
    """Seconds per prompt token of prefilling ``chunk_tokens`` on an idle engine."""
    tokens = _clip(chunk_tokens, PROMPT_LENGTHS)
    column, across = _length_cell(tokens)
    corner = _ALONE + column
    return _lerp(table.at(corner), table.at(corner + 1), across) / tokens


def batch_weights(batch: jax.Array) -> jax.Array:
    """float32[9, ...]: weight of each batch size of the grid at ``batch`` (any shape).

    A weighted sum interpolates as ``itl_s`` does. For many values per batch, such as one per
    traffic class, it vectorises where a gather would not.
    """
    cell, place = _batch_cell(batch)
    return jnp.stack(_hat_weights(cell + place, _BATCHES))


def added_s_per_token_rows(table: WindowTable, tokens: jax.Array) -> jax.Array:
    """float32[9, F]: ``prefill_added_s_per_token`` at every batch size and the lengths ``tokens``,
    [F].

    ``table`` is as ``contract`` returns it for scalars.
    """
    added_s = jax.lax.dynamic_slice_in_dim(table.values, table.offset + _ADDED, _CELLS)
    added_s = added_s.reshape(_BATCHES, _LENGTHS)
    tokens = _clip(tokens, PROMPT_LENGTHS)
    cell, place = _length_cell(tokens)
    weights = _hat_weights(cell + place, _LENGTHS)
    # Unrolled, because XLA's CPU reductions over a short axis do not vectorise.
    terms = [added_s[:, column, None] * weight for column, weight in enumerate(weights)]
    return functools.reduce(jnp.add, terms) / tokens


def _bilinear(table: WindowTable, start: int, batch: jax.Array, tokens: jax.Array) -> jax.Array:
    """The [9, 8] part that begins at ``start`` in each row, at ``batch`` and ``tokens``."""
    row, down = _batch_cell(batch)
    column, across = _length_cell(tokens)
    corner = start + row * _LENGTHS + column
    low = _lerp(table.at(corner), table.at(corner + 1), across)
    high = _lerp(table.at(corner + _LENGTHS), table.at(corner + _LENGTHS + 1), across)
    return _lerp(low, high, down)


def _lerp(low: jax.Array, high: jax.Array, place: jax.Array) -> jax.Array:
    """Linear interpolation that is exact at both ends."""
    return (1.0 - place) * low + place * high


def _batch_cell(batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cell of the batch axis (int32, 0..7) and place in it (0..1); the first cell is 1..4."""
    batch = _clip(batch, BATCH_SIZES)
    cell = jnp.clip(_exponent(batch) - 1, 0, _BATCHES - 2)
    place = jnp.where(cell == 0, (batch - 1.0) / 3.0, batch * _power_of_two(-1 - cell) - 1.0)
    return cell, place


def _length_cell(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cell of the length axis (int32, 0..6) and place in it (0..1)."""
    tokens = _clip(tokens, PROMPT_LENGTHS)
    cell = jnp.clip(_exponent(tokens) - _FIRST_EXPONENT, 0, _LENGTHS - 2)
    return cell, tokens * _power_of_two(-_FIRST_EXPONENT - cell) - 1.0


def _clip(values: jax.Array, knots: Sequence[int]) -> jax.Array:
    """float32 inside the range of the knots."""
    return jnp.clip(jnp.asarray(values, jnp.float32), knots[0], knots[-1])


def _exponent(values: jax.Array) -> jax.Array:
    """int32: floor(log2) of positive float32, from their bits."""
    return (jax.lax.bitcast_convert_type(values, jnp.int32) >> 23) - 127


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """float32: 2**exponent of int32, from their bits."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _hat_weights(position: jax.Array, knots: int) -> list[jax.Array]:
    """Weights of linear interpolation on knots 0, 1, ...; at most two are above zero."""
    return [jnp.maximum(1.0 - jnp.abs(position - knot), 0.0) for knot in range(knots)]


def _grid_seconds(file: TableFile) -> np.ndarray:
    """float64[5, 3, 152]: the grid of the file as rows of a ``LatencyTable``."""
    # [batch, kv, spec, tier, prompt]; no time depends on the KV budget.
    itl_s, added_s, alone_s = (
        np.moveaxis(file.columns[name][:, 0] / 1e3, 0, 2)
        for name in ("itl_ms", "prefill_added_ms", "prefill_ms")
    )
    return _rows(itl_s, added_s, alone_s[:, :, 0])


def _model_seconds(file: TableFile, depths: np.ndarray, budget: int) -> np.ndarray:
    """float64[len(depths), 3, 152]: the same rows from the cost model of the file."""
    cost = file.metadata.cost_model
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
    """[D, 3, 9, 8], [D, 3, 9, 8] and [D, 3, 8] seconds as [D, 3, 152]."""
    parts = [part.reshape(*alone_s.shape[:2], -1) for part in (itl_s, added_s, alone_s)]
    return np.concatenate(parts, axis=2)
