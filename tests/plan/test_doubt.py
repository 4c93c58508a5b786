"""Doubt of predicted times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxserve.datafiles import load_json
from jaxserve.plan.doubt import PUBLISHED, published_doubt
from jaxserve.sim.machine.models import load_model

_PAGE = Path(__file__).resolve().parents[2] / "docs/fidelity_results.md"


def test_the_errors_are_those_of_the_page() -> None:
    """Every row is on the page of the fidelity results, with that error of held-out runs."""
    page = _PAGE.read_text(encoding="utf-8")
    rows = load_json(PUBLISHED)["servers"]
    assert len(rows) == 10
    for row in rows.values():
        found = re.search(
            rf"^\| {re.escape(row['row'])} \|.*whole runs held out ([\d.]+) %", page, re.M
        )
        assert found, row
        assert abs(float(found[1]) / 100 - row["error"]) < 1e-9


def test_the_nearest_row_is_taken() -> None:
    """By format, size of the group and model; a kind of GPU without measured servers has the error
    of all rows."""
    dense, experts = load_model("llama-3.1-8b"), load_model("gpt-oss-120b")
    assert "bf16 TP8" in published_doubt(dense, "bf16", 8, True).source
    assert "FP8 TP1" in published_doubt(dense, "fp8", 2, True).source
    assert "gpt-oss" in published_doubt(experts, "mxfp4", 2, True).source
    assert "all rows" in published_doubt(dense, "bf16", 1, False).source


def test_the_interval_is_of_factors() -> None:
    """The fast end is as far as the slow one, and two errors together are larger than either."""
    doubt = published_doubt(load_model("llama-3.1-8b"), "bf16", 1, True)
    assert doubt.slower * doubt.faster == pytest.approx(1.0)
    assert doubt.with_error(0.05, "else").error > max(doubt.error, 0.05)
