"""Promises of the comparison with measured servers."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import kv_bytes_per_token, weights_bytes
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack
from jaxserve.studies.fidelity.measurements import shared_data
from jaxserve.studies.fidelity.served import served_fidelity
from jaxserve.studies.fidelity.served_fit import (
    KV_SHARE,
    Prediction,
    by_run,
    fit,
    fitted_constants,
    known_version,
)
from jaxserve.studies.fidelity.served_loop import Accepted, Loop
from jaxserve.studies.fidelity.served_recipes import recipe
from jaxserve.studies.fidelity.served_rows import FILE, ServedRow, served_rows, shipped
from tests.studies.fidelity.served_file import write_served

SHARED = shared_data()
needs_silicon = pytest.mark.skipif(
    SHARED is None or not (SHARED / FILE).is_file(),
    reason="measured servers are absent; set JAXSERVE_SHARED to their directory",
)

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
    return write_served(directory, ROW, *changes)


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


MTP = {
    "silicon_data_source": "db-dump/2026-04-27; silicon_concurrency=8; measured=2026-01-14T00:00",
    "backend": "trtllm",
    "backend_version": "1.1.0rc2.post2",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "h200_sxm",
    "precision": "fp8",
    "tp_size": 8,
    "osl": 1024,
    "silicon_tpot_ms": 12,
}


def test_a_row_s_date_says_whether_tokens_were_drafted(tmp_path: Path) -> None:
    """One image was run without drafts, and from a day on with them: two runs, and no twins."""
    earlier = MTP["silicon_data_source"].replace("2026-01-14", "2025-12-15")
    plain = MTP | {"silicon_data_source": earlier, "silicon_tpot_ms": 19}
    rows, _, left_out = served_rows(_written(tmp_path, MTP, plain))
    assert [row.drafts for row in rows] == [3, 0]
    assert len({row.run for row in rows}) == 2
    assert not left_out


def test_what_was_run_both_ways_on_one_day_is_ambiguous(tmp_path: Path) -> None:
    """SGLang's loops of DeepSeek on B200: the date does not tell, the concurrency may."""
    dated = "source_file=2026-03-25.csv; silicon_concurrency={}; measured=2026-03-25"
    sglang = MTP | {"backend": "sglang", "backend_version": "0.5.9", "system": "b200_sxm"}
    changes = [
        sglang | {"silicon_data_source": dated.format(n), "batch_size": n, "silicon_tpot_ms": 40}
        for n in (8, 256)
    ]
    kept, doubtful, left_out = served_rows(_written(tmp_path, *changes))
    assert [(row.concurrency, row.drafts) for row in kept] == [(256, 2)]
    assert list(doubtful.values()) == ["ambiguous"]
    assert left_out == {"ambiguous": 1}


def test_an_image_that_is_not_named_follows_from_the_day() -> None:
    """The source's configuration of that day names it; of other sources nothing is known."""
    where = ("gpt-oss-120b", "b200-sxm-180gb", "trtllm", None, (1, False), (8.0, 1024.0, 1024.0))
    days = [f"source_file=2026-04-06.csv; measured={day}" for day in ("2025-11-02", "2025-12-02")]
    versions = [recipe(source, *where, "mxfp4").version for source in days]
    assert versions == ["1.2.0rc0.post1", "1.2.0rc2"]
    assert recipe("elsewhere", *where, "mxfp4").version is None


def _loop(concurrency: float, prompt: float, **values: Any) -> Loop:
    rest = {"equal": True, "drafts": 0, "most_running": np.inf, "held_iterations": 0, "ranks": 1}
    one = {"concurrency": concurrency, "prompt": prompt, "output": 256.0} | rest | values
    return Loop(**{name: np.array([value]) for name, value in one.items()})


def _cost(engine: str = "vllm") -> CostModel:
    return CostModel.of(*shipped("h100-sxm-80gb", "qwen3-32b", Stack(engine)), 2)


def test_prompts_that_fit_into_an_iteration_share_it() -> None:
    """A loop of short prompts loses no time to the prefill of others; one of long ones does, less
    where the server holds them back or gives one to each of several ranks."""
    cost = _cost()
    short, long = _loop(8, 128), _loop(8, 1024)
    alone_s = long.tpot_s(cost)
    np.testing.assert_allclose(short.tpot_s(cost), cost.decode_s(8, 128 + 128))
    assert alone_s > 1.02 * cost.decode_s(8, 1024 + 128)
    assert _loop(8, 1024, held_iterations=128).tpot_s(cost) < alone_s
    assert _loop(8, 1024, ranks=2).tpot_s(cost) < alone_s


def test_requests_out_of_step_wait_for_every_prompt() -> None:
    """Where prompts have iterations of their own, equal requests meet half of them decoding."""
    cost, drawn = _cost("sglang"), 0.9
    decode_s = cost.decode_s(8, 2048 + 128)
    equal = _loop(8, 2048).tpot_s(cost)
    apart = _loop(8, 2048 / drawn, equal=False, output=256 / drawn).tpot_s(cost)
    np.testing.assert_allclose(apart - decode_s, 2 * (equal - decode_s))


def test_no_more_run_than_the_server_holds() -> None:
    """A limit, or a KV pool, makes a loop one of fewer requests; a server that reserves room for
    the whole output runs fewer still."""
    cost, crowd = _cost(), _loop(64, 1024)
    few_s = _loop(8, 1024).tpot_s(cost)
    limited_s = _loop(64, 1024, most_running=8).tpot_s(cost)
    pool = 8 * (1024 + 128)
    pooled_s = crowd.tpot_s(cost, kv_tokens=pool)
    reserved_s = crowd.tpot_s(cost, kv_tokens=pool, reserves=True)
    np.testing.assert_allclose([limited_s, pooled_s], [few_s, few_s])
    assert reserved_s < pooled_s


def test_drafts_that_are_right_are_tokens() -> None:
    """A step with drafts is divided by the tokens that it yields, more where outputs are long."""
    cost, drafting = _cost(), _loop(8, 128, drafts=3)
    half = Accepted(short=0.5, long=0.5)
    step_s = cost.decode_s(8, 128 + 128, 3)
    found_s = drafting.tpot_s(cost, accepted=half)
    np.testing.assert_allclose(found_s, step_s / (1 + 0.5 + 0.25 + 0.125))


def test_fit_finds_the_constants_that_rows_were_made_with(tmp_path: Path) -> None:
    """Rows of the model itself are predicted without error where its constants are those that the
    priors draw to, far from the shipped ones; with another host time, with what priors cost."""
    changes = [{"batch_size": batch, "tp_size": tp} for batch in (8, 16, 64) for tp in (2, 4, 8)]
    rows, _, _ = served_rows(_written(tmp_path, *changes))
    constants = fitted_constants(rows)
    prediction = Prediction(rows, constants)
    centres = np.array([each.centre for each in constants])
    slower = prediction.start() * np.where([each.field == "host_s" for each in constants], 1.5, 1.0)
    shipped_s = prediction.tpot_s(prediction.start())
    assert (np.abs(prediction.tpot_s(centres) / shipped_s - 1) > 1e-2).all()
    for values, error in ((centres, 1e-3), (slower, 2e-2)):
        made = [
            dataclasses.replace(row, tpot_s=float(tpot_s))
            for row, tpot_s in zip(rows, prediction.tpot_s(values), strict=True)
        ]
        found = Prediction(made, constants).tpot_s(fit(made, constants))
        np.testing.assert_allclose(found, [row.tpot_s for row in made], rtol=error)


def test_a_run_is_held_out_whole(tmp_path: Path) -> None:
    """All rows of a run are in one part."""
    rows, _, _ = served_rows(_written(tmp_path, *({"batch_size": n} for n in (4, 8, 16, 32))))
    assert len({by_run(row) for row in rows}) == 1 < len({row.fold for row in rows})


def test_what_is_left_out_is_counted_on_the_page(tmp_path: Path) -> None:
    """Each check says which rows of its own it leaves out and what they would change, and one check
    has all rows that hardware could have done."""
    changes = [{"batch_size": batch} for batch in (4, 8, 16, 32)]
    doubts = [{"batch_size": 16, "silicon_tpot_ms": 40}, {"silicon_ttft_ms": 1e4}]
    rest = [{"mode": "disagg"}, {"silicon_tpot_ms": 1, "batch_size": 64}]
    group, everything, *choices = served_fidelity(_written(tmp_path, *changes, *doubts, *rest))
    assert [row.bar for row in choices] == [2.5, 8.0, 3.0]
    assert group.detail.startswith("3 rows of 1 runs")
    assert "2 ambiguous, 1 queue left out, with them" in group.detail
    assert everything.check.endswith("all rows but the impossible ones")
    assert everything.detail.startswith("6 rows")
    assert everything.detail.endswith("left out: 1 disaggregated, 1 impossible")


@pytest.mark.slow
@needs_silicon
def test_a_stack_is_never_worse_than_none() -> None:
    """On any measured run of a dense model in a format that a GPU's file has without a stack, of
    three rows or more, with the stack of its version, by the closed loop that fills tables."""
    assert SHARED is not None
    rows, _, _ = served_rows(SHARED)
    rows = [row for row in rows if not isinstance(load_model(row.model), LargeModel)]
    rows = [row for row in rows if row.stack.formats[0] in _TIER_OF]
    runs: dict[Any, list[ServedRow]] = {}
    for row in rows:
        runs.setdefault(row.run, []).append(row)
    judged = [run for run in runs.values() if len(run) >= 3]
    assert len(judged) >= 10
    for run in judged:
        errors = np.array([_errors(row) for row in run])
        assert errors[:, 0].mean() <= errors[:, 1].mean(), run[0].run


def _errors(row: ServedRow) -> tuple[float, float]:
    """Relative errors of TPOT with a stack and without."""
    gpu, model = shipped(row.gpu, row.model, known_version(row.stack))
    plain_gpu, plain = load_gpu(row.gpu), load_model(row.model)
    tier = _TIER_OF[row.stack.formats[0]]
    loop = Loop(*(np.array([getattr(row, field.name)]) for field in dataclasses.fields(Loop)))
    found = []
    for cost, served, at in (
        (CostModel.of(gpu, model, row.gpus), model, 0),
        (CostModel.of(plain_gpu, plain, row.gpus), plain, tier),
    ):
        left = plain_gpu.memory_bytes - weights_bytes(served, at, row.gpus)
        kv_tokens = KV_SHARE * left / kv_bytes_per_token(served, False, row.gpus)
        seconds = loop.through_table_s(cost, kv_tokens, at)
        found.append(abs(float(seconds[0]) / row.tpot_s - 1))
    return found[0], found[1]


_TIER_OF = {"bf16": 0, "fp8": 1}
"""Tiers without a stack: INT8 runs as FP8 does."""
