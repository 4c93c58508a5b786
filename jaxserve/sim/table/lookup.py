"""Iteration times by interpolation: the fast simulator's view of a latency table.

Seconds are interpolated bilinearly in batch and length inside each cell of the grid: exact at grid
points, monotone where the data is, clamped at the edges. A decode iteration is a constant, plus a
part per sequence, plus a part per KV token (batch times context), which is what such a cell holds.
Against the cost model it errs 0.1 % on average. Interpolation in log2(batch), log2(length) and
log(seconds) errs 1.1 %, always upwards. Beyond 8,192 tokens, where attention makes a prefill grow
with the square of the prompt, a prefill's seconds per token are linear instead. The knots stay
powers of two, so that the exponent of a float is its cell and neither a logarithm nor a search is
needed.

Makers of requests keep them inside the table: task files refuse longer ones, traces
count them (``jaxserve.tasks.replay``). Clamping is for prompts below 64 tokens, each token of which
takes as long as one of 64, and for queries that no request stands behind.

Speculation depth and tier hold for a whole control window, so ``contract`` finds their row once and
a tick gathers only the four corners of a (batch, length) cell from it: 2 ns a query on CPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.convert import on_device
from jaxserve.arrays.shared_rows import SharedRows
from jaxserve.fields import MAX_DEPTH
from jaxserve.sim.table.file import TableFile
from jaxserve.sim.table.grid import (
    BATCH_SIZES,
    LEAST_BUCKETS,
    PROMPT_LENGTHS,
    QUANT_TIERS,
    SPEC_LENGTHS,
)

_BATCHES = len(BATCH_SIZES)
_FIRST_EXPONENT = 6  # of the shortest length, 64
_FIRST_SQUARE_CELL = LEAST_BUCKETS - 1  # begins at 8,192 tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LatencyTable:
    """Times of one model on one GPU. The leaf may be stacked to batch hardware under
    ``jax.vmap``."""

    seconds: jax.Array
    """float32[27 * 19 L]: a row of 19 L for each of 9 depths (0..8) x 3 tiers. A row has the
    seconds of 9 x L decode iterations [batch, mean context], of 9 x L prefills beside a batch
    [batch, prompt] and of L prefills alone [prompt]."""
    lengths: int = dataclasses.field(default=LEAST_BUCKETS, metadata={"static": True})
    """L, the shortest of ``PROMPT_LENGTHS``; all of them take half as much memory again."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindowTable:
    """A ``LatencyTable`` at one depth and tier."""

    rows: SharedRows
    """numbers of the table, and the place where this depth and tier start."""
    lengths: int = dataclasses.field(metadata={"static": True})
    """lengths of the table, see ``LatencyTable``."""


def latency_table(
    file: TableFile, token_budget: int | None = None, lengths: int = len(PROMPT_LENGTHS)
) -> LatencyTable:
    """The dynamics' part of a table file, with rows for every depth 0..8.

    The table follows its own cost model between the depths of the grid, at another token budget
    and beyond the file's longest prompt. The ratio of table to model is interpolated. A
    kink is then where the model has it, and not smeared over the gap: a kink is where a verify step
    leaves the memory-bound range, or a draft needs more passes.

    Args:
      token_budget: tokens of an iteration, by which prompts are cut; None for the file's own.
      lengths: the shortest of ``PROMPT_LENGTHS`` that the table has, see ``lengths_for``.
    """
    own_budget = file.metadata.token_budget
    depths = np.arange(MAX_DEPTH + 1)
    own_s = _model_seconds(file, depths, own_budget)
    known = own_s[list(SPEC_LENGTHS), ..., : file.buckets]
    missing = (0, len(PROMPT_LENGTHS) - file.buckets)
    ratio = np.pad(_grid_seconds(file) / known, [(0, 0)] * 3 + [missing], mode="edge")
    budget = token_budget or own_budget
    model_s = own_s if budget == own_budget else _model_seconds(file, depths, budget)
    correction = np.empty_like(model_s)
    for index in np.ndindex(model_s.shape[1:]):
        correction[:, *index] = np.interp(depths, SPEC_LENGTHS, ratio[:, *index])
    seconds = (model_s * correction)[..., :lengths]
    return LatencyTable(on_device(seconds.ravel()), lengths)


def lengths_for(tokens: float) -> int:
    """Lengths that a table needs for mean prompts and contexts up to ``tokens``: the lengths up to
    8,192, which all files have, or all."""
    enough = tokens <= PROMPT_LENGTHS[LEAST_BUCKETS - 1]
    return LEAST_BUCKETS if enough else len(PROMPT_LENGTHS)


def contract(table: LatencyTable, depth: jax.Array, tier: jax.Array) -> WindowTable:
    """The table at one speculation depth and tier (whole numbers of one shape; clamped)."""
    depth = jnp.clip(jnp.asarray(depth, jnp.int32), 0, MAX_DEPTH)
    tier = jnp.clip(jnp.asarray(tier, jnp.int32), 0, len(QUANT_TIERS) - 1)
    row = (2 * _BATCHES + 1) * table.lengths
    offset = row * (depth * len(QUANT_TIERS) + tier)
    return WindowTable(SharedRows(values=table.seconds, offset=offset), table.lengths)


def itl_s(table: WindowTable, batch: jax.Array, context: jax.Array) -> jax.Array:
    """Seconds of a decode iteration of ``batch`` sequences with mean ``context`` KV tokens each."""
    return _bilinear(table, 0, batch, *_length_weights(context, table.lengths))


def prefill_added_s_per_token(
    table: WindowTable, batch: jax.Array, chunk_tokens: jax.Array
) -> jax.Array:
    """Seconds per prompt token that prefilling ``chunk_tokens`` adds to a decode batch."""
    tokens = _clip(chunk_tokens, PROMPT_LENGTHS[: table.lengths])
    added = _BATCHES * table.lengths
    return _bilinear(table, added, batch, *_prefill_weights(tokens, table.lengths)) / tokens


def prefill_s_per_token(table: WindowTable, chunk_tokens: jax.Array) -> jax.Array:
    """Seconds per prompt token of prefilling ``chunk_tokens`` on an idle engine."""
    tokens = _clip(chunk_tokens, PROMPT_LENGTHS[: table.lengths])
    column, low, high = _prefill_weights(tokens, table.lengths)
    corner = 2 * _BATCHES * table.lengths + column
    return (low * table.rows.at(corner) + high * table.rows.at(corner + 1)) / tokens


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
    cells = _BATCHES * table.lengths
    rows = table.rows
    added_s = jax.lax.dynamic_slice_in_dim(rows.values, rows.offset + cells, cells)
    added_s = added_s.reshape(_BATCHES, table.lengths)
    tokens = _clip(tokens, PROMPT_LENGTHS[: table.lengths])
    cell, _, place = _length_weights(tokens, table.lengths)
    weights = _hat_weights(cell + place, table.lengths)
    if table.lengths > LEAST_BUCKETS:
        lower, upper = _square_factors(cell, place)
        weights = [
            weight * jnp.where(cell == column, lower, upper)
            for column, weight in enumerate(weights)
        ]
    # Unrolled, because XLA's CPU reductions over a short axis do not vectorise.
    terms = [added_s[:, column, None] * weight for column, weight in enumerate(weights)]
    return functools.reduce(jnp.add, terms) / tokens


def _bilinear(
    table: WindowTable,
    start: int,
    batch: jax.Array,
    column: jax.Array,
    left: jax.Array,
    right: jax.Array,
) -> jax.Array:
    """The [9, L] part that begins at ``start`` in each row, at ``batch`` and between two lengths.

    Args:
      column, left, right: cell of the length axis, and the weights of its ends.
    """
    row, down = _batch_cell(batch)
    rows, next_batch = table.rows, table.lengths
    corner = start + row * next_batch + column
    low = left * rows.at(corner) + right * rows.at(corner + 1)
    high = left * rows.at(corner + next_batch) + right * rows.at(corner + next_batch + 1)
    return (1.0 - down) * low + down * high


def _batch_cell(batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cell of the batch axis (int32, 0..7) and place in it (0..1); the first cell is 1..4."""
    batch = _clip(batch, BATCH_SIZES)
    cell = jnp.clip(_exponent(batch) - 1, 0, _BATCHES - 2)
    place = jnp.where(cell == 0, (batch - 1.0) / 3.0, batch * _power_of_two(-1 - cell) - 1.0)
    return cell, place


def _length_weights(tokens: jax.Array, lengths: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cell of the length axis (int32, from 0), and the weights of its ends."""
    tokens = _clip(tokens, PROMPT_LENGTHS[:lengths])
    cell = jnp.clip(_exponent(tokens) - _FIRST_EXPONENT, 0, lengths - 2)
    place = tokens * _power_of_two(-_FIRST_EXPONENT - cell) - 1.0
    return cell, 1.0 - place, place


def _prefill_weights(tokens: jax.Array, lengths: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weights of the table's cells for prefills."""
    cell, left, right = _length_weights(tokens, lengths)
    if lengths == LEAST_BUCKETS:
        return cell, left, right
    lower, upper = _square_factors(cell, right)
    return cell, left * lower, right * upper


def _square_factors(cell: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Factors on the weights of a cell's ends that make seconds per token linear in long cells.

    A prompt there is 1 + place times the lower end, and half as many times the upper one.
    """
    times = 1.0 + place
    long = cell >= _FIRST_SQUARE_CELL
    return jnp.where(long, times, 1.0), jnp.where(long, 0.5 * times, 1.0)


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
    """float64[5, 3, 19, buckets]: the grid of the file as rows of a ``LatencyTable``."""
    # [batch, kv, spec, tier, prompt]; no time depends on the KV budget.
    itl_s, added_s, alone_s = (
        np.moveaxis(file.columns[name][:, 0] / 1e3, 0, 2)
        for name in ("itl_ms", "prefill_added_ms", "prefill_ms")
    )
    return _rows(itl_s, added_s, alone_s[:, :, 0])


def _model_seconds(file: TableFile, depths: np.ndarray, budget: int) -> np.ndarray:
    """float64[len(depths), 3, 19, 12]: rows of all lengths from the cost model of the file."""
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
    """[D, 3, 9, L], [D, 3, 9, L] and [D, 3, L] seconds as [D, 3, 19, L]."""
    return np.concatenate([itl_s, added_s, alone_s[:, :, None]], axis=2)
