"""Load-test columns by interpolation over batch, KV budget, depth, tier and prompt."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import RegularGridInterpolator

from jaxserve.sim.load_test import load_test, lookup
from jaxserve.sim.table_file import LOAD_TEST_COLUMNS, read_table_file
from jaxserve.sim.table_grid import (
    BATCH_SIZES,
    GRID_ROWS,
    KV_BUDGETS,
    PROMPT_LENGTHS,
    SPEC_LENGTHS,
    axis_columns,
)

NAME = "llama-3.1-8b__a100-sxm-40gb"
FILE = read_table_file(NAME)
TABLE = load_test(FILE)
GRID = np.stack([FILE.columns[name] for name in LOAD_TEST_COLUMNS], axis=-1)
batched = jax.jit(jax.vmap(lookup, (None, 0, 0, 0, 0, 0)))


def random_settings(count: int) -> list[np.ndarray]:
    """Batch, KV budget, depth, tier and prompt inside the grid."""
    rng = np.random.default_rng(5)
    return [
        np.exp(rng.uniform(0, np.log(512), count)),
        rng.uniform(0.1, 1.0, count),
        rng.uniform(0, 8, count),
        rng.integers(0, 3, count),
        np.exp(rng.uniform(np.log(64), np.log(8192), count)),
    ]


def test_grid_points_are_exact() -> None:
    """Every cell of the file is returned as it is."""
    axes = axis_columns()
    prompt = np.array(PROMPT_LENGTHS)[axes["prompt_len_bucket"].astype(int)]
    settings = [axes[name] for name in ("batch_size", "kv_budget", "spec_length", "quant_tier")]
    got = batched(TABLE, *(jnp.float32(values) for values in (*settings, prompt)))
    np.testing.assert_allclose(got, GRID.reshape(GRID_ROWS, -1), rtol=2e-5)


def test_agrees_with_scipy() -> None:
    """In between it is multilinear in log2(batch), KV budget, depth and log2(prompt)."""
    batch, kv, depth, tier, prompt = random_settings(2000)
    axes = (np.log2(BATCH_SIZES), KV_BUDGETS, SPEC_LENGTHS, np.log2(PROMPT_LENGTHS))
    points = np.stack([np.log2(batch), kv, depth, np.log2(prompt)], axis=-1)
    by_tier = [RegularGridInterpolator(axes, GRID[:, :, :, level])(points) for level in range(3)]
    expected = np.stack(by_tier)[tier, np.arange(len(tier))]
    got = batched(TABLE, *(jnp.asarray(values) for values in (batch, kv, depth, tier, prompt)))
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_clamped_at_the_edges() -> None:
    """Outside the grid the nearest edge counts."""
    for outside, inside in (
        ((0, 0.0, -1, -1, 0), (1, 0.1, 0, 0, 64)),
        ((9999, 2.0, 20, 7, 10**6), (512, 1.0, 8, 2, 8192)),
    ):
        np.testing.assert_allclose(lookup(TABLE, *outside), lookup(TABLE, *inside), rtol=1e-6)


def test_batches_change_nothing() -> None:
    """One lookup alone is the lookup inside a batch."""
    settings = [jnp.asarray(values) for values in random_settings(6)]
    together = batched(TABLE, *settings)
    for index in range(6):
        alone = lookup(TABLE, *(values[index] for values in settings))
        np.testing.assert_allclose(together[index], alone, rtol=1e-6)


def test_gradients_are_finite() -> None:
    """Continuous settings can be differentiated."""
    slope = jax.jacobian(lookup, argnums=(1, 2, 3, 5))(TABLE, 20.0, 0.5, 2.5, 1, 700.0)
    assert np.isfinite(np.stack(slope)).all()
