"""Choices by prediction among measured servers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxserve.sim.machine.stack import Stack
from jaxserve.studies.fidelity.served_rows import ServedRow
from jaxserve.studies.fidelity.silicon_choice import choice_rows, groups_of, regret


def _rows() -> list[ServedRow]:
    """One server with 4, 8, 16 and 32 requests in flight, and tokens of 12, 18, 28 and 45 ms."""
    row = ServedRow(
        "llama-3.1-8b", "h100-sxm-80gb", 1, Stack(engine="vllm"), 4, 500, 100, True, 0, np.inf, 0,
        True, 0.1, 0.012,
    )  # fmt: skip
    times = zip((4, 8, 16, 32), (0.012, 0.018, 0.028, 0.045), strict=True)
    return [dataclasses.replace(row, concurrency=load, tpot_s=time_s) for load, time_s in times]


def test_what_is_lost_and_what_is_broken() -> None:
    """Of the bounds 20, 30, 50 and 100 ms the exact prediction loses nothing; one that is too long
    chooses fewer in flight and loses output; one that is too short breaks the bounds."""
    rows = _rows()
    measured_s = np.array([row.tpot_s for row in rows])
    assert [group.tolist() for group in groups_of(rows)] == [[0, 1, 2, 3]]
    exact = regret(rows, measured_s, 1e-9)
    assert exact.choices == 4 and exact.broken == 0 and exact.mean == 0
    # At 30 ms 16 in flight are best; 8 are chosen. 20 ms: 4 for 8. 50 ms: 16 for 32.
    output = np.array([4, 8, 16, 32]) / measured_s
    lost = [1 - output[0] / output[1], 1 - output[1] / output[2], 1 - output[2] / output[3], 0]
    long = regret(rows, 1.3 * measured_s, 1e-9)
    assert long.lost.tolist() == pytest.approx(lost) and long.broken == 0
    assert regret(rows, 0.6 * measured_s, 1e-9).broken == 50
    # A margin keeps away from a bound that the prediction just meets.
    assert regret(rows, np.where(measured_s > 0.04, 0.0499, measured_s), 0.2).mean > 0


def test_the_rows_of_the_page() -> None:
    """Three figures with their bars."""
    rows = _rows()
    measured_s = np.array([row.tpot_s for row in rows])
    found = choice_rows(rows, measured_s, measured_s, measured_s)
    assert [row.bar for row in found] == [2.5, 8.0, 3.0] and all(row.passed for row in found)
    assert "vllm" in found[0].detail and "nan" not in found[0].detail
