"""Files of kernels as their tools write them, with the times of a cost model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from jaxserve.sim.fit.kernel_fit import predicted_s
from jaxserve.sim.fit.kernel_rows import KernelRows
from jaxserve.sim.machine.hardware import Gpu, LlmModel, load_gpu
from jaxserve.sim.machine.models import load_model

MODEL = load_model("llama-3.1-8b")
GPU = load_gpu("h100-sxm-80gb")
TOKENS = tuple(2**i for i in range(14))
_BATCHES, _LENGTHS = (1, 2, 4, 16, 64, 256), tuple(2**i for i in range(6, 15))
_SHARES = {
    "qkv_proj": (6144, 4096),
    "o_proj": (4096, 4096),
    "gate_up_proj": (28672, 4096),
    "down_proj": (4096, 14336),
}
"""Products of a layer of the model, n and k."""


def exact_rows(kind: str, gpu: Gpu = GPU, model: LlmModel = MODEL) -> KernelRows:
    """Exact times of a cost model over a grid of batches and lengths."""
    points = np.array(list(product(2.0 ** np.arange(9), _LENGTHS)), np.float64)
    empty = KernelRows(points[:, 0], points[:, 1], np.ones(len(points)))
    return dataclasses.replace(empty, seconds=predicted_s(gpu, model, kind, empty))


def write_kernels(directory: Path, gpu: Gpu = GPU, unit_s: float = 1e-3) -> list[Path]:
    """The three files of aiconfigurator."""
    said = {"framework": "VLLM", "version": "1.2", "device": "a GPU"}
    heads = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128} | said
    gemm = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": seconds / unit_s} | said
        for m in TOKENS
        for (n, k), seconds in zip(_SHARES.values(), _products_s(gpu, m), strict=True)
    ]
    paths = [_parquet(directory / "gemm_perf.parquet", gemm)]
    for kind, name in (("decode", "generation_attention"), ("prefill", "context_attention")):
        rows = []
        for batch, length in product(_BATCHES, _LENGTHS):
            split = {"isl": 1, "step": length - 1} if kind == "decode" else {"isl": length}
            row = {"op_name": name, "batch_size": batch, "kv_cache_dtype": "bfloat16", "step": 0}
            seconds = _seconds(gpu, kind, batch, length)
            rows.append(row | split | {"latency": seconds / unit_s} | heads)
        paths.append(_parquet(directory / f"{name}_perf.parquet", rows))
    return paths


def write_profile(
    directory: Path, gpu: Gpu = GPU, change: Callable[[str], str] = str
) -> tuple[Path, Path, Path]:
    """The three files of a layer profile: dense, per sequence, attention. ``change`` is made to the
    text of each."""
    dense = ["layer,tokens,time_us"]
    for tokens in TOKENS[:12]:
        for layer, seconds in zip(_SHARES, _products_s(gpu, tokens), strict=True):
            dense.append(f"{layer},{tokens},{1e6 * seconds!r}")
        dense.append(f"layernorm,{tokens},{5e5 * _seconds(gpu, 'elementwise', tokens)!r}")
    heads = ["layer,sequences,time_us"]
    heads += [f"lm_head,{n},{1e6 * _seconds(gpu, 'head', n)!r}" for n in TOKENS[:11]]
    attention = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    axes = (
        (0, 128, 512, 2048),
        (0, 512, 2048, 8192),
        (0, 1, 4, 16, 64, 256),
        (0, 64, 256, 1024, 4096, 16384),
    )
    for chunk, prefix, seqs, context in product(*axes):
        if (chunk or (seqs and not prefix)) and bool(seqs) == bool(context):
            seconds = _seconds(gpu, "decode", seqs, context) if seqs else 0.0
            seconds += _seconds(gpu, "prefill", 1, chunk, prefix) if chunk else 0.0
            attention.append(f"{chunk},{prefix},{seqs},{context},{1e6 * seconds!r}")
    paths = tuple(directory / f"{name}.csv" for name in ("dense", "per_sequence", "attention"))
    for path, lines in zip(paths, (dense, heads, attention), strict=True):
        path.write_text(change("\n".join(lines)))
    return paths[0], paths[1], paths[2]


def _products_s(gpu: Gpu, tokens: int) -> list[float]:
    """A layer's linear time, shared among its products by their parameters."""
    linear_s = _seconds(gpu, "linear", tokens)
    return [linear_s * n * k / MODEL.layer_parameters for n, k in _SHARES.values()]


def _seconds(gpu: Gpu, kind: str, size: float, length: float = 0, prefix: float = 0) -> float:
    one = [np.array([float(value)]) for value in (size, length, 1, prefix)]
    return float(predicted_s(gpu, MODEL, kind, KernelRows(*one))[0])


def _parquet(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path
