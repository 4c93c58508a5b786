"""Promises of the comparison with measured servers."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.fidelity.served import Loop, Prediction, fit, fitted_constants, served_fidelity
from jaxserve.fidelity.served_rows import FILE, served_rows, shipped
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import Stack

ROW: dict[str, Any] = {
    "silicon_data_source": "",
    "backend": "vllm",
    "backend_version": "0.12.0",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "",
    "mode": "agg",
    "isl": 1024,
    "osl": 256,
    "batch_size": 8,
    "tp_size": 2,
    "attention_dp_size": 1,
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "silicon_ttft_ms": 200,
    "silicon_tpot_ms": 18,
}


def _written(directory: Path, *changes: dict[str, Any]) -> Path:
    path = directory / FILE
    path.parent.mkdir()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows([ROW | change for change in changes])
    return directory


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"model_path": "of/another"}, "model"),
        ({"system": "of_another"}, "GPU"),
        ({"mode": "disagg"}, "disaggregated"),
        ({"tp_size": 16}, "layout"),
        ({"silicon_data_source": "silicon_concurrency=9"}, "layout"),
        ({"model_path": "meta-llama/Llama-3.1-70B", "tp_size": 1}, "memory"),
        ({"silicon_ttft_ms": 1e4}, "queue"),
        ({"silicon_tpot_ms": 1, "batch_size": 64}, "impossible"),
    ],
)
def test_rules_leave_out_what_they_say(change: dict[str, Any], rule: str, tmp_path: Path) -> None:
    """A row that a rule is about is counted under it; one that none is about is kept."""
    kept, doubtful, left_out = served_rows(_written(tmp_path, {}, change))
    assert len(kept) == 1  # of the same run
    assert left_out == {rule: 1}
    assert list(doubtful.values()) == ([rule] if rule == "queue" else [])


def test_twins_are_left_out_without_their_runs(tmp_path: Path) -> None:
    """What differs between equal configurations of one version is not named; between two versions
    it is, and what else a run has is compared."""
    twin, other = {"silicon_tpot_ms": 30}, {"batch_size": 16}
    newer = twin | {"backend_version": "0.15.1"}
    kept, doubtful, left_out = served_rows(_written(tmp_path, {}, twin, other, newer, {}))
    assert [(row.stack.version, row.concurrency) for row in kept] == [("0.12.0", 16), ("0.15.1", 8)]
    assert [round(row.tpot_s, 6) for row in doubtful] == [0.018, 0.03]
    assert left_out == {"ambiguous": 2, "repeated": 1}


@pytest.mark.parametrize(
    ("tp", "ranks", "share", "experts", "gpus"),
    [(16, 1, 4, 4, 4), (1, 16, 4, 4, 4), (4, 4, 1, 16, 4), (1, 4, 1, 4, 4), (1, 4, 4, 1, 4)],
)
def test_a_doubled_layout_is_read_as_its_gpus(
    tp: int, ranks: int, share: int, experts: int, gpus: int, tmp_path: Path
) -> None:
    """One file of the source multiplies two sizes that are both the number of GPUs; in another
    the same servers have it once."""
    change = {
        "model_path": "openai/gpt-oss-120b",
        "precision": "fp4",
        "system": "h200_sxm",
        "tp_size": tp,
        "attention_dp_size": ranks,
        "moe_tp_size": share,
        "moe_ep_size": experts,
        "batch_size": 32 // ranks,
        "silicon_data_source": "silicon_concurrency=32",
    }
    kept, _, _ = served_rows(_written(tmp_path, change))
    assert [(row.gpus, row.stack.formats[0]) for row in kept] == [(gpus, "mxfp4")]


def test_lengths_that_are_drawn_are_known_by_their_source(tmp_path: Path) -> None:
    """The harness of InferenceX draws them; the other loops repeat one request."""
    dated = "source_file=2026-01-02.csv; model=Llama; silicon_concurrency=8"
    drawn = {"silicon_data_source": dated, "batch_size": 8, "isl": 2048}
    rows, _, _ = served_rows(_written(tmp_path, {}, drawn))
    assert [row.equal for row in rows] == [True, False]


def _loop(concurrency: float, prompt: float, *, equal: bool = True) -> Loop:
    return Loop(*(np.array([value]) for value in (concurrency, prompt, 256.0, equal)))


def test_prompts_that_fit_into_an_iteration_share_it() -> None:
    """A loop of short prompts loses no time to the prefill of others; one of long ones does."""
    cost = CostModel.of(*shipped("h100-sxm-80gb", "qwen3-32b", Stack()), 2)
    short, long = _loop(8, 128), _loop(8, 1024)
    np.testing.assert_allclose(short.tpot_s(cost, False), cost.decode_s(8, 128 + 128))
    assert long.tpot_s(cost, False) > 1.02 * cost.decode_s(8, 1024 + 128)


def test_requests_out_of_step_wait_for_every_prompt() -> None:
    """Where prompts have iterations of their own, equal requests meet half of them decoding."""
    cost = CostModel.of(*shipped("h100-sxm-80gb", "qwen3-32b", Stack()), 2)
    decode_s = cost.decode_s(8, 2048 + 128)
    equal, drawn = (_loop(8, 2048, equal=each).tpot_s(cost, True) for each in (True, False))
    np.testing.assert_allclose(drawn - decode_s, 2 * (equal - decode_s))


def test_fit_finds_the_constants_that_rows_were_made_with(tmp_path: Path) -> None:
    """Rows of the model itself, with another host time, are predicted without error."""
    changes = [{"batch_size": batch, "tp_size": tp} for batch in (8, 16, 64) for tp in (2, 4, 8)]
    rows, _, _ = served_rows(_written(tmp_path, *changes))
    constants = fitted_constants(rows)
    prediction = Prediction(rows, constants)
    values = prediction.start()
    values[[each.field == "host_s" for each in constants]] *= 1.5
    made = [
        dataclasses.replace(row, tpot_s=float(tpot_s))
        for row, tpot_s in zip(rows, prediction.tpot_s(values), strict=True)
    ]
    found = Prediction(made, constants).tpot_s(fit(made, constants))
    np.testing.assert_allclose(found, [row.tpot_s for row in made], rtol=1e-3)


def test_what_is_left_out_is_counted_on_the_page(tmp_path: Path) -> None:
    """Each check says which rows of its own it leaves out and what they would change, and one check
    has all rows that hardware could have done."""
    changes = [{"batch_size": batch} for batch in (4, 8, 16, 32)]
    doubts = [{"batch_size": 16, "silicon_tpot_ms": 40}, {"silicon_ttft_ms": 1e4}]
    rest = [{"mode": "disagg"}, {"silicon_tpot_ms": 1, "batch_size": 64}]
    group, everything = served_fidelity(_written(tmp_path, *changes, *doubts, *rest))
    assert group.detail.startswith("3 rows of 1 runs")
    assert "2 ambiguous, 1 queue left out, with them" in group.detail
    assert everything.check.endswith("all rows but the impossible ones")
    assert everything.detail.startswith("6 rows")
    assert everything.detail.endswith("left out: 1 disaggregated, 1 impossible")


def test_nothing_is_said_without_data(tmp_path: Path) -> None:
    """No file, no rows."""
    assert served_fidelity(tmp_path) == []
