"""Traces of a coarse clock against their own times."""

import numpy as np
import pytest

from jaxserve.studies.fidelity.coarse_clock import FILES, LOADS, TICKS_S, clock_fidelity


@pytest.mark.slow
def test_poisson_traffic_waits_as_long_when_its_clock_is_cut(tmp_path) -> None:
    """Whole seconds at random give the waits of the hidden times; equal distances shorter ones."""
    rng = np.random.default_rng(3)
    at_ms = np.cumsum(rng.exponential(150.0, 5_000)).astype("timedelta64[ms]")
    stamps = (np.datetime64("2026-01-01T00:00:00", "ms") + at_ms).astype(str)
    lines = "".join(f"{stamp.replace('T', ' ')},500,30\n" for stamp in stamps)
    (tmp_path / FILES["code"]).parent.mkdir()
    (tmp_path / FILES["code"]).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines)
    rows = clock_fidelity(tmp_path)
    assert len(rows) == 2 * len(TICKS_S)
    assert all(row.passed for row in rows), "\n".join(map(str, rows))
    even = [row.detail.split("equal distances, ")[1].split(" and ") for row in rows]
    errors = np.array([[float(each.removesuffix(" %")) for each in row] for row in even])
    assert errors.shape[1] == len(LOADS) and errors.mean() < -10.0


def test_no_rows_without_the_traces(tmp_path) -> None:
    """A directory of other measurements has none."""
    assert clock_fidelity(tmp_path) == []
