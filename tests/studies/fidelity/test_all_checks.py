"""The table of all checks: every row with its verdict, and what was left out."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from jaxserve.studies.fidelity import all_checks
from jaxserve.studies.fidelity.measurements import FidelityRow

ROWS = [
    FidelityRow.within("first check", 1.84, 4.0, "% (mean)", "72 rows"),
    FidelityRow.within("second check", 0.0301, 0.03, "score", "8 episodes"),
]


def test_markdown_has_a_line_for_each_row() -> None:
    """Errors with three digits or one decimal, bars as they were set, misses in bold."""
    text = all_checks.fidelity_markdown(ROWS)
    assert "| first check | 1.8 % (mean) | 4 % (mean) | pass | 72 rows |" in text
    assert "| second check | 0.0301 score | 0.03 score | **miss** | 8 episodes |" in text


def test_markdown_begins_with_a_line_for_each_comparison() -> None:
    """How many of its checks pass, and the one that does worst against its bar."""
    rows = [
        FidelityRow.within("model vs kernels: linear", 1.0, 4.0, "%", ""),
        FidelityRow.within("model vs kernels: decode", 8.0, 9.0, "%", ""),
        FidelityRow.within("transfer: ppo", 0.05, 0.03, "score", ""),
    ]
    lines = all_checks.fidelity_markdown(rows).splitlines()
    assert lines[4:7] == [
        "| model vs kernels | 2 of 2 | decode: 8.0 %, bar 9 |",
        "| transfer | 0 of 1 | ppo: 0.0500 score, bar 0.03 |",
        "",
    ]


def test_table_shows_the_same() -> None:
    """On a terminal a miss stands out by its capitals."""
    output = io.StringIO()
    Console(file=output, width=160).print(all_checks.fidelity_table(ROWS))
    for text in ("first check", "1.8 % (mean)", "pass", "second check", "MISS", "8 episodes"):
        assert text in output.getvalue()


def test_picture_is_a_picture() -> None:
    """A PNG, whatever the rows."""
    assert all_checks.fidelity_picture(ROWS).startswith(b"\x89PNG")


@pytest.mark.parametrize("check", all_checks.MEASURED.values(), ids=list(all_checks.MEASURED))
def test_absent_measurements_give_no_rows(check, tmp_path: Path) -> None:
    """A directory without a check's files yields no row instead of an error or a false pass."""
    assert check(tmp_path) == []


@pytest.mark.parametrize("measured", [True, False])
def test_checks_without_data_are_skipped_by_name(
    measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a directory every check runs in it; without one the measured ones are named."""
    asked: list[object] = []

    def check(directory: Path) -> list[FidelityRow]:
        asked.append(directory)
        return ROWS[:1]

    monkeypatch.setattr(all_checks, "MEASURED", {"kernels": check, "silicon": check})
    monkeypatch.setattr(all_checks, "scheduler_agreement", lambda: ROWS[:1])
    monkeypatch.setattr(all_checks, "fast_vs_reference", lambda: ROWS[1:])
    monkeypatch.setattr(all_checks, "wide_fidelity", lambda: [])
    monkeypatch.setattr(all_checks, "policy_transfer", lambda: [])
    started: list[str] = []
    rows, skipped = all_checks.run_checks(tmp_path if measured else None, started.append)
    assert rows == ROWS[:1] * (3 if measured else 1) + ROWS[1:]
    assert skipped == ([] if measured else ["kernels", "silicon"])
    assert asked == ([tmp_path] * 2 if measured else [])
    assert started[-2:] == ["fast simulator against reference", "policies in both simulators"]
