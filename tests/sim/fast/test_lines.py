"""Waiting lines: who is served, and how long they waited, against a queue of individuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.lines import (
    AGE_KNOTS,
    AGE_PERIODS,
    age_by_one_tick,
    count_older_than,
    fifo_cut,
)

LIVE = jnp.bool_(True)


class Cohorts:
    """The brute-force line: one entry per tick of arrival, served strictly oldest first."""

    def __init__(self, classes: int) -> None:
        self.arrived: list[np.ndarray] = []
        self.classes = classes
        self.ages: list[tuple[int, float]] = []

    def arrive(self, counts: np.ndarray) -> None:
        self.arrived.append(counts.astype(float))

    def serve(self, usage: np.ndarray) -> np.ndarray:
        """Serves until one unit of the resource is used up; a cohort may be served in part."""
        left, served = 1.0, np.zeros(self.classes)
        for tick, cohort in enumerate(self.arrived):
            need = float(usage @ cohort)
            share = 1.0 if need <= left else left / need
            left -= share * need
            served += share * cohort
            self.ages.append((len(self.arrived) - 1 - tick, float(share * cohort.sum())))
            self.arrived[tick] = (1.0 - share) * cohort
            if share < 1.0:
                break
        return served

    @property
    def waiting(self) -> np.ndarray:
        return np.sum(self.arrived, axis=0)


age_by_one_tick = jax.jit(age_by_one_tick)
fifo_cut = jax.jit(fifo_cut)


def serve(waiting: jnp.ndarray, usage: np.ndarray) -> jnp.ndarray:
    groups = jnp.zeros(len(usage), jnp.int32)
    return fifo_cut(LIVE, waiting, groups, jnp.asarray(usage, jnp.float32)[None])


def test_knots_follow_their_periods() -> None:
    """A shift moves everybody to the age that they have reached: knot + period = next knot."""
    np.testing.assert_array_equal(AGE_KNOTS[:-1] + AGE_PERIODS[:-1], AGE_KNOTS[1:])
    assert (np.diff(AGE_PERIODS) >= 0).all() and AGE_KNOTS[0] == 0
    assert all(period & (period - 1) == 0 for period in AGE_PERIODS.tolist())


@given(st.integers(0, 1000), st.integers(0, 10_000))
def test_serving_is_first_come_first_served(seed: int, clock: int) -> None:
    """While nobody waits longer than the fine knots, every class is served as in the real line."""
    rng = np.random.default_rng(seed)
    usage = np.array([0.05, 0.21])
    line, waiting = Cohorts(2), jnp.zeros((2, len(AGE_KNOTS)))
    for tick in range(25):
        # Load 0.8 with bursts, so that a line comes and goes.
        counts = rng.poisson([3.0, 1.0]) * (2 if tick % 9 == 0 else 1)
        line.arrive(counts)
        waiting = age_by_one_tick(
            waiting, jnp.asarray(counts, jnp.float32), jnp.int32(clock + tick)
        )
        expected, served = line.serve(usage), serve(waiting, usage)
        waiting = jnp.maximum(waiting - served[:, None], 0.0)
        oldest = max((a for a, n in line.ages[-1:] if n > 0), default=0)
        if oldest >= 7:
            return
        np.testing.assert_allclose(served, expected, atol=2e-3)
        np.testing.assert_allclose(waiting[:, 0], line.waiting, atol=5e-3)


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60), st.integers(0, 500))
def test_ageing_loses_nobody(arrivals: list[float], clock: int) -> None:
    """Ageing keeps the number waiting, and older ages never hold more than younger ones."""
    waiting, total = jnp.zeros((1, len(AGE_KNOTS))), 0.0
    for tick, count in enumerate(arrivals):
        waiting = age_by_one_tick(waiting, jnp.float32([count]), jnp.int32(clock + tick))
        total += count
        assert float(waiting[0, 0]) == pytest.approx(total, rel=1e-5)
        assert bool((jnp.diff(waiting[0]) <= 1e-4).all())


@pytest.mark.slow
@pytest.mark.parametrize("load", [1.1, 1.4])
def test_long_waits_keep_their_distribution(load: float) -> None:
    """Minutes in an overloaded line: quantiles of the served ages are those of the real line."""
    rng = np.random.default_rng(1)
    usage = np.array([0.1])
    line, waiting = Cohorts(1), jnp.zeros((1, len(AGE_KNOTS)))
    by_age = jnp.zeros_like(waiting)
    for tick in range(800):
        counts = rng.poisson([10.0 * load])
        line.arrive(counts)
        waiting = age_by_one_tick(waiting, jnp.asarray(counts, jnp.float32), jnp.int32(tick))
        line.serve(usage)
        served = jnp.minimum(waiting, serve(waiting, usage)[:, None])
        by_age, waiting = by_age + served, waiting - served
    ages = np.array([age for age, _ in line.ages], float)
    weights = np.array([count for _, count in line.ages])
    order = np.argsort(ages)
    below = np.cumsum(weights[order]) / weights.sum()
    ticks = jnp.arange(1.0, 448.0)
    older = np.asarray(count_older_than(by_age, ticks[None]))[0] / weights.sum()
    for probability in (0.25, 0.5, 0.9, 0.99):
        expected = ages[order][np.searchsorted(below, probability)]
        found = ticks[np.argmax(older <= 1.0 - probability)]
        # Coarse knots are 16 to 25 % apart, and the age is interpolated between two.
        assert found == pytest.approx(expected, rel=0.1)


@given(st.integers(0, 1000))
def test_higher_groups_go_first_and_nobody_overtakes(seed: int) -> None:
    """A group is served only when those above are served in full; no resource is overdrawn."""
    rng = np.random.default_rng(seed)
    counts = jnp.asarray(rng.integers(0, 8, 5), jnp.float32)
    waiting = age_by_one_tick(jnp.zeros((5, len(AGE_KNOTS))), counts, jnp.int32(0))
    group = rng.integers(0, 3, 5)
    usage = rng.uniform(0.01, 0.3, (2, 5))
    served = np.asarray(
        fifo_cut(LIVE, waiting, jnp.asarray(group), jnp.asarray(usage, jnp.float32))
    )
    assert (served >= 0.0).all() and (served <= np.asarray(counts) + 1e-5).all()
    assert ((usage * served).sum(axis=1) <= 1.0 + 1e-4).all()
    left = np.asarray(counts) - served
    for lower in range(1, 3):
        if left[group < lower].sum() > 1e-3:
            assert served[group >= lower].sum() <= 1e-4
    if left.sum() > 1e-3:  # whoever waits does so because something ran out
        assert (usage * served).sum(axis=1).max() > 1.0 - 1e-3


@given(st.lists(st.floats(0.0, 5.0), min_size=32, max_size=32))
def test_counts_fall_with_age(steps: list[float]) -> None:
    """The number older than an age never rises with the age, from everybody down to nobody."""
    ages = jnp.asarray(np.cumsum(steps)[::-1].copy(), jnp.float32)[None]
    ticks = jnp.asarray(np.concatenate([np.linspace(0, 40, 200), np.geomspace(41, 2000, 200)]))
    counts = np.asarray(count_older_than(ages, ticks.astype(jnp.float32)[None]))[0]
    assert (np.diff(counts) <= 1e-3).all()
    assert counts[0] == pytest.approx(float(ages[0, 0]), rel=1e-6, abs=1e-6)
    assert counts[-1] == pytest.approx(0.0, abs=1e-4)
