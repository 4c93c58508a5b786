"""Measured times of single kernels, and the files of aiconfigurator that hold them.

A file has one row per shape and number format, latencies in milliseconds. The rows that a model
runs on a GPU of its group are picked: bf16, full attention, the heads and matrices of that GPU.

- linear: the four products of a layer, summed at each token count. Shapes that a grid leaves out
  are interpolated linearly between their neighbours.
- decode attention: batches up to the largest batch cap, every context.
- prefill attention: prompts of 64 tokens and more, the shortest bucket.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.fields import MAX_BATCH
from jaxserve.sim.fit.columns import numbers, read_columns
from jaxserve.sim.machine.hardware import LlmModel

Array = NDArray[np.float64]

FOLDS = 3
LARGEST_GEMM_TOKENS = 8192
SHORTEST_PROMPT = 64
FORMAT = "bfloat16"
"""Number format of the rows that are used, as the files call it."""

GEMM_COLUMNS = ("gemm_dtype", "m", "n", "k", "latency")
ATTENTION_COLUMNS = (
    "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step",
    "latency",
)  # fmt: skip


@dataclass(frozen=True)
class KernelRows:
    """Measured kernel times."""

    size: Array
    """tokens of a layer, rows of the output head, or sequences of an attention kernel,
    float64[n]."""
    length: Array
    """context or prompt tokens of each sequence, float64[n]; zeros where there is no attention."""
    seconds: Array
    """measured time of one layer, or of the head, float64[n]."""
    prefix: Array | None = None
    """tokens before those of a prompt that are computed already, float64[n]; None for none."""
    whole_s: Array | None = None
    """time that errors are relative to, float64[n]; None where it is ``seconds``."""

    def where(self, mask: NDArray[np.bool_]) -> "KernelRows":
        """Rows selected by a boolean mask."""
        return KernelRows(
            self.size[mask],
            self.length[mask],
            self.seconds[mask],
            prefix=None if self.prefix is None else self.prefix[mask],
            whole_s=None if self.whole_s is None else self.whole_s[mask],
        )

    def fold(self) -> NDArray[np.int_]:
        """Fold of each row, int[n]: neighbours of the sorted rows fall into different folds."""
        keys = (self.length, self.size)
        order = np.lexsort(keys if self.prefix is None else (self.prefix, *keys))
        folds = np.empty(len(order), int)
        folds[order] = np.arange(len(order)) % FOLDS
        return folds


def linear_rows(path: Path, model: LlmModel, tensor_parallel: int = 1) -> KernelRows:
    """Time of a layer's q/k/v, output, gate/up and down products at each token count.

    Raises:
      InputError: the file is not readable, or a number in it is not one.
    """
    where = f"kernel file {path}"
    columns = read_columns(path)
    m, n, k, latency = (numbers(columns, name, where) for name in GEMM_COLUMNS[1:])
    keep = (columns["gemm_dtype"] == FORMAT) & (m <= LARGEST_GEMM_TOKENS)
    times: dict[tuple[int, int], dict[int, list[float]]] = {}
    for tokens, wide, deep, ms in zip(m[keep], n[keep], k[keep], latency[keep], strict=True):
        times.setdefault((int(wide), int(deep)), {}).setdefault(int(tokens), []).append(float(ms))
    tp, hidden = tensor_parallel, model.hidden
    width = model.heads // tp * model.head_dim
    kv_width = math.ceil(model.kv_heads / tp) * model.head_dim
    inner = model.intermediate // tp
    shapes = ((width + 2 * kv_width, hidden), (hidden, width), (2 * inner, hidden), (hidden, inner))
    sizes, seconds = [], []
    for tokens in sorted({tokens for by_m in times.values() for tokens in by_m}):
        parts = [_product_ms(times, wide, deep, tokens) for wide, deep in shapes]
        if all(part is not None for part in parts):
            sizes.append(tokens)
            seconds.append(sum(part for part in parts if part is not None) * 1e-3)
    return KernelRows(np.array(sizes, float), np.zeros(len(sizes)), np.array(seconds))


def _product_ms(
    times: dict[tuple[int, int], dict[int, list[float]]], n: int, k: int, m: int
) -> float | None:
    """Median time of an m x k by k x n product, interpolated in n or in k where not measured."""
    if (n, k) in times:
        return float(np.median(times[n, k][m])) if m in times[n, k] else None
    along_n = sorted(shape[0] for shape in times if shape[1] == k and m in times[shape])
    along_k = sorted(shape[1] for shape in times if shape[0] == n and m in times[shape])
    for sizes, target, key in (
        (along_n, n, lambda size: (size, k)),
        (along_k, k, lambda size: (n, size)),
    ):
        below = [size for size in sizes if size < target]
        above = [size for size in sizes if size > target]
        if below and above:
            low, high = below[-1], above[0]
            ends = [float(np.median(times[key(size)][m])) for size in (low, high)]
            return ends[0] + (ends[1] - ends[0]) * (target - low) / (high - low)
    return None


def _attention_columns(
    path: Path, model: LlmModel, tensor_parallel: int
) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """Batch, prompt, step and latency of an attention file, and the mask of the model's
    full-attention bf16 rows."""
    where = f"kernel file {path}"
    columns = read_columns(path)
    shape = {
        "num_heads": model.heads // tensor_parallel,
        "num_key_value_heads": math.ceil(model.kv_heads / tensor_parallel),
        "head_dim": model.head_dim,
    }
    keep = columns["kv_cache_dtype"] == FORMAT
    for name, size in shape.items():
        keep &= numbers(columns, name, where) == size
    if "window_size" in columns:
        keep &= columns["window_size"] == 0
    names = ("batch_size", "isl", "step", "latency")
    return {name: numbers(columns, name, where) for name in names}, keep


def decode_rows(path: Path, model: LlmModel, tensor_parallel: int = 1) -> KernelRows:
    """Decode attention of ``size`` sequences with ``length`` KV tokens; see ``linear_rows``."""
    columns, keep = _attention_columns(path, model, tensor_parallel)
    keep &= columns["batch_size"] <= MAX_BATCH
    context = columns["isl"] + columns["step"]
    return KernelRows(columns["batch_size"][keep], context[keep], columns["latency"][keep] * 1e-3)


def prefill_rows(path: Path, model: LlmModel, tensor_parallel: int = 1) -> KernelRows:
    """Prefill attention of ``size`` prompts of ``length`` tokens each; see ``linear_rows``.

    Raises:
      InputError: as there, or prompts come after tokens that are computed already, of which these
        files do not say what ``isl`` counts.
    """
    columns, keep = _attention_columns(path, model, tensor_parallel)
    keep &= columns["isl"] >= SHORTEST_PROMPT
    if columns["step"][keep].any():
        raise InputError(f"kernel file {path}: step is not 0 in every row of prefill attention")
    return KernelRows(
        columns["batch_size"][keep], columns["isl"][keep], columns["latency"][keep] * 1e-3
    )
