"""From measurements to a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxserve
from jaxserve.errors import InputError
from jaxserve.live.calibration.calibrate import (
    Deployed,
    PoorFit,
    calibrated,
    report_sentences,
    report_table,
)
from jaxserve.live.calibration.plan import MAX_ERROR, CalibrationPlan
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import read_table_file, write_table_file
from tests.compiled_env import reset, step
from tests.live.calibration.batching import measured_in_virtual_time

DEPLOYED = Deployed("a100-sxm-40gb", "llama-3.1-8b")
A100 = CostModel.of(load_gpu(DEPLOYED.hardware), load_model(DEPLOYED.model))
PLAN = CalibrationPlan((1, 2, 4, 8, 16, 32), (64, 256, 768), (24, 96))


@pytest.fixture(scope="module", params=[True, False], ids=["steps", "load test"])
def measured(request: pytest.FixtureRequest):
    return measured_in_virtual_time(
        A100, PLAN, steps_told=request.param, noise=0.02, frontend_s=0.004, kv_pool_tokens=50_000
    )


def test_a_calibrated_table_drives_the_simulator(measured, tmp_path: Path) -> None:
    """It is read back as written; its times and its KV pool are those of the engine."""
    report = calibrated(measured, DEPLOYED)
    path = tmp_path / "mine.parquet"
    write_table_file(path, report.table)
    file = read_table_file(path)
    assert file.metadata == report.table.metadata
    assert file.metadata.calibration == report.calibration
    env = jaxserve.make("static_workload", table=path)
    assert np.asarray(env.deployment.kv_pool_tokens).tolist() == [[50_000] * 2] * 3
    other = jaxserve.make(
        "static_workload", table=path, overrides={"deployment": {"kv_pool_tokens": 9_000}}
    )
    assert float(other.deployment.kv_pool_tokens[0, 0]) == 9_000
    state, _ = reset(env, jax.random.key(0))
    _, timestep = step(env, state, jaxserve.make_action(batch_cap=32))
    assert np.isfinite(timestep.reward)
    for batch, context in ((1, 100), (16, 500), (64, 1000)):
        found = file.metadata.cost_model.decode_s(batch, context)
        assert found == pytest.approx(A100.decode_s(batch, context), rel=0.1)


def test_tokens_that_come_in_bursts(measured) -> None:
    """Do not matter where the engine tells its steps: the latency is what it was."""
    sweep = measured.load_test
    bursts = replace(
        measured,
        load_test=replace(
            sweep, tpot_s=np.full(len(sweep), 1e-5), ttft_s=measured.latency_s * 0.99
        ),
    )
    if measured.steps is None:
        with pytest.raises(InputError, match="no table was written"):
            calibrated(bursts, DEPLOYED)
    else:
        report = calibrated(bursts, DEPLOYED)
        assert np.abs(report.latency_errors).mean() < 0.05
        assert report.calibration.frontend_s == pytest.approx(0.004, abs=0.003)


def test_what_was_not_measured_is_said(measured) -> None:
    """In the table and in what is printed; the other tiers have the same times."""
    report = calibrated(measured, DEPLOYED)
    said = "only tier 0 (FP16) was measured and the other tiers are copies of it; only depth 0"
    assert said in report.table.metadata.source
    assert any(said in sentence for sentence in report_sentences(report))
    itl_ms = report.table.columns["itl_ms"]
    np.testing.assert_array_equal(itl_ms[:, :, :, 0], itl_ms[:, :, :, 2])
    assert "each context token" in str(report_table(report))
    assert report.calibration.depths == (0,)
    assert report.calibration.frontend_s == pytest.approx(0.004, abs=0.002)


def test_a_poor_fit_is_refused(measured) -> None:
    """Times that do not follow from the loads make no table."""
    rng = np.random.default_rng(0)
    sweep = measured.load_test
    factors = rng.lognormal(0, 1.0, len(sweep))
    wild = replace(measured, load_test=replace(sweep, tpot_s=sweep.tpot_s * factors))
    if measured.steps is not None:
        steps = measured.steps
        kinds = rng.lognormal(0, 1.0, 100)[(steps.kv_tokens / 50).astype(int) % 100]
        wild = replace(measured, steps=replace(steps, seconds=steps.seconds * kinds))
    for wrong in (wild, replace(measured, latency_s=measured.latency_s * factors)):
        with pytest.raises(InputError, match=f"beyond {MAX_ERROR:.0%}, so no table was written"):
            calibrated(wrong, DEPLOYED)


def test_a_larger_error_is_accepted_only_in_writing(measured) -> None:
    """The table says so, and its error is the larger one; the loads that are off are named in
    either case, with their side."""
    slow = measured.load_test.prompt_tokens == 768
    other_work = replace(measured, latency_s=measured.latency_s * np.where(slow, 3.0, 1.0))
    with pytest.raises(PoorFit, match="--accept takes a larger error") as refused:
        calibrated(other_work, DEPLOYED)
    rows = refused.value.loads.rows
    assert len(rows) == slow.sum() and {row[1] for row in rows} == {"768"}
    assert all(row[-1].startswith("-6") for row in rows)
    report = calibrated(other_work, DEPLOYED, accept=0.4)
    assert report.loads_off.rows == rows
    metadata = report.table.metadata
    assert metadata.source.endswith("errors up to 40% were accepted")
    assert metadata.fit_error == np.abs(report.latency_errors).mean() > 0.15


def test_points_that_were_left_out_are_named(measured) -> None:
    """Beside what was measured."""
    told = report_sentences(calibrated(replace(measured, left_out=("24 in flight",)), DEPLOYED))
    assert told[-1] == "left out: 24 in flight"


def test_requests_that_the_engine_lets_wait_do_not_run(measured) -> None:
    """A batch cap that the engine tells bounds the concurrency that TPOT is predicted for."""
    if measured.steps is None:
        pytest.skip("only the plug-in tells it")
    capped = CalibrationPlan((1, 2, 4, 8), PLAN.prompt_tokens, PLAN.output_tokens)
    small = measured_in_virtual_time(A100, capped)
    sweep = small.load_test
    more = np.where(sweep.concurrency == 8, 64.0, 1.0)
    waiting = replace(
        small,
        load_test=replace(sweep, concurrency=sweep.concurrency * more),
        latency_s=small.latency_s * more,
    )
    report = calibrated(replace(waiting, batch_cap=8), DEPLOYED)
    assert np.abs(report.latency_errors).max() < 0.1
    with pytest.raises(InputError, match="on the latency of the requests"):
        calibrated(waiting, DEPLOYED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hardware": "tpu"}, "gpu is 'tpu'"),
        ({"model": "gpt"}, "model is 'gpt'"),
        ({"tier": 3}, "--tier is 3"),
        ({"tensor_parallel": 0}, "--tensor-parallel is 0"),
        ({"token_budget": 1}, "--token-budget is 1"),
    ],
)
def test_bad_descriptions(changes: dict, said: str) -> None:
    """Are refused before anything is measured."""
    with pytest.raises(InputError, match=said):
        replace(DEPLOYED, **changes).load()
