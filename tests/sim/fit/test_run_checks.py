"""Runs that contradict themselves, or are of several engines, are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.fit.sweep import read_sweep
from tests.sim.fit.load_test_files import drawn, inferencex, vllm


@pytest.mark.parametrize(
    "change",
    [
        {"median_ttft_ms": 1e6},
        {"mean_e2el_ms": 5.0},
        {"mean_tpot_ms": 4e4},
        {"total_output_tokens": 1e8},
    ],
)
def test_times_that_contradict_each_other(change: dict[str, float], tmp_path: Path) -> None:
    """One is in another unit, or of other requests."""
    rows = [vllm(run, random.Random(5)) for run in drawn(random.Random(5))]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([*rows[:5], rows[5] | change, *rows[6:]]), encoding="utf-8")
    with pytest.raises(InputError, match=r"in row 6 .* and the other figures of the row give"):
        read_sweep(path)
    path.write_text(json.dumps([*rows[:5], rows[5] | {"duration": 0.1}, *rows[6:]]))
    with pytest.warns(InputWarning, match="in row 6 other numbers of requests were in flight"):
        read_sweep(path)


def test_rows_of_several_engines_are_refused(tmp_path: Path) -> None:
    """A published list holds many GPUs and models."""
    rows = [inferencex(run, random.Random(4)) for run in drawn(random.Random(4))]
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([*rows[:4], *(row | {"hw": "b200"} for row in rows[4:])]))
    with pytest.raises(InputError, match="of several engines: hw is b200, h100; keep those of one"):
        read_sweep(path)
    path.write_text(json.dumps([row | {"model": "org/Model-70B"} for row in rows]))
    with pytest.raises(InputError, match="is of the model org/Model-70B, and the fit is for m-8b"):
        read_sweep(path, model="m-8b")
    half = [tmp_path / "one.json", tmp_path / "other.json"]
    half[0].write_text(json.dumps(rows[:4]))
    half[1].write_text(json.dumps([row | {"framework": "sglang"} for row in rows[4:]]))
    assert len(read_sweep([half[0], path], model="m-70b")) == len(rows[:4]) + len(rows)
    half[0].write_text(json.dumps([row | {"framework": "vllm"} for row in rows[:4]]))
    with pytest.raises(InputError, match=r"other.json: framework is sglang, and vllm in a file"):
        read_sweep(half)


@pytest.mark.parametrize(("precision", "tier"), [("bf16", 0), ("fp8", 1), ("nvfp4", 2), ("?", 7)])
def test_the_precision_is_that_of_the_fit(precision: str, tier: int, tmp_path: Path) -> None:
    """An engine with weights of fewer bits is not taken for one in FP16."""
    rows = [inferencex(run, random.Random(4)) for run in drawn(random.Random(4))]
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([row | {"precision": precision} for row in rows]))
    for other in (0, 1, 2):
        if tier in (other, 7):
            assert len(read_sweep(path, tier=other)) == len(rows)
        else:
            with pytest.raises(InputError, match=f"precision {precision}, .* name tier {tier}"):
                read_sweep(path, tier=other)


@pytest.mark.parametrize(("share", "warns"), [(4.0, True), (6.0, False)])
def test_short_runs_are_said(share: float, warns: bool, tmp_path: Path) -> None:
    """A run of few requests for each one in flight is filled and emptied for much of its time."""
    rows = [
        vllm(run._replace(requests=int(share * run.concurrency)), random.Random(6))
        for run in drawn(random.Random(6))
    ]
    path = tmp_path / "short.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    if warns:
        with pytest.warns(InputWarning, match="rows 2, 3, 4, 5, 7, 8 had fewer than 5 requests"):
            read_sweep(path)
    else:
        assert len(read_sweep(path)) == len(rows)
