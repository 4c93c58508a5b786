"""Promises of the comparison with servers whose prompts and decoding have GPUs of their own."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.sim.machine.stack import Stack
from jaxserve.studies.fidelity.disaggregated import (
    Apart,
    DisaggregatedLoops,
    FittedApart,
    LoopTimes,
    decoding_requests,
    disaggregated_fidelity,
    held_out_times,
)
from jaxserve.studies.fidelity.disaggregated_rows import (
    DisaggregatedRow,
    RoleWorkers,
    disaggregated_rows,
)
from tests.studies.fidelity.served_file import write_served

SOURCE = "db-dump/2026-04-27; config_id=590; silicon_concurrency={}; measured=2026-03-23T00:00"
ROW: dict[str, Any] = {
    "silicon_data_source": SOURCE.format(128),
    "backend": "trtllm",
    "backend_version": "0.8.1.post1",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "h200_sxm",
    "precision": "fp8",
    "mode": "disagg",
    "isl": 1024,
    "osl": 1024,
    "prefill_tp_size": 1,
    "prefill_attention_dp_size": 8,
    "prefill_num_workers": 1,
    "decode_tp_size": 1,
    "decode_attention_dp_size": 8,
    "prefill_moe_ep_size": 8,
    "decode_moe_ep_size": 8,
    "decode_num_workers": 9,
    "silicon_ttft_ms": 1700,
    "silicon_tpot_ms": 25,
}


def _written(directory: Path, *changes: dict[str, Any]) -> Path:
    return write_served(directory, ROW, *changes)


def test_a_row_is_of_the_search_space_of_its_day(tmp_path: Path) -> None:
    """The published settings tell workers and drafts, also where the row names layouts alone."""
    rows, left_out = disaggregated_rows(_written(tmp_path, {}, {}))
    (row,) = rows
    assert left_out == {"repeated": 1}
    assert (row.prefill.count, row.prefill.gpus, row.prefill.ranks) == (1, 8, 8)
    assert (row.decode.count, row.decode.gpus, row.decode.ranks) == (9, 8, 8)
    assert (row.drafts, row.concurrency) == (0, 128)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"model_path": "of/another"}, "model"),
        ({"system": "of_another"}, "GPU"),
        ({"silicon_data_source": SOURCE.format(129)}, "recipe"),
        ({"silicon_data_source": SOURCE.format(128).replace("2026-03", "2025-03")}, "recipe"),
        ({"decode_num_workers": 5}, "recipe"),
        ({"decode_num_workers": ""}, "ambiguous"),
        ({"mode": "agg"}, None),
    ],
)
def test_rules_leave_out_rows_by_what_they_name(
    change: dict[str, Any], rule: str | None, tmp_path: Path
) -> None:
    """A row is counted under its rule; one with GPUs of both kinds is none of these."""
    rows, left_out = disaggregated_rows(_written(tmp_path, {}, change))
    assert len(rows) == 1
    assert left_out == ({rule: 1} if rule else {})


def _row(**changes: Any) -> DisaggregatedRow:
    one = RoleWorkers(1, 8, ranks_attend=False, expert_parallel=False, most=float("inf"))
    row = DisaggregatedRow(
        model="deepseek-v3",
        gpu="h200-sxm-141gb",
        stack=Stack("trtllm", formats=("fp8", "fp8", "fp8"), kv_format="fp8"),
        prefill=one,
        decode=dataclasses.replace(one, count=2),
        concurrency=16,
        prompt=1024,
        output=1024,
        drafts=0,
        ttft_s=1.0,
        tpot_s=0.02,
    )
    return dataclasses.replace(row, **changes)


def _times(row: DisaggregatedRow, apart: Apart) -> tuple[DisaggregatedLoops, LoopTimes]:
    """The loop of a row, and its times with these numbers."""
    loops = DisaggregatedLoops([row])
    handoff_s, prefill, launches, experts = np.array([apart]).T
    table = loops.tpot_s(loops.numbers(), launches, experts)
    ttft_s, tpot_s = loops.times(handoff_s, prefill, table)
    return loops, LoopTimes(float(ttft_s[0]), float(tpot_s[0]))


def test_requests_in_flight_are_rate_times_time() -> None:
    """Little's law, where nothing binds, where prefill does, and where the limit of sequences does;
    in the latter two the time to the first token is the wait of a closed loop."""
    limit = dataclasses.replace(_row().decode, most=4)
    for row, bound in (
        (_row(), None),
        (_row(concurrency=2048), "prefill"),
        (_row(decode=limit), 8),
    ):
        loops, times = _times(row, Apart(0.1))
        (own_s,), (transfer_s,), (most_per_s,) = loops.own_s, loops.transfer_s, loops.prefill_per_s
        base_s = own_s + transfer_s + 0.1
        steady_s = (times.ttft_s - 0.1 * base_s) / 0.9
        steady_s -= row.concurrency / (2 * most_per_s) / 9
        rate = row.concurrency / (steady_s + row.mean_output * times.tpot_s)
        assert rate <= most_per_s * 1.001
        if bound == "prefill":
            # The queue of a closed loop is finite, so that the load stays below 1.
            assert rate == pytest.approx(most_per_s, rel=1e-2)
        elif bound:
            assert rate * row.mean_output * times.tpot_s == pytest.approx(bound, rel=1e-3)
        else:
            assert steady_s == pytest.approx(base_s, rel=0.3)


def test_more_decoding_engines_decode_fewer_each() -> None:
    """TPOT is of decoding alone: engines divide the sequences, and prompts add nothing."""
    (_, few), (_, many) = (
        _times(_row(decode=dataclasses.replace(_row().decode, count=count)), Apart(0.0))
        for count in (1, 4)
    )
    assert many.tpot_s < few.tpot_s
    _, longer = _times(_row(prefill=dataclasses.replace(_row().prefill, count=8)), Apart(0.0))
    assert longer.tpot_s == pytest.approx(_times(_row(), Apart(0.0))[1].tpot_s, rel=0.02)


def test_times_between_tabulated_numbers_are_those_of_the_steps() -> None:
    """The interpolated TPOT is that of as many requests as decode by the times found."""
    for concurrency in (1, 3, 50, 700):
        row = _row(concurrency=concurrency)
        loops, times = _times(row, Apart(0.0, 0.01))
        found = dataclasses.replace(row, ttft_s=times.ttft_s, tpot_s=times.tpot_s)
        ones = np.ones(1)
        exact_s = loops.tpot_s(decoding_requests([found]), ones, ones)
        assert times.tpot_s == pytest.approx(exact_s[0], rel=0.02)


def _measured(row: DisaggregatedRow, apart: Apart) -> DisaggregatedRow:
    """The row with the times of these numbers as its measured ones."""
    _, times = _times(row, apart)
    return dataclasses.replace(row, ttft_s=times.ttft_s, tpot_s=times.tpot_s)


def test_the_numbers_of_an_engine_are_found_without_the_judged_third() -> None:
    """Rows made with other numbers give them back, and each row is predicted by the others'."""
    made = Apart(0.3, 1.4, 1.5, 0.5)
    many = dataclasses.replace(_row().prefill, count=64)
    loads = ((4, _row().prefill), (16, _row().prefill), (64, _row().prefill), (96, _row().prefill))
    rows = [
        _measured(_row(concurrency=each, prefill=prefill), made)
        for each, prefill in (*loads, (512, many), (1024, many), (2048, many))
    ]
    assert len({row.fold for row in rows}) > 1
    found = FittedApart(DisaggregatedLoops(rows)).of(rows[0])
    assert found == pytest.approx(made, rel=0.1)
    for row, times in zip(rows, held_out_times(rows), strict=True):
        assert times.ttft_s == pytest.approx(row.ttft_s, rel=0.1)
        assert times.tpot_s == pytest.approx(row.tpot_s, rel=0.05)


def test_a_release_has_numbers_of_its_own() -> None:
    """Where its rows say so; a release without rows has those of all."""
    slow, fast = Apart(0.3, 1.4, 2.0), Apart(0.3, 1.4, 0.7)
    rows = [
        _measured(_row(concurrency=each, release=release), apart)
        for release, apart in (("1", slow), ("2", fast))
        for each in (4, 8, 16, 32, 64, 96)
    ]
    fitted = FittedApart(DisaggregatedLoops(rows))
    first, second, unknown = (fitted.of(_row(release=each)).launches for each in "123")
    assert first == pytest.approx(2.0, rel=0.15)
    assert second == pytest.approx(0.7, rel=0.15)
    assert second < unknown < first


def test_the_page_has_both_times(tmp_path: Path) -> None:
    """With what is left out; nothing without the file."""
    assert disaggregated_fidelity(tmp_path) == []
    tpot, ttft = disaggregated_fidelity(_written(tmp_path, {}, {"system": "of_another"}))
    assert (tpot.bar, ttft.bar) == (12.0, 30.0)
    assert tpot.detail.startswith("1 rows") and tpot.detail.endswith("left out: 1 GPU")
    assert "trtllm without drafts 1 rows" in tpot.detail
