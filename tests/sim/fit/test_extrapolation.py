"""Edges of a load test, and what a fit without them says of them."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.sim.fit.extrapolation import Extrapolation, edges
from jaxserve.sim.fit.sweep import Sweep


def _sweep(concurrency: list[float], prompt: list[float]) -> Sweep:
    count = len(concurrency)
    return Sweep(
        np.array(concurrency), np.array(prompt), np.full(count, 128.0), np.ones(count), None
    )


def test_a_third_of_the_values_is_the_edge() -> None:
    """All their rows are held out, so that nothing near them is seen."""
    sweep = _sweep([1, 2, 4, 8, 16, 32, 32, 32], [512] * 8)
    (edge,) = edges(sweep.axes())
    assert edge.axis == "requests in flight"
    assert (edge.largest_left, edge.largest) == (8, 32)
    assert edge.rows.tolist() == [False] * 4 + [True] * 4


def test_every_axis_has_its_own_edge() -> None:
    """Lengths count with their outputs."""
    sweep = _sweep([1, 1, 4, 4, 16, 16, 64, 64], [512, 2048] * 4)
    first, second = edges(sweep.axes())
    assert (first.largest_left, first.largest) == (16, 64)
    assert (second.axis, second.largest_left) == ("tokens in a sequence", 640)


@pytest.mark.parametrize(
    ("concurrency", "prompt"), [([8] * 8, [512] * 8), ([1, 2, 2, 2, 2, 2], [512] * 6)]
)
def test_an_axis_that_leaves_too_little_has_none(
    concurrency: list[float], prompt: list[float]
) -> None:
    """One value, or nearly all rows at the largest."""
    assert not list(edges(_sweep(concurrency, prompt).axes()))


def test_the_worst_error_keeps_its_sign() -> None:
    """The mean is that of absolute errors."""
    (edge,) = edges(_sweep([1, 2, 4, 8, 16, 32], [512] * 6).axes())
    extrapolation = Extrapolation.of(edge, np.array([0.1, -0.3]))
    assert extrapolation.error == pytest.approx(0.2)
    assert extrapolation.worst_error == -0.3
