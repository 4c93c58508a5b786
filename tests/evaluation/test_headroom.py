"""Headroom: the report leaves nothing out, and the anchors made from it can be scored with."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import jaxserve
from jaxserve.agents.open_loop import exploit_policies
from jaxserve.evaluation.headroom import MIN_SPAN, Headroom, SearchBudget
from jaxserve.grids import KNOB_GRIDS
from jaxserve.show.headroom import headroom_markdown, headroom_tables
from jaxserve.spaces import KNOBS
from jaxserve.tasks import anchors as anchors_module
from jaxserve.tasks.anchors import anchors_score, load_anchors, write_anchors
from jaxserve.tasks.spec import load_task, task_names

POLICIES = ("random", "default", "best_static", "oracle", *exploit_policies())
STATIC = np.array([9, 7, 0, 0, 0, 0, 0], np.int32)  # batches of 64 in 0.7 of the memory


def measured(task: str = "adversarial_multitenant", **values: float) -> Headroom:
    """A result with a number of its own for every regime, setting and policy."""
    count = len(load_task(task).regimes)
    by_regime = np.tile(STATIC, (count, 1))
    by_regime[:, 0] = np.arange(count)
    # Each regime's own setting is the best there: 0.9, 0.91, ... on the diagonal.
    matrix = 0.1 + 0.01 * np.arange((count + 1) * count, dtype=float).reshape(count + 1, count)
    np.fill_diagonal(matrix, 0.9 + 0.01 * np.arange(count))
    rewards = {name: 0.0123 * index - 0.05 for index, name in enumerate(POLICIES)}
    rewards |= {"random": 0.2, "best_static": 0.5, "oracle": 0.6}
    return Headroom(
        spec=load_task(task),
        env=jaxserve.make(task),
        static=STATIC,
        by_regime=by_regime,
        matrix=matrix,
        values=rewards | values,
        budget=SearchBudget(),
    )


def printed(result: Headroom) -> tuple[str, str]:
    """Both tables as a wide terminal shows them."""
    texts = []
    for table in headroom_tables(result):
        output = io.StringIO()
        Console(file=output, width=250).print(table.rich())
        texts.append(output.getvalue())
    return texts[0], texts[1]


@pytest.mark.parametrize("task", task_names())
def test_the_matrix_shows_every_setting_in_every_regime(task: str) -> None:
    """All regimes as columns and rows, all numbers, the settings in words, nothing cut off."""
    result = measured(task)
    text, _ = printed(result)
    assert task in text and "…" not in text
    for regime in result.spec.regimes:
        assert f"best in {regime.name}" in text
    assert "best static" in text
    for row in result.matrix:
        for value in row:
            assert f"{value:.3f} (" in text
    regimes = len(result.spec.regimes)
    assert text.count("(100%)") == regimes
    for size in (64, *KNOB_GRIDS["batch_cap"][:regimes]):
        values = {"batch_cap": size, "kv_budget_fraction": 0.7}
        open_knobs = [knob for knob in values if knob in result.spec.knobs]
        assert ", ".join(f"{knob} {values[knob]}" for knob in open_knobs) in text


def test_the_values_are_of_every_policy_and_sorted() -> None:
    """Yardsticks and exploits, the worst first, and the headroom in the title."""
    result = measured()
    _, text = printed(result)
    assert "headroom +20.0%" in text
    lines = [line for line in text.splitlines() if any(f" {name} " in line for name in POLICIES)]
    assert len(lines) == len(POLICIES) == len(result.values)
    for name, value in result.values.items():
        assert any(f" {name} " in line and f"{value:.4f}" in line for line in lines), name
    shown = [float(line.replace("│", " ").split()[-1]) for line in lines]
    assert shown == sorted(shown)


def test_a_page_keeps_the_tasks_that_were_not_measured_again() -> None:
    """Sections are replaced by name; a setting is one line of its table."""
    first = headroom_markdown([measured(), measured("static_workload")])
    again = headroom_markdown([measured(oracle=0.7)], first.replace("Written by", "Printed by"))
    assert again.startswith("# Headroom\n\nPrinted by")
    assert again.count("\n## ") == 2 and "headroom +40.0%" in again
    assert again.count("headroom +20.0%") == 1
    row = "| best in chat: batch_cap 1, kv_budget_fraction 0.7, speculation_depth 0, "
    assert row in again
    assert headroom_markdown([], again) == again


def test_a_table_without_headroom_says_so() -> None:
    """An oracle that gains nothing is shown as it was measured."""
    assert "headroom -2.0%" in printed(measured(oracle=0.49))[1]


@given(st.floats(0.01, 2.0), st.floats(-0.5, 0.5))
def test_a_score_of_one_asks_for_a_minimum_gain(best_static: float, headroom: float) -> None:
    """The oracle's anchor is what was measured, but never nearer than the floor."""
    result = measured(best_static=best_static, oracle=best_static * (1.0 + headroom), random=-1.0)
    anchors = result.anchors()
    assert result.headroom == pytest.approx(headroom, abs=1e-9)
    expected = best_static * (1.0 + max(headroom, MIN_SPAN))
    assert anchors.oracle == pytest.approx(expected, rel=1e-9)
    assert anchors_score(anchors, anchors.random) == 0.0
    assert anchors_score(anchors, best_static) == 0.5
    assert anchors_score(anchors, expected) == pytest.approx(1.0)


def test_anchors_say_how_they_were_computed() -> None:
    """Task, version, budget and the oracle as measured, floor or not, go into the file."""
    result = measured(oracle=0.5012345678)
    anchors = result.anchors()
    assert (anchors.task, anchors.task_version) == (result.spec.name, result.spec.version)
    assert anchors.provenance["budget"] == dataclasses.asdict(SearchBudget())
    assert anchors.provenance["oracle_measured"] == 0.501235
    assert result.spec.name in anchors.provenance["command"]
    assert (anchors.random, anchors.best_static) == (0.2, 0.5)


@pytest.mark.parametrize("task", ["static_workload", "adversarial_multitenant", "fleet_mixed"])
@pytest.mark.parametrize("oracle", [0.45, 0.6180339887])
def test_anchors_survive_their_file(
    task: str, oracle: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a search measured is what scores are computed with, to six decimals."""
    monkeypatch.setattr(anchors_module, "data_dir", lambda: tmp_path)
    result = measured(task, oracle=oracle)
    anchors = result.anchors()
    path = write_anchors(anchors)
    assert path == tmp_path / "anchors" / f"{task}.json"
    loaded = load_anchors(result.spec)
    assert loaded == dataclasses.replace(anchors, oracle=round(anchors.oracle, 6))
    found = {
        knob: pytest.approx(KNOB_GRIDS[knob][index], abs=1e-6)
        for knob, index in zip(KNOBS, STATIC, strict=True)
        if knob in result.spec.knobs
    }
    assert loaded.best_static_action == dict(result.spec.locked) | found
    assert anchors_score(loaded, loaded.best_static) == 0.5
