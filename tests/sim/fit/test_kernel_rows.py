"""Promises of reading aiconfigurator's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.fit.kernel_rows import KernelRows, decode_rows, linear_rows, prefill_rows
from tests.sim.fit.kernel_samples import MODEL

_HEADS = {
    "num_heads": [32, 32, 32, 64, 32],
    "num_key_value_heads": [8] * 5,
    "head_dim": [128] * 5,
    "kv_cache_dtype": ["bfloat16", "bfloat16", "fp8", "bfloat16", "bfloat16"],
    "window_size": [0, 0, 0, 0, 128],
    "batch_size": [4, 1024, 4, 4, 4],
    "latency": [0.02] * 5,
}


def _write(path: Path, columns: dict[str, list]) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_folds_mix_neighbours() -> None:
    """Neighbouring rows fall into different folds whatever order the file has."""
    rows = KernelRows(np.array([4.0, 1, 3, 2]), np.zeros(4), np.ones(4))
    np.testing.assert_array_equal(rows.fold(), [0, 0, 2, 1])


def test_rows_are_picked_whole() -> None:
    """What is beside the times goes with them."""
    axis = np.arange(3.0)
    rows = KernelRows(axis, axis + 10, axis + 1, prefix=axis + 20, whole_s=axis + 30)
    picked = rows.where(np.array([False, True, False]))
    assert (picked.size[0], picked.length[0], picked.seconds[0]) == (1, 11, 2)
    assert picked.prefix is not None and picked.whole_s is not None
    assert (picked.prefix.tolist(), picked.whole_s.tolist()) == ([21], [31])


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
    columns = {
        "gemm_dtype": ["bfloat16"] * 6 + ["fp8"],
        "m": [8] * 7,
        "n": [n for n, _ in shapes] + [6144],
        "k": [k for _, k in shapes] + [4096],
        "latency": [*(size * 1e-9), 99.0],
    }
    rows = linear_rows(_write(tmp_path / "gemm.parquet", columns), MODEL)
    assert rows.size.tolist() == [8.0]
    assert rows.seconds[0] == pytest.approx(MODEL.layer_parameters * 1e-12)


def test_a_group_of_gpus_has_its_own_shapes(tmp_path: Path) -> None:
    """Each GPU multiplies its share of every matrix, and attends with its heads."""
    shapes = [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]
    columns = {
        "gemm_dtype": ["bfloat16"] * 4,
        "m": [8] * 4,
        "n": [n for n, _ in shapes],
        "k": [k for _, k in shapes],
        "latency": [1.0] * 4,
    }
    path = _write(tmp_path / "gemm.parquet", columns)
    assert linear_rows(path, MODEL, 2).seconds.tolist() == pytest.approx([4e-3])
    assert not len(linear_rows(path, MODEL).seconds)
    half = _HEADS | {"num_heads": [16, 16, 16, 32, 16], "num_key_value_heads": [4] * 5}
    path = _write(tmp_path / "a.parquet", half | {"isl": [1] * 5, "step": [127] * 5})
    assert decode_rows(path, MODEL, 2).size.tolist() == [4.0]
    assert not len(decode_rows(path, MODEL).size)


def test_attention_rows_select_the_model(tmp_path: Path) -> None:
    """Only full-attention bf16 rows of the model's heads are used, within the declared range."""
    path = _write(tmp_path / "a.parquet", _HEADS | {"isl": [1] * 5, "step": [127] * 5})
    decode = decode_rows(path, MODEL)
    assert (decode.size.tolist(), decode.length.tolist()) == ([4.0], [128.0])
    assert decode.seconds.tolist() == pytest.approx([2e-5])
    assert prefill_rows(path, MODEL).size.size == 0
    path = _write(tmp_path / "b.parquet", _HEADS | {"isl": [64] * 5, "step": [0] * 5})
    assert prefill_rows(path, MODEL).length.tolist() == [64.0, 64.0]


def test_what_is_refused(tmp_path: Path) -> None:
    """Prompts behind others, and what is no number."""
    path = _write(tmp_path / "a.parquet", _HEADS | {"isl": [64] * 5, "step": [8] * 5})
    with pytest.raises(InputError, match="step is not 0 in every row of prefill attention"):
        prefill_rows(path, MODEL)
    for latency, message in (
        ([0.02, None, 0.02, 0.02, 0.02], "row 2, column latency is nan"),
        (["a"] * 5, "column latency has other than numbers"),
    ):
        wrong = _HEADS | {"isl": [1] * 5, "step": [9] * 5, "latency": latency}
        with pytest.raises(InputError, match=message):
            decode_rows(_write(tmp_path / "b.parquet", wrong), MODEL)
