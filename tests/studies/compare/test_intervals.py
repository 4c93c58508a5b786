"""Estimates: hand-worked values, intervals that cover what they should, and nothing random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.studies.compare.intervals import (
    change,
    estimate,
    estimate_of_sums,
    iqm,
    optimality_gap,
    score_scale,
    wins,
)
from jaxserve.tasks.anchors import anchors_score
from tests.search_results import anchors_of

ANCHORS = anchors_of("bursty_workload", 0.2, 0.6, 0.8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 100], 3.5),  # of eight, two go at each end: (2+3+4+5)/4
        ([7, 0, 3, 50, 4], 14 / 3),  # of five, one: (3+4+7)/3
        ([1, 2, 9], 4.0),  # of three, none
        ([5], 5.0),
    ],
)
def test_interquartile_means(values: list[float], expected: float) -> None:
    """The lowest and highest quarter, rounded down, do not count."""
    assert iqm(np.array(values, float)) == pytest.approx(expected)


def test_runs_are_means_over_episodes() -> None:
    """The means of runs are 1, 3, 3, 5, and the interquartile mean of those is 3."""
    matrix = np.array([[0.0, 2.0], [3.0, 3.0], [2.0, 4.0], [5.0, 5.0]])
    assert estimate([matrix]).value == 3.0
    assert estimate([matrix], np.mean).value == 3.0
    assert estimate([matrix + 1.0], np.mean).value == 4.0


def test_strata_are_pooled() -> None:
    """Runs of all tasks are aggregated together, each scaled by its own task."""
    low, high = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[40.0], [50.0], [60.0], [70.0]])
    # 0 1 2 3 4 5 6 7 without two at each end.
    assert estimate([low, high], scales=[lambda x: x, lambda x: x / 10.0]).value == 3.5
    assert estimate([low, high], np.mean).value == pytest.approx((6.0 + 220.0) / 8.0)


def test_what_does_not_vary_has_no_width() -> None:
    """Equal runs on equal episodes are known exactly."""
    found = estimate([np.full((10, 64), 0.25)])
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)


def test_intervals_answer_for_runs_and_for_episodes() -> None:
    """Spread between runs widens an interval, and so does spread between episodes."""
    generator = np.random.default_rng(3)
    by_run = np.repeat(generator.normal(size=(10, 1)), 50, axis=1)
    by_episode = np.repeat(generator.normal(size=(1, 50)), 10, axis=0)

    def width(matrix: np.ndarray) -> float:
        found = estimate([matrix], np.mean)
        return found.high - found.low

    # 1.96 standard errors on both sides, with the spread of a sample of this size.
    assert width(by_run) == pytest.approx(3.92 * by_run[:, 0].std() / 10**0.5, rel=0.1)
    assert width(by_episode) == pytest.approx(3.92 * by_episode[0].std() / 50**0.5, rel=0.1)
    both = width(by_run + by_episode)
    assert both == pytest.approx(np.hypot(width(by_run), width(by_episode)), rel=0.1)


@pytest.mark.slow
def test_intervals_cover_the_truth() -> None:
    """Of 300 experiments with true mean 0, about 95 % have 0 in their interval."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        runs, episodes = generator.normal(size=(10, 1)), generator.normal(size=(1, 40))
        found = estimate([runs + episodes + generator.normal(size=(10, 40))], np.mean)
        covered += found.low <= 0.0 <= found.high
    assert 0.87 <= covered / 300 <= 0.99


def test_ratios_are_of_sums_over_a_run() -> None:
    """Episodes count by their requests, and equal columns have a ratio that is known exactly."""
    good, decided = np.array([[1.0, 9.0], [1.0, 9.0]]), np.array([[2.0, 98.0], [2.0, 98.0]])
    found = estimate_of_sums([good, decided], np.divide)
    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(9.0 / 98.0) and found.high == pytest.approx(0.5)
    same = estimate_of_sums([decided, decided], np.divide)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)


def test_means_are_sums_over_as_many() -> None:
    """A ratio to a constant is what ``estimate`` says of the mean."""
    matrix = np.random.default_rng(4).normal(size=(5, 20))
    found, expected = estimate_of_sums([matrix, np.ones((5, 20))], np.divide), estimate([matrix])
    for name, value in vars(expected).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9)


def test_estimates_repeat() -> None:
    """The same numbers give the same interval."""
    matrix = np.random.default_rng(0).normal(size=(5, 20))
    assert estimate([matrix]) == estimate([matrix.copy()])


@given(st.floats(-1.0, 2.0))
def test_scores_are_those_of_the_anchors(mean: float) -> None:
    """The same piecewise line as everywhere, for whole arrays."""
    scale = score_scale(ANCHORS)
    assert scale(np.array([mean]))[0] == pytest.approx(anchors_score(ANCHORS, mean), abs=1e-12)


def test_optimality_gap() -> None:
    """Scores 0.5, 1 and, clipped, 1 fall short of 1 by a sixth on average."""
    found = optimality_gap([np.array([[0.6], [0.8], [0.9]])], [score_scale(ANCHORS)])
    assert found.value == pytest.approx(0.5 / 3.0)


def test_probability_of_improvement() -> None:
    """Wins count 1 and ties 1/2: two runs on three episodes win 2.5 of 6."""
    other = np.array([[1.0, 2.0, 3.0]])
    values = np.array([[2.0, 2.0, 1.0], [0.0, 3.0, 1.0]])
    won = wins(values, other)
    np.testing.assert_array_equal(won, [[1.0, 0.5, 0.0], [0.0, 1.0, 0.0]])
    assert estimate([won], np.mean).value == pytest.approx(2.5 / 6.0)


def test_change_is_paired() -> None:
    """What moves all episodes alike is known exactly, however much the episodes differ."""
    before = np.random.default_rng(1).normal(size=(6, 30))
    found = change(before, before + 0.25, lambda mean: 2.0 * mean)
    assert found.value == pytest.approx(0.5)
    assert found.high - found.low < 1e-9
    one_sided = change(np.zeros((1, 4)), np.array([[0.0, 0.0, 1.0, 1.0]]), lambda mean: mean)
    assert one_sided.value == 0.5 and one_sided.low < 0.5 < one_sided.high
