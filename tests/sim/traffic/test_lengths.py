"""Length distributions: shape, mean, and splitting into bins."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxserve.errors import InputError
from jaxserve.sim.traffic import lengths

SHAREGPT = lengths.lognormal(5.2, 1.3, 32, 8192)

distributions = st.one_of(
    st.builds(
        lambda mu, sigma, low, ratio: lengths.lognormal(mu, sigma, low, low * ratio),
        st.floats(1.0, 8.0),
        st.floats(0.05, 2.0),
        st.floats(1.0, 100.0),
        st.floats(1.0, 500.0),
    ),
    st.builds(
        lambda low, width: lengths.uniform(low, low + width),
        st.floats(1.0, 1000.0),
        st.floats(0.0, 9000.0),
    ),
    st.builds(lengths.from_samples, st.lists(st.integers(1, 20_000), min_size=1, max_size=60)),
)


def clamped_lognormal_mean(mu: float, sigma: float, low: float, high: float) -> float:
    a, b = (np.log(low) - mu) / sigma, (np.log(high) - mu) / sigma
    inside = np.exp(mu + sigma**2 / 2) * (stats.norm.cdf(b - sigma) - stats.norm.cdf(a - sigma))
    return low * stats.norm.cdf(a) + inside + high * stats.norm.sf(b)


@pytest.mark.parametrize(
    "parameters",
    [(5.2, 1.3, 32, 8192), (4.0, 0.3, 1, 10_000), (9.0, 1.0, 32, 8192), (5.0, 1.0, 1, 1e9)],
)
def test_lognormal_is_clamped_to_its_edges(parameters: tuple[float, ...]) -> None:
    """Mean and quantiles are those of a lognormal whose outside mass sits at low and high."""
    mu, sigma, low, high = parameters
    distribution = lengths.lognormal(*parameters)
    assert distribution.mean() == pytest.approx(clamped_lognormal_mean(*parameters), rel=2e-3)
    for p in (0.01, 0.25, 0.5, 0.9, 0.99):
        exact = np.clip(np.exp(mu + sigma * stats.norm.ppf(p)), low, high)
        assert float(distribution.quantile(p)) == pytest.approx(exact, rel=1e-4)


def test_clamped_mass_sits_at_the_edges() -> None:
    """Half of a lognormal above its upper edge is half of the requests at exactly that length."""
    distribution = lengths.lognormal(np.log(8192.0), 0.5, 32, 8192)
    assert np.mean(distribution.quantiles == 8192.0) == pytest.approx(0.5, abs=1e-3)
    drawn = distribution.sample(np.linspace(0.0, 1.0, 10_001)[:-1])
    assert np.mean(drawn == 8192) == pytest.approx(0.5, abs=1e-2)


def test_uniform() -> None:
    """Every length from low to high is as likely as any other; low may be high."""
    distribution = lengths.uniform(64, 128)
    assert distribution.mean() == pytest.approx(96.0)
    np.testing.assert_allclose(distribution.quantile([0.0, 0.25, 1.0]), [64.0, 80.0, 128.0])
    assert set(lengths.uniform(256, 256).quantiles) == {256.0}


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200))
def test_samples_keep_their_mean_and_range(samples: list[int]) -> None:
    """The empirical distribution has the sample's mean and never leaves its range."""
    distribution = lengths.from_samples(samples)
    # Between two samples the quantile function bends, which costs at most one cell.
    assert distribution.mean() == pytest.approx(np.mean(samples), abs=2 * np.ptp(samples) / 4096)
    assert distribution.quantiles[0] == min(samples)
    assert distribution.quantiles[-1] == max(samples)


def test_percentiles_are_met() -> None:
    """The fitted shape passes through the published percentiles."""
    published = {0.5: 1020.0, 0.9: 2734.0, 0.99: 4142.0}
    distribution = lengths.from_percentiles(published, 1, 16_384)
    for probability, tokens in published.items():
        assert float(distribution.quantile(probability)) == pytest.approx(tokens, rel=1e-3)


def test_two_percentiles_give_a_lognormal() -> None:
    """With two points the shape is the lognormal through them."""
    exact = lengths.lognormal(5.0, 0.8, 1, 8192)
    points = {p: float(exact.quantile(p)) for p in (0.5, 0.9)}
    fitted = lengths.from_percentiles(points, 1, 8192)
    np.testing.assert_allclose(fitted.quantiles, exact.quantiles, rtol=2e-4)


@given(distributions, st.integers(1, 6))
def test_split_conserves_tokens(distribution: lengths.LengthDistribution, count: int) -> None:
    """The bins' means average to the whole's, and bins follow in length."""
    bins = distribution.split_evenly(count)
    assert len(bins) == count
    assert np.mean([part.mean() for part in bins]) == pytest.approx(
        distribution.mean(), rel=1e-9, abs=np.ptp(distribution.quantiles) * 2e-3
    )
    for left, right in pairwise(bins):
        assert left.quantiles[-1] <= right.quantiles[0] + 1e-6


@given(distributions)
def test_short_table_keeps_the_mean(distribution: lengths.LengthDistribution) -> None:
    """The 33-knot table rises, stays in range and, for smooth shapes, has the same mean."""
    table = distribution.table()
    assert table.shape == (lengths.TABLE_KNOTS,) and table.dtype == np.float32
    assert (np.diff(table) >= 0.0).all()
    assert table[0] >= np.float32(distribution.quantiles[0])
    assert table[-1] <= np.float32(distribution.quantiles[-1])
    # One cell of 32 is the most that a jump between two knots can misplace.
    assert abs(np.trapezoid(table, dx=1 / 32) - distribution.mean()) <= (
        np.ptp(distribution.quantiles) / 32 + 1e-3
    )


def test_short_table_of_sharegpt_prompts() -> None:
    """On the lognormal the tasks use, mean within 0.1 % and p99 within 10 %."""
    table = SHAREGPT.table()
    knots = np.linspace(0.0, 1.0, lengths.TABLE_KNOTS)
    assert np.trapezoid(table, knots) == pytest.approx(SHAREGPT.mean(), rel=1e-3)
    assert np.interp(0.99, knots, table) == pytest.approx(float(SHAREGPT.quantile(0.99)), rel=0.1)


@given(distributions, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_quantiles_rise_and_samples_are_whole(
    distribution: lengths.LengthDistribution, first: float, second: float
) -> None:
    """A larger uniform never gives a shorter request; every sample is at least one token."""
    low, high = sorted((first, second))
    drawn = distribution.sample([low, high])
    assert drawn.dtype == np.int32 and 1 <= drawn[0] <= drawn[1]


def test_samples_follow_the_distribution() -> None:
    """Drawn lengths have the distribution's mean and quantiles."""
    drawn = SHAREGPT.sample(np.random.default_rng(0).random(400_000))
    assert drawn.mean() == pytest.approx(SHAREGPT.mean(), rel=0.01)
    for p in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(drawn, p) == pytest.approx(float(SHAREGPT.quantile(p)), rel=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lengths.lognormal(float("nan"), 1, 1, 2), "mu is nan; it must be a finite number"),
        (lambda: lengths.lognormal(5, -1, 1, 2), "sigma is -1; it must be a finite number from 0"),
        (lambda: lengths.uniform(0, 10), "low is 0; it must be a finite number from 1"),
        (lambda: lengths.uniform(10, 9), "high is 9; it must be a finite number from 10"),
        (lambda: lengths.uniform(1, float("inf")), "high is inf"),
        (lambda: lengths.from_samples([]), "at least one length"),
        (lambda: lengths.from_samples([3, 0]), "at least 1 token"),
        (lambda: lengths.from_samples([3, float("nan")]), "at least 1 token"),
        (lambda: lengths.from_percentiles({0.5: 3}, 1, 9), "count of percentiles is 1"),
        (
            lambda: lengths.from_percentiles({0.5: 3, 1.0: 4}, 1, 9),
            "it must be above 0 and below 1",
        ),
        (
            lambda: lengths.from_percentiles({0.5: 3, 0.9: 2}, 1, 9),
            "it must be finite, at least 1 token, and rising",
        ),
        (lambda: SHAREGPT.split_evenly(0), "bins is 0; it must be"),
        (lambda: lengths.LengthDistribution(np.ones(3)), "shape"),
        (lambda: lengths.LengthDistribution(np.linspace(9, 1, 4097)), "must not decrease"),
    ],
)
def test_bad_parameters_are_named(build, message: str) -> None:
    """Every impossible parameter raises one sentence that says what is allowed."""
    with pytest.raises(InputError, match=message):
        build()


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_quantiles_of_recorded_lengths_are_those_of_numpy(recorded: list[int]) -> None:
    at = np.linspace(0.0, 1.0, 9)
    found = lengths.length_quantiles(np.array(recorded, np.int32), at)
    np.testing.assert_allclose(found, np.quantile(recorded, at), rtol=1e-12)
