"""Measured kernels become a table, with the error of rows that the fit was not shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.sim.fit import kernel_fit
from jaxserve.sim.fit.kernel_table import WORST_ERROR, fit_kernels
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import Gpu, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import read_table_file
from jaxserve.studies.fidelity.kernels import FILES
from jaxserve.studies.fidelity.measurements import shared_data
from jaxserve.studies.fidelity.vllm_run import DIRECTORY
from tests.sim.fit.kernel_samples import GPU, MODEL, write_kernels, write_profile

SHARED = shared_data()
needs_shared = pytest.mark.skipif(
    SHARED is None, reason="measured kernels are absent; set JAXSERVE_SHARED to their directory"
)
_LOADS = (
    {"decode_seqs": 32, "kv_tokens": 32e3},
    {"decode_seqs": 8, "kv_tokens": 4e3, "chunks": ((1024, 512),)},
)


def _slower() -> Gpu:
    """The GPU whose kernels are measured: none of its constants is that of the prior."""
    factors = {"bandwidth_efficiency": 0.8, "flops_efficiency": 0.7}
    changes = {"linear.layer_constant_s": 5e-6}
    for kind in kernel_fit.CONSTANTS:
        for path, value in kernel_fit.constants(GPU, kind).items():
            if value:
                changes[path] = value * factors.get(path.split(".")[-1], 0.9)
    return kernel_fit.with_constants(GPU, changes)


@pytest.mark.parametrize("write", [write_kernels, write_profile])
def test_the_table_has_the_times_of_the_gpu(
    tmp_path: Path, write: Callable[[Path, Gpu], list[Path]]
) -> None:
    """What the files show is found; what they do not stays as it was."""
    truth, out = _slower(), tmp_path / "mine.parquet"
    report = fit_kernels(write(tmp_path, truth), GPU, MODEL, out)
    assert max(fit.held_out_error for fit in report.fits) < 0.01
    assert all(fit.extrapolations for fit in report.fits)
    found = read_table_file(out).metadata.cost_model
    if report.kept:
        assert report.kept == ("elementwise", "head") and report.iterations is None
        linear = dataclasses.replace(truth.linear[0], layer_constant_s=0.0)
        truth = dataclasses.replace(
            truth,
            linear=(linear, *truth.linear[1:]),
            elementwise_s_per_token=GPU.elementwise_s_per_token,
            head_bandwidth_efficiency=GPU.head_bandwidth_efficiency,
            head_flops_efficiency=GPU.head_flops_efficiency,
        )
    else:
        assert report.iterations is not None and report.iterations.error < 0.01
    expected = CostModel.of(truth, MODEL)
    for load in _LOADS:
        assert found.iteration_s(**load) == pytest.approx(expected.iteration_s(**load), rel=0.01)
    assert found.host_s == GPU.host_s


def test_other_tiers_keep_their_proportion(tmp_path: Path) -> None:
    """The weights of INT4 stream as much slower as those of FP16."""
    report = fit_kernels(write_kernels(tmp_path, _slower()), GPU, MODEL, tmp_path / "t.parquet")
    found, prior = report.table.metadata.cost_model, CostModel.of(GPU, MODEL)
    ratios = np.array(found.weight_read_s) / np.array(prior.weight_read_s)
    np.testing.assert_allclose(ratios, 1 / 0.8, rtol=0.01)


def _rows(keep: Callable[[dict], bool], name: str = "gemm_perf") -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / f"{name}.parquet"
        table = parquet.read_table(path)
        mask = [keep(row) for row in table.to_pylist()]
        parquet.write_table(table.filter(mask), path)

    return change


def _shuffle(directory: Path) -> None:
    path = directory / "context_attention_perf.parquet"
    table = parquet.read_table(path)
    order = np.random.default_rng(0).permutation(len(table))
    place = table.schema.get_field_index("latency")
    parquet.write_table(table.set_column(place, "latency", table["latency"].take(order)), path)


@pytest.mark.parametrize(
    ("change", "unit_s", "message"),
    [
        (_rows(lambda row: row["m"] < 16), 1e-3, "4 rows are of linear layers of llama-3.1-8b"),
        (
            _rows(lambda row: row["batch_size"] < 4, "generation_attention_perf"),
            1e-3,
            "decode attention have 2 different sequences; at least 3 are needed",
        ),
        (lambda directory: None, 1e-6, "time of linear layers is 1e\\+03 times what is expected"),
        (lambda directory: None, 1.0, "times what is expected; latency must be in milliseconds"),
        (_shuffle, 1e-3, "off in prefill attention that it was not shown, beyond 15%, so no table"),
    ],
)
def test_no_table_of_rows_that_say_too_little(
    tmp_path: Path, change: Callable[[Path], None], unit_s: float, message: str
) -> None:
    """With what is wrong, and no file."""
    paths = write_kernels(tmp_path, unit_s=unit_s)
    change(tmp_path)
    with pytest.raises(InputError, match=message):
        fit_kernels(paths, GPU, MODEL, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_undetermined_constants_are_refused(tmp_path: Path) -> None:
    """Short iterations, in which weights are all that counts, say nothing of arithmetic."""
    slow_memory = kernel_fit.with_constants(GPU, {"linear.bandwidth_efficiency": 0.08})
    paths = write_kernels(tmp_path, slow_memory)
    _rows(lambda row: row["m"] <= 128)(tmp_path)
    with pytest.raises(InputError, match=r"\(1 to 128 tokens\) do not determine flops_efficiency"):
        fit_kernels(paths, GPU, MODEL, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_faster_gpu_is_not_the_one_named(tmp_path: Path) -> None:
    """Kernels beyond the peaks of a data sheet."""
    paths = write_kernels(tmp_path, load_gpu("h200-sxm-141gb"))
    with pytest.raises(InputError, match="of the memory bandwidth of a100-sxm-80gb: name the GPU"):
        fit_kernels(paths, load_gpu("a100-sxm-80gb"), MODEL, tmp_path / "out.parquet")


def test_models_with_experts_are_refused(tmp_path: Path) -> None:
    """Their kernels are not known."""
    experts = load_model("qwen3-30b-a3b")
    with pytest.raises(InputError, match="qwen3-30b-a3b is not a dense model"):
        fit_kernels(write_kernels(tmp_path), GPU, experts, tmp_path / "out.parquet")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how far off the fit is; a file that is none of kernels leaves no table."""
    out = tmp_path / "mine.parquet"
    options = ["--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b", "--out", str(out)]
    files = [str(path) for path in write_kernels(tmp_path)]
    assert cli.main(["table", "fit-kernels", *files, *options]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed and "decode attention" in printed
    assert read_table_file(out).metadata.fit_error is not None
    out.unlink()
    (tmp_path / "log.csv").write_text("t,running\n1,2\n")
    files[0] = str(tmp_path / "log.csv")
    assert cli.main(["table", "fit-kernels", *files, *options]) == 2
    assert "has the columns t, running, which are of no known kind" in capsys.readouterr().err
    assert not out.exists()


@needs_shared
@pytest.mark.parametrize("gpu_name", list(FILES))
def test_measured_kernels_of_vllm(gpu_name: str, tmp_path: Path) -> None:
    """The errors are within the bounds, for one GPU and for two, and times are near those that are
    shipped, which are fits to the same rows and those of TensorRT-LLM."""
    assert SHARED is not None
    names = [names[-1] for names in FILES[gpu_name].values()]
    paths = [SHARED / "kernels" / name for name in names]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"kernels of {gpu_name} are absent")
    gpu = load_gpu(gpu_name)
    for tp in (1, 2):
        report = fit_kernels(paths, gpu, MODEL, tmp_path / "t.parquet", tensor_parallel=tp)
        assert all(0.001 < fit.held_out_error < 0.05 for fit in report.fits)
        assert all(edge.error < WORST_ERROR for fit in report.fits for edge in fit.extrapolations)
        assert "fitted to kernels of VLLM 0." in report.table.metadata.source
        if tp == 1:
            for load in _LOADS:
                shipped_s = CostModel.of(gpu, MODEL).iteration_s(**load)
                found_s = report.table.metadata.cost_model.iteration_s(**load)
                assert found_s == pytest.approx(shipped_s, rel=0.06)


@needs_shared
def test_a_measured_profile_explains_the_log_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the profile of an RTX 4090 to the latencies of a real server on it."""
    assert SHARED is not None
    rtx_4090 = {
        "base": "l40s-48gb",
        "memory": {"memory_bytes": 25250627584, "bandwidth_bytes_per_s": 1.008e12},
        "linear": {"fp16": {"flops_per_s": 165.2e12}},
        "source": "data sheet",
    }
    (tmp_path / "rtx4090.json").write_text(json.dumps(rtx_4090))
    run, out = SHARED / DIRECTORY, tmp_path / "mine.parquet"
    gpu = load_gpu(str(tmp_path / "rtx4090.json"))
    report = fit_kernels(sorted(run.glob("profile_*.csv")), gpu, MODEL, out)
    assert report.kept == () and report.iterations is not None
    assert report.iterations.error < 0.08
    options = ["--table", str(out), "--batch-cap", "256", "--kv-tokens", "41392"]
    assert cli.main(["simulate", str(run / "requests.jsonl"), *options]) == 0
    printed = capsys.readouterr().out
    for quantity in ("TTFT mean", "TPOT mean"):
        (line,) = (line for line in printed.splitlines() if quantity in line)
        assert abs(float(line.split()[-2])) < 5.0
