"""Iteration times by interpolation: exact where known, right in between, alike in every batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from jaxserve.arrays.batching import batch_last
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.table.grid import BATCH_SIZES, PROMPT_LENGTHS, QUANT_TIERS, SPEC_LENGTHS
from jaxserve.sim.table.lookup import (
    LatencyTable,
    WindowTable,
    added_s_per_token_rows,
    batch_weights,
    contract,
    itl_s,
    latency_table,
    prefill_added_s_per_token,
    prefill_s_per_token,
)

FILE = build("h100-sxm-80gb", "llama-3.1-8b")
LONG = 8192.0
"""Beyond it a prefill grows with the square of the prompt."""
TABLE = latency_table(FILE)
BATCHES = np.array(BATCH_SIZES, np.float32)
LENGTHS = np.array(PROMPT_LENGTHS, np.float32)
PAIRS = [(depth, tier) for depth in (0, 2, 5, 8) for tier in QUANT_TIERS]

random_batch = st.floats(1.0, 512.0, width=32)
random_length = st.floats(64.0, 131072.0, width=32)
random_depth = st.integers(0, 8)
random_tier = st.integers(0, 2)


def column_s(name: str) -> np.ndarray:
    """[batch, spec, tier, prompt] seconds of a column of the file."""
    return FILE.columns[name][:, 0] / 1e3


def everywhere(function, window: WindowTable) -> np.ndarray:
    """``function(window, batch, length)`` at all grid points, [batch, length]."""
    batch, length = jnp.meshgrid(BATCHES, LENGTHS, indexing="ij")
    return np.asarray(function(window, batch, length))


def random_points(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Batches and lengths (log-uniform whole numbers), depths and tiers."""
    rng = np.random.default_rng(11)
    batch = np.round(np.exp(rng.uniform(0, np.log(512), count)))
    length = np.round(np.exp(rng.uniform(np.log(64), np.log(131072), count)))
    return batch, length, rng.integers(0, 9, count), rng.integers(0, 3, count)


@pytest.mark.parametrize("tier", QUANT_TIERS)
@pytest.mark.parametrize("index", range(len(SPEC_LENGTHS)))
def test_grid_points_are_exact(index: int, tier: int) -> None:
    """At every cell of the file the table returns what the file says."""
    window = contract(TABLE, SPEC_LENGTHS[index], tier)
    np.testing.assert_allclose(
        everywhere(itl_s, window), column_s("itl_ms")[:, index, tier], rtol=3e-7
    )
    np.testing.assert_allclose(
        everywhere(prefill_added_s_per_token, window),
        column_s("prefill_added_ms")[:, index, tier] / LENGTHS,
        rtol=3e-7,
    )
    np.testing.assert_allclose(
        prefill_s_per_token(window, LENGTHS),
        column_s("prefill_ms")[0, index, tier] / LENGTHS,
        rtol=3e-7,
    )


@pytest.mark.parametrize(("depth", "tier"), PAIRS)
def test_agrees_with_scipy(depth: int, tier: int) -> None:
    """Between grid points it is SciPy's multilinear interpolation of the grid, in seconds; of long
    prefills, in seconds per token."""
    window = contract(TABLE, depth, tier)
    batch, length, _, _ = random_points(300)
    points = np.stack([batch, length], axis=-1)
    for function, per_token in ((itl_s, False), (prefill_added_s_per_token, True)):
        grid = everywhere(function, window).astype(float)
        of_time = RegularGridInterpolator((BATCHES, LENGTHS), grid)(points)
        in_seconds = RegularGridInterpolator((BATCHES, LENGTHS), grid * LENGTHS)(points) / length
        expected = np.where(length < LONG, in_seconds, of_time) if per_token else of_time
        got = function(window, jnp.asarray(batch), jnp.asarray(length))
        np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_close_to_the_cost_model() -> None:
    """Interpolation costs little accuracy at any batch, length, depth and tier.

    A prompt just longer than the token budget needs a second iteration; that step can not be
    interpolated, which is what the wide bounds on single prefills allow.
    """
    batch, length, depth, tier = random_points(20_000)
    cost, budget = FILE.metadata.cost_model, FILE.metadata.token_budget

    @jax.jit
    @jax.vmap
    def table_s(depth, tier, batch, length):
        window = contract(TABLE, depth, tier)
        return (
            itl_s(window, batch, length),
            length * prefill_added_s_per_token(window, batch, length),
            length * prefill_s_per_token(window, length),
        )

    got = [np.asarray(x) for x in table_s(depth, tier, jnp.float32(batch), jnp.float32(length))]
    exact = np.empty((3, len(batch)))
    for level in QUANT_TIERS:
        at = tier == level
        points = batch[at], length[at], depth[at]
        exact[0, at] = cost.decode_s(*points, level)
        exact[1, at] = cost.prefill_added_s(*points, level, budget)
        exact[2, at] = cost.prefill_alone_s(length[at], level, budget, depth[at])
    for seconds, model_s, mean, largest in zip(
        got, exact, (0.003, 0.012, 0.015), (0.025, 0.10, 0.20), strict=True
    ):
        error = np.abs(seconds / model_s - 1)
        assert error.mean() < mean
        assert error.max() < largest


@pytest.mark.parametrize("depth", range(9))
def test_every_depth_follows_the_cost_model(depth: int) -> None:
    """Depths between those of the grid are not interpolated across the model's kinks."""
    cost = FILE.metadata.cost_model
    for tier in QUANT_TIERS:
        expected = cost.decode_s(BATCHES[:, None], LENGTHS, depth, tier)
        np.testing.assert_allclose(
            everywhere(itl_s, contract(TABLE, depth, tier)), expected, rtol=1e-6
        )


def test_an_edited_column_is_what_counts() -> None:
    """Times in the file win over its cost model; between depths their ratio is interpolated."""
    slower = FILE.columns["itl_ms"].copy()
    slower[:, :, SPEC_LENGTHS.index(4)] *= 1.2
    edited = latency_table(dataclasses.replace(FILE, columns=FILE.columns | {"itl_ms": slower}))
    for depth, factor in ((2, 1.0), (3, 1.1), (4, 1.2), (6, 1.1), (8, 1.0)):
        before = everywhere(itl_s, contract(TABLE, depth, 1))
        after = everywhere(itl_s, contract(edited, depth, 1))
        np.testing.assert_allclose(after, factor * before, rtol=1e-6)


@given(random_batch, random_batch, random_length, random_length, random_depth, random_tier)
def test_more_work_takes_longer(
    batch_a: float, batch_b: float, length_a: float, length_b: float, depth: int, tier: int
) -> None:
    """An iteration never gets shorter with more sequences or longer contexts."""
    window = contract(TABLE, depth, tier)
    small = itl_s(window, min(batch_a, batch_b), min(length_a, length_b))
    large = itl_s(window, max(batch_a, batch_b), max(length_a, length_b))
    assert small <= large * (1 + 1e-6)


@given(random_batch, random_length, random_depth, random_tier)
def test_between_its_neighbours(batch: float, length: float, depth: int, tier: int) -> None:
    """A value in a cell is never outside the range of the cell's corners."""
    window = contract(TABLE, depth, tier)
    grid = everywhere(itl_s, window)
    row = min(int(np.searchsorted(BATCHES, batch, "right")) - 1, len(BATCHES) - 2)
    column = min(int(np.searchsorted(LENGTHS, length, "right")) - 1, len(LENGTHS) - 2)
    corners = grid[row : row + 2, column : column + 2]
    value = float(itl_s(window, batch, length))
    assert corners.min() * (1 - 1e-6) <= value <= corners.max() * (1 + 1e-6)


@pytest.mark.parametrize("function", [itl_s, prefill_added_s_per_token])
def test_clamped_at_the_edges(function) -> None:
    """Outside the grid the nearest edge counts, also for empty batches, infinities and depths."""
    window = contract(TABLE, 1, 0)
    for outside, inside in (
        ((0.0, 512.0), (1.0, 512.0)),
        ((-3.0, 0.0), (1.0, 64.0)),
        ((1e9, 700.0), (512.0, 700.0)),
        ((jnp.inf, jnp.inf), (512.0, 131_072.0)),
        ((5.0, 200_000.0), (5.0, 131_072.0)),
    ):
        assert function(window, *outside) == function(window, *inside)
    assert contract(TABLE, -1, -1).rows.offset == contract(TABLE, 0, 0).rows.offset
    assert contract(TABLE, 9, 3).rows.offset == contract(TABLE, 8, 2).rows.offset


def test_weights_and_rows_interpolate_likewise() -> None:
    """The forms for many traffic classes give what the plain functions give."""
    window = contract(TABLE, 3, 1)
    batch, length, _, _ = (jnp.asarray(x) for x in random_points(50))
    weights = batch_weights(batch)
    np.testing.assert_allclose(weights.sum(0), 1.0, rtol=1e-6)
    rows = added_s_per_token_rows(window, length)
    assert rows.shape == (len(BATCHES), 50)
    expected = prefill_added_s_per_token(window, batch[:, None], length[None])
    np.testing.assert_allclose(weights.T @ rows, expected, rtol=2e-6)


def lookups(table: LatencyTable, depth, tier, batch, length) -> tuple[jax.Array, ...]:
    """Everything that the tick asks of a table."""
    window = contract(table, depth, tier)
    return (
        itl_s(window, batch, length),
        prefill_added_s_per_token(window, batch, length),
        prefill_s_per_token(window, length),
        added_s_per_token_rows(window, jnp.stack([length, batch + 64.0])),
    )


def test_jit_and_vmap_change_nothing() -> None:
    """Alone, jitted and inside batches of any size the results agree to rounding."""
    points = [jnp.asarray(x[:64]) for x in random_points(64)]
    batch, length, depth, tier = points
    batched = jax.vmap(lookups, (None, 0, 0, 0, 0))
    whole = jax.jit(batched)(TABLE, depth, tier, batch, length)
    small = jax.jit(batched)(TABLE, depth[:5], tier[:5], batch[:5], length[:5])
    for index in range(5):
        alone = lookups(TABLE, depth[index], tier[index], batch[index], length[index])
        jitted = jax.jit(lookups)(TABLE, depth[index], tier[index], batch[index], length[index])
        for a, b, c, d in zip(alone, jitted, whole, small, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6)
            np.testing.assert_allclose(c[index], a, rtol=1e-6)
            np.testing.assert_allclose(d[index], a, rtol=1e-6)


def test_hardware_is_batched_by_stacking_tables() -> None:
    """A stacked table under nested vmap gives each environment its own hardware's times."""
    other = latency_table(read_table_file("llama-3.1-8b__a100-sxm-40gb"))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), TABLE, other)
    batch, length, depth, tier = (jnp.asarray(x).reshape(2, 8) for x in random_points(16))
    inner = jax.jit(jax.vmap(lookups, (None, 0, 0, 0, 0)))
    got = jax.jit(jax.vmap(inner))(stacked, depth, tier, batch, length)
    for index, table in enumerate((TABLE, other)):
        expected = inner(table, depth[index], tier[index], batch[index], length[index])
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a[index], b, rtol=1e-6)


def test_batch_axis_last() -> None:
    """Inside the tick's layout, with the batch axis last, lookups are the same; also stacked."""
    other = latency_table(read_table_file("llama-3.1-8b__a100-sxm-40gb"))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), TABLE, other)
    batch, length, depth, tier = (jnp.asarray(x).reshape(2, 8) for x in random_points(16))

    def on_last(window, batch, length):
        return itl_s(window, batch, length)

    def step(table, depth, tier, batch, length):
        return batch_last(on_last)(contract(table, depth, tier), batch, length)

    def alone(table, depth, tier, batch, length):
        return itl_s(contract(table, depth, tier), batch, length)

    inner = jax.jit(jax.vmap(step, (None, 0, 0, 0, 0)))
    nested = jax.jit(jax.vmap(inner))(stacked, depth, tier, batch, length)
    swapped = jax.jit(jax.vmap(jax.vmap(step), (None, 1, 1, 1, 1)))(
        stacked, depth, tier, batch, length
    )
    plain = jax.jit(jax.vmap(alone, (None, 0, 0, 0, 0)))
    for index, table in enumerate((TABLE, other)):
        points = depth[index], tier[index], batch[index], length[index]
        expected = plain(table, *points)
        np.testing.assert_allclose(inner(table, *points), expected, rtol=1e-6)
        np.testing.assert_allclose(nested[index], expected, rtol=1e-6)
        np.testing.assert_allclose(swapped[:, index], expected, rtol=1e-6)


@pytest.mark.parametrize("batch", [0.0, 1.0, 2.5, 4.0, 64.0, 511.0, 512.0, 900.0])
@pytest.mark.parametrize("length", [0.0, 64.0, 100.0, 4096.0, 8192.0, 131072.0, 2e5])
def test_gradients_are_finite(batch: float, length: float) -> None:
    """Every lookup can be differentiated by batch and length, knots and edges included."""
    window = contract(TABLE, 4, 2)
    for function in (itl_s, prefill_added_s_per_token):
        slopes = jax.grad(lambda b, n, f=function: f(window, b, n), argnums=(0, 1))(batch, length)
        assert np.isfinite(slopes).all()
    assert np.isfinite(jax.grad(lambda n: prefill_s_per_token(window, n))(length))


def test_gradient_is_the_slope_of_the_cell() -> None:
    """The derivative by context inside a cell is the difference of its corners."""
    window = contract(TABLE, 0, 0)
    slope = jax.grad(lambda n: itl_s(window, 64.0, n))(1500.0)
    rise = itl_s(window, 64.0, 2048.0) - itl_s(window, 64.0, 1024.0)
    np.testing.assert_allclose(slope, rise / 1024.0, rtol=1e-3)


@given(length=st.floats(1.0, 64.0, width=32))
def test_tokens_of_short_prompts_take_as_long_as_those_of_64(length: float) -> None:
    """So a prompt of 16 takes a quarter of the time of 64."""
    window = contract(TABLE, jnp.int32(0), jnp.int32(0))
    short, least = (prefill_s_per_token(window, jnp.float32(tokens)) for tokens in (length, 64.0))
    assert short == least
