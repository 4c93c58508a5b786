"""Fitting a user's load test: what the rows identify is found, and the rest stays at the prior."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.fit.load_test import FitReport, GpuPeaks, MeasuredEngine, fit, fit_sweep, rescale
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import Gpu, load_gpu
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.closed_loop import closed_loop
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.table.lookup import latency_table
from jaxserve.studies.fidelity.measurements import shared_data

GPU, MODEL = load_gpu("a100-sxm-80gb"), load_model("llama-3.1-8b")
MEASURED = "measured_h100_llama31_8b_trtllm.csv"

# Concurrency, prompt, output: enough to tell weights, arithmetic and KV apart.
POINTS = np.array(
    [(c, p, o) for c in (1, 4, 16, 64, 128) for p, o in ((128, 256), (1024, 128), (4096, 512))]
).T


def measure(gpu: Gpu, points: np.ndarray = POINTS) -> Sweep:
    """What a load test on ``gpu`` would show if its cost model were the truth."""
    loop = closed_loop(
        CostModel.of(gpu, MODEL), *points, kv_tokens=kv_capacity_tokens(gpu, MODEL, 0, 1.0, False)
    )
    concurrency, prompt, output = points.astype(float)
    return Sweep(concurrency, prompt, output, loop.tpot_s, loop.ttft_p50_s)


def perturbed(weights: float, arithmetic: float, kv: float, host: float) -> Gpu:
    """The A100 with other efficiencies; every factor multiplies a time."""
    bf16 = GPU.linear[0]
    linear = dataclasses.replace(
        bf16,
        bandwidth_efficiency=bf16.bandwidth_efficiency / weights,
        flops_efficiency=bf16.flops_efficiency / arithmetic,
    )
    attention = dataclasses.replace(
        GPU.attention, bandwidth_efficiency=GPU.attention.bandwidth_efficiency / kv
    )
    return dataclasses.replace(
        GPU,
        linear=(linear, *GPU.linear[1:]),
        head_bandwidth_efficiency=GPU.head_bandwidth_efficiency / weights,
        head_flops_efficiency=GPU.head_flops_efficiency / arithmetic,
        attention=attention,
        host_s=GPU.host_s * host,
    )


def factors(report: FitReport) -> dict[str, float]:
    return {constant.name: constant.factor for constant in report.constants}


def test_the_truth_is_a_fixed_point() -> None:
    """A sweep that the prior explains leaves every constant where it is."""
    report = fit_sweep(measure(GPU), GPU, MODEL, source="test")
    assert report.tpot_error < 1e-4
    assert report.prior_tpot_error < 1e-9
    assert all(factor == pytest.approx(1.0, abs=1e-3) for factor in factors(report).values())


factor = st.floats(0.85, 1.35)


@pytest.mark.slow
@settings(max_examples=8)
@given(weights=factor, arithmetic=factor, kv=factor, host=st.floats(0.5, 3.0))
def test_perturbed_efficiencies_are_recovered(
    weights: float, arithmetic: float, kv: float, host: float
) -> None:
    """From rows that a perturbed cost model generates the fit finds its way back.

    Host time and weight streaming are both paid once per iteration, so their sum is what is
    identified; each is held to the range in which the other can make up for it.
    """
    report = fit_sweep(measure(perturbed(weights, arithmetic, kv, host)), GPU, MODEL, source="test")
    found = factors(report)
    assert report.tpot_error < 0.01
    assert report.held_out_tpot_error < 0.02
    assert found["weight streaming"] == pytest.approx(weights, rel=0.10)
    assert found["linear arithmetic"] == pytest.approx(arithmetic, rel=0.12)
    assert found["KV streaming"] == pytest.approx(kv, rel=0.08)
    truth = CostModel.of(perturbed(weights, arithmetic, kv, host), MODEL)
    cost = report.table.metadata.cost_model
    fixed_s = cost.host_s + cost.weight_read_s[0]
    assert fixed_s == pytest.approx(truth.host_s + truth.weight_read_s[0], rel=0.03)


def test_constants_that_no_row_shows_stay_at_the_prior() -> None:
    """Short contexts at concurrency 1 to 8 say nothing about KV or prefill attention."""
    points = np.array([(c, 64, 512) for c in (1, 2, 3, 4, 5, 6, 7, 8)]).T
    slower = perturbed(1.2, 1.3, 1.3, 1.0)
    report = fit_sweep(measure(slower, points), GPU, MODEL, source="test")
    known = {constant.name: constant.known for constant in report.constants}
    assert factors(report)["weight streaming"] == pytest.approx(1.2, rel=0.05)
    for name in ("KV streaming", "prefill attention"):
        assert factors(report)[name] == pytest.approx(1.0, abs=0.03)
        assert known[name] < 0.1 < known["weight streaming"]


@given(prompts=st.sets(st.sampled_from([256, 1024, 4096]), min_size=1))
@settings(max_examples=5)
def test_lengths_of_which_there_is_one(prompts: set[int]) -> None:
    """Are named, as nothing is known beyond them."""
    points = np.array([(c, p, 128) for c in (1, 4, 16, 64) for p in prompts]).T
    prompt = {"prompts": float(min(prompts))} if len(prompts) == 1 else {}
    assert measure(GPU, points).single_lengths() == prompt | {"outputs": 128.0}


def test_wrong_ttft_does_not_bend_the_fit() -> None:
    """A load generator that adds the wait for a slot to TTFT costs TPOT nothing."""
    sweep = measure(perturbed(1.1, 1.1, 1.1, 1.0))
    assert sweep.ttft_s is not None
    shifted = dataclasses.replace(sweep, ttft_s=sweep.ttft_s + sweep.output_tokens * sweep.tpot_s)
    clean, bent = (fit_sweep(rows, GPU, MODEL, source="test") for rows in (sweep, shifted))
    assert bent.tpot_error < 0.01
    assert bent.ttft_error is not None and bent.ttft_error > 0.5
    for name, value in factors(clean).items():
        assert factors(bent)[name] == pytest.approx(value, rel=0.1)


def test_one_outlier_does_not_spoil_the_rest() -> None:
    """A run that was disturbed is reported as the worst row and hardly moves the others."""
    sweep = measure(GPU)
    tpot_s = sweep.tpot_s.copy()
    tpot_s[6] *= 2.0
    report = fit_sweep(dataclasses.replace(sweep, tpot_s=tpot_s), GPU, MODEL, source="test")
    assert report.worst_row[0] == 7
    assert report.worst_row[1] == pytest.approx(-0.5, abs=0.05)
    fitted = closed_loop(report.table.metadata.cost_model, *POINTS)
    others = np.arange(len(sweep)) != 6
    assert np.abs(fitted.tpot_s / sweep.tpot_s - 1)[others].mean() < 0.02


def test_held_out_rows_are_not_fitted() -> None:
    """Noise can be fitted but not predicted, so the held-out error is the larger one."""
    sweep = measure(GPU)
    noise = np.exp(0.1 * np.random.default_rng(3).standard_normal(len(sweep)))
    noisy = dataclasses.replace(sweep, tpot_s=sweep.tpot_s * noise)
    report = fit_sweep(noisy, GPU, MODEL, source="test")
    assert report.held_out_tpot_error > report.tpot_error > 0.02
    errors = [report.held_out_tpot_error, *(each.error for each in report.extrapolations)]
    assert report.table.metadata.fit_error == max(errors)


def test_a_faster_gpu_than_the_prior_allows_is_pointed_out() -> None:
    """No efficiency passes the peak; the constants that would have to are marked."""
    faster = rescale(GPU, GpuPeaks(bandwidth_gb_per_s=4000, bf16_tflops=900))
    report = fit_sweep(measure(faster), GPU, MODEL, source="test")
    limited = {constant.name for constant in report.constants if constant.at_limit}
    assert {"weight streaming", "linear arithmetic"} <= limited
    assert report.tpot_error > 0.1
    for constant in report.constants:
        if constant.name == "weight streaming":
            assert constant.factor >= GPU.linear[0].bandwidth_efficiency * 0.999


def test_rescale_moves_every_time_with_its_peak() -> None:
    """Twice the bandwidth and arithmetic halve what they bound and leave the host alone."""
    peaks = GpuPeaks(
        bandwidth_gb_per_s=2 * GPU.bandwidth_bytes_per_s / 1e9,
        bf16_tflops=2 * GPU.linear[0].flops_per_s / 1e12,
        memory_gib=160.0,
    )
    doubled = rescale(GPU, peaks)
    before, after = CostModel.of(GPU, MODEL), CostModel.of(doubled, MODEL)
    assert doubled.memory_bytes == pytest.approx(160 * 2**30)
    assert after.host_s == before.host_s
    for name in ("kv_read_s_per_token", "elementwise_s_per_token", "prefill_s_per_pair"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) / 2)
    assert after.weight_read_s == pytest.approx([x / 2 for x in before.weight_read_s])
    assert after.linear_s_per_token == pytest.approx([x / 2 for x in before.linear_s_per_token])
    assert rescale(GPU, GpuPeaks()) == GPU


def sweep_csv(path: Path, sweep: Sweep) -> Path:
    """The sweep as a user would have it."""
    assert sweep.ttft_s is not None
    lines = ["max_concurrency,random_input_len,random_output_len,median_ttft_ms,mean_tpot_ms"]
    for row in zip(
        sweep.concurrency,
        sweep.prompt_tokens,
        sweep.output_tokens,
        1e3 * sweep.ttft_s,
        1e3 * sweep.tpot_s,
        strict=True,
    ):
        lines.append(",".join(f"{value:.6g}" for value in row))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_fit_writes_a_table_that_loads(tmp_path: Path) -> None:
    """The file has the fitted constants and can be used at once."""
    path = sweep_csv(tmp_path / "mine.csv", measure(perturbed(1.2, 1.1, 1.0, 2.0)))
    out = tmp_path / "mine.parquet"
    report = fit(path, GPU.name, MODEL.name, out)
    file = read_table_file(out)
    metadata = file.metadata
    assert metadata == report.table.metadata
    assert metadata.source == "fitted to mine.csv, 15 rows, prior a100-sxm-80gb"
    assert metadata.fit_error is not None
    assert metadata.fit_error >= report.held_out_tpot_error
    assert metadata.cost_model.host_s > GPU.host_s
    assert np.isfinite(latency_table(file).seconds).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_name": "b300"}, r"gpu is 'b300'"),
        ({"model_name": "gpt"}, r"model is 'gpt'"),
        ({"out": "table.csv"}, r"out is 'table.csv'; it must be a path that ends in .parquet"),
        (
            {"engine": MeasuredEngine(tier=3)},
            r"tier is 3; it must be a whole number from 0 to 2",
        ),
        (
            {"engine": MeasuredEngine(tensor_parallel=5)},
            r"tensor_parallel is 5; it must be a positive divisor",
        ),
        (
            {"peaks": GpuPeaks(bandwidth_gb_per_s=0.0)},
            r"bandwidth_gb_per_s is 0.0; it must be a finite",
        ),
        (
            {"peaks": GpuPeaks(bf16_tflops=float("nan"))},
            r"bf16_tflops is nan; it must be a finite number above 0",
        ),
        ({"peaks": GpuPeaks(memory_gib=8.0)}, r"llama-3.1-8b does not fit"),
        (
            {"engine": MeasuredEngine(token_budget=1)},
            r"token_budget is 1; it must be a whole number from 64 to 65536",
        ),
        ({"path": "slow.csv"}, r"sweep file slow.csv: its TPOT is 1e\+03 times what is expected"),
        (
            {"path": "uneven.csv"},
            r"sweep file uneven.csv: the fit is \d+% off in TPOT, .* at most 15% is accepted",
        ),
        (
            {"path": "beyond.csv"},
            r"beyond.csv: a fit to the other rows is \d+% off in TPOT of rows from .* in flight",
        ),
        ({"path": "missing.csv"}, r"sweep file missing.csv does not exist"),
    ],
)
def test_bad_input_writes_nothing(
    arguments: dict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake is named, and no file appears."""
    monkeypatch.chdir(tmp_path)
    sweep = measure(GPU)
    sweep_csv(Path("sweep.csv"), sweep)
    assert sweep.ttft_s is not None
    slow = dataclasses.replace(sweep, tpot_s=sweep.tpot_s * 1e3, ttft_s=sweep.ttft_s * 1e3)
    sweep_csv(Path("slow.csv"), slow)
    uneven = sweep.tpot_s * np.where(np.arange(len(sweep)) % 2, 0.5, 1.5)
    sweep_csv(Path("uneven.csv"), dataclasses.replace(sweep, tpot_s=uneven))
    # Something that only shows with the most requests in flight, in a fifth of the rows.
    beyond = np.where(sweep.concurrency == 128, 2.0, 1.0) * sweep.tpot_s
    sweep_csv(Path("beyond.csv"), dataclasses.replace(sweep, tpot_s=beyond))
    before = sorted(os.listdir())
    usual = {
        "path": "sweep.csv",
        "gpu_name": GPU.name,
        "model_name": MODEL.name,
        "out": "table.parquet",
    }
    with pytest.raises(InputError, match=message):
        fit(**(usual | arguments))
    assert sorted(os.listdir()) == before


def measured() -> Path:
    directory = shared_data()
    if directory is None or not (directory / MEASURED).is_file():
        pytest.skip(f"{MEASURED} is not here")
    return directory / MEASURED


@pytest.mark.parametrize(
    ("prior", "peaks"),
    [
        ("h100-sxm-80gb", GpuPeaks()),
        ("a100-sxm-80gb", GpuPeaks(bandwidth_gb_per_s=3350.0, bf16_tflops=989.0)),
    ],
)
def test_measured_h100(prior: str, peaks: GpuPeaks, tmp_path: Path) -> None:
    """Real rows: TPOT of held-out points within 3 %, also from another GPU's efficiencies."""
    report = fit(
        measured(),
        prior,
        MODEL.name,
        tmp_path / "h100.parquet",
        peaks=peaks,
        engine=MeasuredEngine(token_budget=8192),
    )
    assert report.rows == 21
    assert report.held_out_tpot_error < 0.03
    assert not any(constant.at_limit for constant in report.constants)
    assert all(each.error < 0.06 for each in report.extrapolations)
    assert len(report.extrapolations) == 2
