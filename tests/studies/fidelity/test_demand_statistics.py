"""Drawn demand against days that were left out."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.studies.fidelity.demand_statistics import demand_fidelity, drawn_levels, statistics
from jaxserve.studies.fidelity.measurements import shared_data

FLAT = {"cosine": [0.0], "sine": [0.0], "deviation": [0.3, 0.4], "time_s": [600.0, 7200.0]}


def test_statistics_of_a_known_day() -> None:
    """A rate that doubles every ten minutes for an hour, again and again."""
    rates = np.tile(2.0 ** np.arange(6), (3, 24))
    found = statistics(rates)
    assert found["change of log rates in an hour"] == pytest.approx(0.0, abs=1e-9)
    steps = np.log(2.0) * np.array([1.0] * 5 + [-5.0])
    assert found["change of log rates in ten minutes"] == pytest.approx(np.std(steps), rel=0.02)
    assert found["p99 of rates over the day's mean"] == pytest.approx(32.0 / (63.0 / 6.0))


def test_what_is_drawn_has_its_own_parameters() -> None:
    """Deviations add in squares; a process of ten minutes forgets e-fold in one slot."""
    logs = np.log(drawn_levels(FLAT))
    assert np.std(logs) == pytest.approx(0.5, rel=0.1)
    kept = np.exp(-600.0 / np.array(FLAT["time_s"]))
    change = np.sqrt(2.0 * np.sum(np.array(FLAT["deviation"]) ** 2 * (1.0 - kept)))
    assert np.std(np.diff(logs, axis=1)) == pytest.approx(change, rel=0.05)


def test_days_that_were_left_out() -> None:
    """Every statistic within its bar."""
    directory = shared_data()
    if directory is None or not (directory / "servegen").is_dir():
        pytest.skip("ServeGen's rates are absent")
    rows = demand_fidelity(directory)
    assert len(rows) == 4 and all(row.passed for row in rows), [str(row) for row in rows]
