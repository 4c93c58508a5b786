"""Poisson counts from uniforms: distribution, monotonicity, and what odd input does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxserve.arrays.poisson import (
    EXACT_RATE,
    MAX_RATE,
    normal_quantile,
    poisson_from_uniform,
)

STRATA = 2**20
ROUNDING = 2e-6  # cumulative probabilities closer than this are not told apart
draw = jax.jit(poisson_from_uniform)


def pmf_error(rate: float) -> tuple[float, float, float]:
    """Total variation distance, relative bias of mean and of variance, over even strata."""
    strata = (jnp.arange(STRATA, dtype=jnp.float32) + 0.5) / STRATA
    counts = np.asarray(draw(strata, jnp.float32(rate))).astype(int)
    share = np.bincount(counts) / STRATA
    # Beyond the last count there is only the law's own tail.
    pmf = stats.poisson.pmf(np.arange(len(share)), rate)
    distance = 0.5 * (np.abs(share - pmf).sum() + stats.poisson.sf(len(share) - 1, rate))
    return distance, counts.mean() / rate - 1.0, counts.var() / rate - 1.0


@pytest.mark.parametrize("rate", [0.05, 0.5, 3.0, 15.9, 16.1, 30.0, 100.0, 400.0])
def test_random_counts_pass_a_chi_square_test(rate: float) -> None:
    """Counts drawn from random uniforms cannot be told from Poisson at 400,000 samples."""
    size = 400_000
    uniform = jax.random.uniform(jax.random.key(17), (size,))
    counts = np.asarray(draw(uniform, jnp.float32(rate))).astype(int)
    # Bins of at least 10 expected counts; the first and the last take the tails.
    low = int(stats.poisson.ppf(20 / size, rate))
    high = int(stats.poisson.isf(20 / size, rate))
    cells = np.arange(low, high + 1)
    expected = stats.poisson.pmf(cells, rate)
    expected[0] = stats.poisson.cdf(low, rate)
    expected[-1] = stats.poisson.sf(high - 1, rate)
    observed = np.bincount(np.clip(counts, low, high) - low, minlength=len(cells))
    assert stats.chisquare(observed, expected * size).pvalue > 0.001


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05, 0.3, 1.0, 2.5, 5.0, 8.0, 12.0, 15.9, 16.0])
def test_small_rates_are_exact(rate: float) -> None:
    """Up to EXACT_RATE the distribution is Poisson to the resolution of the strata."""
    distance, mean_bias, variance_bias = pmf_error(rate)
    assert distance < 1e-5
    assert abs(mean_bias) < max(1e-5, 1e-6 / rate)
    assert abs(variance_bias) < max(1e-4, 3e-6 / rate)


@pytest.mark.parametrize("rate", [16.01, 17.3, 20.0, 25.0, 40.0, 63.7, 100.0, 250.0, 999.0])
def test_large_rates_are_close(rate: float) -> None:
    """Above EXACT_RATE total variation stays within 1e-4, a twentieth of what is allowed."""
    distance, mean_bias, variance_bias = pmf_error(rate)
    assert distance < 1e-4
    assert abs(mean_bias) < 1e-5
    assert abs(variance_bias) < 3e-4


def test_largest_uniform_never_counts_every_term() -> None:
    """The float sum of probabilities stalls short of 1; that must not turn into a burst."""
    rates = np.concatenate([np.geomspace(1e-6, EXACT_RATE, 200_000), [0.0, EXACT_RATE]])
    rates = rates.astype(np.float32)
    counts = np.asarray(draw(jnp.float32(1.0 - 2.0**-24), rates))
    assert (counts <= stats.poisson.isf(4e-7, rates)).all()
    assert (counts >= stats.poisson.isf(2e-6, rates)).all()


@given(
    uniform=st.floats(0.0, 1.0, exclude_max=True, width=32),
    rate=st.floats(0.0, 1000.0, width=32),
)
def test_agrees_with_the_quantile_function(uniform: float, rate: float) -> None:
    """A count is the exact quantile at a uniform and a rate close to those asked for."""
    count = float(draw(jnp.float32(uniform), jnp.float32(rate)))
    # Above EXACT_RATE the expansion shifts the quantile by a few thousandths of a count.
    slack = ROUNDING + (1e-4 if rate > EXACT_RATE else 0.0)
    clamped = min(uniform, 1.0 - 2.0**-20)
    lower = stats.poisson.ppf(max(clamped - slack, 0.0), rate)
    upper = stats.poisson.ppf(min(clamped + slack, 1.0 - 1e-7), rate)
    assert max(lower, 0.0) <= count <= max(upper, 0.0)


@given(
    rate=st.floats(0.0, 1000.0, width=32),
    lower=st.floats(0.0, 1.0, width=32),
    step=st.floats(ROUNDING, 1.0),
)
def test_monotone_in_uniform(rate: float, lower: float, step: float) -> None:
    """A larger uniform never gives fewer arrivals."""
    assert float(draw(jnp.float32(lower), rate)) <= float(draw(jnp.float32(lower + step), rate))


@given(
    uniform=st.floats(0.0, 1.0, exclude_max=True, width=32),
    rate=st.one_of(st.floats(0.0, 1000.0), st.floats(15.9, 16.1)),
    step=st.floats(0.0, 10.0),
)
def test_monotone_in_rate(uniform: float, rate: float, step: float) -> None:
    """More traffic never gives fewer arrivals, also across EXACT_RATE."""
    fewer = float(draw(jnp.float32(uniform - ROUNDING), jnp.float32(rate)))
    assert fewer <= float(draw(jnp.float32(uniform), jnp.float32(rate + step)))


def test_monotone_on_a_dense_grid() -> None:
    """The same two orders on a grid that straddles EXACT_RATE and reaches into both tails."""
    uniform = jnp.linspace(0.0, 1.0 - 5.0 * ROUNDING, 20_001)[:, None]
    rate = jnp.concatenate([jnp.linspace(0.0, 15.99, 200), jnp.linspace(16.0, 17.0, 101)])
    rate = jnp.concatenate([rate, jnp.geomspace(17.1, MAX_RATE, 100)])
    counts = np.asarray(draw(uniform, rate))
    assert (np.diff(counts, axis=0) >= 0).all()
    assert (np.diff(counts, axis=1) >= 0).all()


@given(
    uniform=st.floats(width=32, allow_nan=True, allow_infinity=True),
    rate=st.floats(width=32, allow_nan=True, allow_infinity=True),
)
def test_any_float_gives_a_whole_finite_count(uniform: float, rate: float) -> None:
    """No input, NaN and infinities included, gives a NaN, a fraction or a negative count."""
    count = float(draw(jnp.float32(uniform), jnp.float32(rate)))
    assert np.isfinite(count) and count >= 0.0 and count == round(count)


def test_documented_edge_cases() -> None:
    """Rate 0, negative and NaN give 0; a NaN uniform is the largest; huge rates are capped."""
    uniform = jnp.linspace(0.0, 1.0, 101)
    for rate in (0.0, -3.0, float("nan"), -float("inf")):
        assert not np.asarray(draw(uniform, jnp.float32(rate))).any()
    assert float(draw(jnp.float32("nan"), 3.0)) == float(draw(jnp.float32(1.0), 3.0)) > 10.0
    assert float(draw(0.5, jnp.float32("inf"))) == float(draw(0.5, MAX_RATE))
    assert float(draw(0.5, MAX_RATE)) == pytest.approx(MAX_RATE, rel=1e-4)


def test_broadcasts_and_returns_float32() -> None:
    """One rate per class against uniforms per tick and class gives counts per tick and class."""
    uniform = jax.random.uniform(jax.random.key(3), (8, 6))
    rate = jnp.asarray([0.1, 0.5, 1.0, 5.0, 20.0, 0.0])
    counts = draw(uniform, rate)
    assert counts.shape == (8, 6) and counts.dtype == jnp.float32
    full = draw(uniform, jnp.broadcast_to(rate, (8, 6)))
    np.testing.assert_array_equal(counts, full)


def test_same_counts_alone_and_in_a_batch() -> None:
    """Counts at exact rates do not depend on the program around them: jitted, batched or not."""
    keys = jax.random.split(jax.random.key(5), 4096)
    rate = jnp.asarray(np.random.default_rng(1).uniform(0.0, EXACT_RATE, (6,)), jnp.float32)

    def window(key: jax.Array) -> jax.Array:
        return poisson_from_uniform(jax.random.uniform(key, (8, 6)), rate)

    batch = jax.jit(jax.vmap(window))(keys)
    alone = jax.jit(lambda keys: jax.lax.map(window, keys))(keys)
    np.testing.assert_array_equal(batch, alone)
    for index in range(0, 4096, 1024):
        np.testing.assert_array_equal(batch[index], window(keys[index]))


def test_normal_quantile_is_accurate() -> None:
    """The single-precision normal quantile is within 3e-6 of the exact one, tails included."""
    tail = 2.0 ** -np.arange(2, 25, dtype=np.float64)
    uniform = np.concatenate([np.linspace(0.001, 0.999, 5001), tail, 1.0 - tail])
    uniform = uniform.astype(np.float32)
    exact = stats.norm.ppf(uniform.astype(np.float64))
    np.testing.assert_allclose(jax.jit(normal_quantile)(uniform), exact, atol=3e-6)
