"""Promises of the kernel comparison; measured files are optional, so most of it is synthetic."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from jaxserve.fidelity import kernels
from jaxserve.fidelity.sources import shared_data
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model

MODEL = load_model("llama-3.1-8b")
GPU = load_gpu("h100-sxm-80gb")
SHARED = shared_data()
needs_shared = pytest.mark.skipif(
    SHARED is None, reason="measured kernels are absent; set JAXSERVE_SHARED to their directory"
)


def _exact_rows(kind: str) -> kernels.KernelRows:
    """Exact times of the shipped model over a grid of batches and lengths."""
    size, length = (
        grid.ravel() for grid in np.meshgrid(2.0 ** np.arange(9), 2.0 ** np.arange(7, 14))
    )
    empty = kernels.KernelRows(size, length, np.ones(size.size))
    return dataclasses.replace(empty, seconds=kernels.predicted_s(GPU, MODEL, kind, empty))


@pytest.mark.parametrize("kind", ["linear", "decode", "prefill"])
def test_fit_recovers_the_constants_that_made_the_rows(kind: str) -> None:
    """Rows computed from known constants give those constants back from another start."""
    rows = _exact_rows(kind)
    block = GPU.linear[0] if kind == "linear" else GPU.attention
    names = kernels._FITTED[kind]
    shifted = dataclasses.replace(block, **{name: getattr(block, name) * 1.2 for name in names})
    if kind == "linear":
        start = dataclasses.replace(GPU, linear=(shifted, *GPU.linear[1:]))
    else:
        start = dataclasses.replace(GPU, attention=shifted)
    fitted = kernels.fit(start, MODEL, kind, [rows])
    found = fitted.linear[0] if kind == "linear" else fitted.attention
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(block, name), rel=1e-3)
    assert np.abs(np.concatenate(kernels.held_out_errors(start, MODEL, kind, [rows]))).max() < 1e-3


def test_held_out_rows_do_not_teach_the_fit() -> None:
    """A corrupted row is judged by constants that never saw it, so its error stays."""
    rows = _exact_rows("decode")
    seconds = rows.seconds.copy()
    seconds[20] *= 2
    (errors,) = kernels.held_out_errors(
        GPU, MODEL, "decode", [dataclasses.replace(rows, seconds=seconds)]
    )
    assert errors[20] == pytest.approx(-0.5, abs=0.02)


def test_folds_mix_neighbours() -> None:
    """Neighbouring rows fall into different folds whatever order the file has."""
    rows = kernels.KernelRows(np.array([4.0, 1, 3, 2]), np.zeros(4), np.ones(4))
    np.testing.assert_array_equal(rows.fold(), [0, 0, 2, 1])


def test_absent_measurements_give_no_rows(tmp_path: Path) -> None:
    """A directory without kernel files yields no row instead of an error or a false pass."""
    assert kernels.kernel_fidelity(tmp_path) == []


def test_layer_time_adds_four_products(tmp_path: Path) -> None:
    """A layer is q/k/v, output, gate/up and down; unmeasured shapes lie between neighbours."""
    shapes = [
        (6144, 4096),
        (4096, 4096),
        (16384, 4096),
        (65536, 4096),
        (4096, 12288),
        (4096, 16384),
    ]
    size = np.array([n * k for n, k in shapes], float)
    table = pa.table(
        {
            "gemm_dtype": ["bfloat16"] * 6 + ["fp8"],
            "m": [8] * 7,
            "n": [n for n, _ in shapes] + [6144],
            "k": [k for _, k in shapes] + [4096],
            "latency": [*(size * 1e-9), 99.0],
        }
    )
    parquet.write_table(table, tmp_path / "gemm.parquet")
    rows = kernels.linear_rows(tmp_path / "gemm.parquet", MODEL)
    assert rows.size.tolist() == [8.0]
    assert rows.seconds[0] == pytest.approx(MODEL.layer_parameters * 1e-12)


def test_attention_rows_select_the_model(tmp_path: Path) -> None:
    """Only full-attention bf16 rows of the model's heads are used, within the declared range."""
    columns = {
        "num_heads": [32, 32, 32, 64, 32],
        "num_key_value_heads": [8] * 5,
        "head_dim": [128] * 5,
        "kv_cache_dtype": ["bfloat16", "bfloat16", "fp8", "bfloat16", "bfloat16"],
        "window_size": [0, 0, 0, 0, 128],
        "batch_size": [4, 1024, 4, 4, 4],
        "isl": [1] * 5,
        "step": [127] * 5,
        "latency": [0.02] * 5,
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    decode = kernels.decode_rows(tmp_path / "a.parquet", MODEL)
    assert (decode.size.tolist(), decode.length.tolist()) == ([4.0], [128.0])
    assert decode.seconds.tolist() == pytest.approx([2e-5])
    assert kernels.prefill_rows(tmp_path / "a.parquet", MODEL).size.size == 0


@needs_shared
def test_measured_kernels_are_within_the_bars() -> None:
    """Held-out error is at most 4 % for linear layers, 9 % for decode, 6 % for prefill."""
    assert SHARED is not None
    rows = kernels.kernel_fidelity(SHARED)
    assert len(rows) >= 10
    assert not [f"{row.check}: {row.measured:.3f}" for row in rows if not row.passed]


@needs_shared
@pytest.mark.parametrize("gpu_name", list(kernels.FILES))
@pytest.mark.parametrize("kind", ["linear", "decode", "prefill"])
def test_shipped_constants_are_the_fit(gpu_name: str, kind: str) -> None:
    """The shipped constants predict every measured row within 2 % of what a fresh fit predicts."""
    assert SHARED is not None
    gpu = load_gpu(gpu_name)
    paths = [SHARED / "kernels" / name for name in kernels.FILES[gpu_name][kind]]
    sets = [kernels.READ[kind](path, MODEL) for path in paths]
    fitted = kernels.fit(gpu, MODEL, kind, sets)
    for rows in sets:
        shipped_s = kernels.predicted_s(gpu, MODEL, kind, rows)
        np.testing.assert_allclose(
            shipped_s, kernels.predicted_s(fitted, MODEL, kind, rows), rtol=0.02
        )
