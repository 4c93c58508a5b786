"""The cost model against measured GEMM and attention kernels, and the fits of its constants.

Rows are what a layer of Llama-3.1-8B runs in bf16:

- linear: the four products of a layer, summed at each token count up to 8192. Two of the four
  shapes are not in the grids and are interpolated linearly between their neighbours.
- decode attention: 32 heads, 8 KV heads, batches up to 512 (the batch cap), every context.
- prefill attention: the same heads, prompts of 64 tokens and more (the shortest bucket).

The equations hold out a third of the rows three times over: constants are fitted to two thirds and
judged on the rest. The shipped constants are the fit to all rows.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from jaxserve.fidelity.rows import FidelityRow
from jaxserve.fidelity.sources import read_columns
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import Gpu, LlmModel, load_gpu
from jaxserve.sim.machine.models import load_model

FOLDS = 3
LARGEST_BATCH = 512
LARGEST_GEMM_TOKENS = 8192
SHORTEST_PROMPT = 64
SERVED_CONTEXTS = (128, 8192)
"""Shortest and longest context, tokens, of the decode rows that are also summed up alone."""
L2_BYTES = {"h100-sxm-80gb": 50e6, "h200-sxm-141gb": 50e6, "a100-sxm-80gb": 40e6}
"""L2 cache of each GPU, bytes, from NVIDIA's architecture papers."""
BARS = {"linear": 0.04, "decode": 0.09, "prefill": 0.06}
"""Largest mean absolute relative error that passes, per kind of kernel."""

FILES = {
    "h100-sxm-80gb": {
        "linear": (
            "h100_sxm_gemm_trtllm_1.3.0rc20_gemm_perf.parquet",
            "h100_sxm_gemm_vllm_0.24.0_gemm_perf.parquet",
        ),
        "decode": ("h100_sxm_attention_vllm_0.24.0_generation_attention_perf.parquet",),
        "prefill": ("h100_sxm_attention_vllm_0.24.0_context_attention_perf.parquet",),
    },
    "h200-sxm-141gb": {
        "linear": ("h200_sxm_gemm_vllm_0.24.0_gemm_perf.parquet",),
        "decode": ("h200_sxm_attention_vllm_0.24.0_generation_attention_perf.parquet",),
        "prefill": ("h200_sxm_attention_vllm_0.24.0_context_attention_perf.parquet",),
    },
    "a100-sxm-80gb": {
        "linear": ("a100_sxm_gemm_vllm_0.14.0_gemm_perf.parquet",),
        "decode": ("a100_sxm_attention_vllm_0.14.0_generation_attention_perf.parquet",),
        "prefill": ("a100_sxm_attention_vllm_0.14.0_context_attention_perf.parquet",),
    },
}
"""Measured files per GPU and kind of kernel."""

REASONS = {
    "linear": "tile quantisation: steps at multiples of the tile that a smooth roofline averages",
    "decode": "split-KV steps, and a benchmark that repeats one layer reads KV from the L2 cache, "
    "which serving never does",
    "prefill": "rounding to tiles and waves of thread blocks",
}


@dataclass(frozen=True)
class KernelRows:
    """Measured kernel times."""

    size: np.ndarray
    """tokens of a linear layer, or sequences of an attention kernel, float64[n]."""
    length: np.ndarray
    """context or prompt tokens of each sequence, float64[n]; zeros for linear layers."""
    seconds: np.ndarray
    """measured time of one layer, float64[n]."""

    def where(self, mask: np.ndarray) -> "KernelRows":
        """Rows selected by a boolean mask."""
        return KernelRows(self.size[mask], self.length[mask], self.seconds[mask])

    def fold(self) -> np.ndarray:
        """Fold of each row, int[n]: neighbours of the sorted rows fall into different folds."""
        order = np.lexsort((self.length, self.size))
        folds = np.empty(len(order), int)
        folds[order] = np.arange(len(order)) % FOLDS
        return folds


def linear_rows(path: Path, model: LlmModel) -> KernelRows:
    """Time of a layer's q/k/v, output, gate/up and down products at each token count."""
    columns = read_columns(path)
    keep = (columns["gemm_dtype"] == "bfloat16") & (columns["m"] <= LARGEST_GEMM_TOKENS)
    times: dict[tuple[int, int], dict[int, list[float]]] = {}
    for m, n, k, latency in zip(
        *(columns[name][keep] for name in ("m", "n", "k", "latency")), strict=True
    ):
        times.setdefault((int(n), int(k)), {}).setdefault(int(m), []).append(float(latency))
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    hidden, width = model.hidden, model.heads * model.head_dim
    shapes = ((qkv, hidden), (hidden, width), (2 * model.intermediate, hidden))
    shapes += ((hidden, model.intermediate),)
    tokens, seconds = [], []
    for m in sorted({m for by_m in times.values() for m in by_m}):
        parts = [_product_ms(times, n, k, m) for n, k in shapes]
        if all(part is not None for part in parts):
            tokens.append(m)
            seconds.append(sum(part for part in parts if part is not None) * 1e-3)
    return KernelRows(np.array(tokens, float), np.zeros(len(tokens)), np.array(seconds))


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


def _attention_columns(path: Path, model: LlmModel) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns of an attention file and the mask of the model's full-attention bf16 rows."""
    columns = read_columns(path)
    keep = (
        (columns["num_heads"] == model.heads)
        & (columns["num_key_value_heads"] == model.kv_heads)
        & (columns["head_dim"] == model.head_dim)
        & (columns["kv_cache_dtype"] == "bfloat16")
    )
    if "window_size" in columns:
        keep &= columns["window_size"] == 0
    return columns, keep


def decode_rows(path: Path, model: LlmModel) -> KernelRows:
    """Decode attention of ``size`` sequences with ``length`` KV tokens each."""
    columns, keep = _attention_columns(path, model)
    keep &= columns["batch_size"] <= LARGEST_BATCH
    context = columns["isl"] + columns["step"]
    return KernelRows(
        columns["batch_size"][keep].astype(float),
        context[keep].astype(float),
        columns["latency"][keep] * 1e-3,
    )


def prefill_rows(path: Path, model: LlmModel) -> KernelRows:
    """Prefill attention of ``size`` prompts of ``length`` tokens each."""
    columns, keep = _attention_columns(path, model)
    keep &= columns["isl"] >= SHORTEST_PROMPT
    return KernelRows(
        columns["batch_size"][keep].astype(float),
        columns["isl"][keep].astype(float),
        columns["latency"][keep] * 1e-3,
    )


def predicted_s(gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows) -> np.ndarray:
    """The cost model's time of one layer's kernel for each row, float64[n]."""
    cost = CostModel.of(gpu, model)
    if kind == "linear":
        kernels_alone = dataclasses.replace(cost, elementwise_s_per_token=0.0)
        return kernels_alone.linear_s(rows.size) / cost.layers
    if kind == "decode":
        return cost.decode_attention_s(rows.size, rows.size * rows.length) / cost.layers
    return (
        cost.prefill_constant_s + rows.size * cost.prefill_attention_s(rows.length, 0) / cost.layers
    )


def relative_errors(gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows) -> np.ndarray:
    """predicted / measured - 1 of each row, float64[n]."""
    return predicted_s(gpu, model, kind, rows) / rows.seconds - 1


READ = {"linear": linear_rows, "decode": decode_rows, "prefill": prefill_rows}

_FITTED = {
    "linear": ("bandwidth_efficiency", "flops_efficiency", "p_norm"),
    "decode": ("constant_s", "per_sequence_s", "bandwidth_efficiency", "q_norm"),
    "prefill": ("prefill_constant_s", "prefill_per_token_s", "prefill_flops_efficiency"),
}


def fit(gpu: Gpu, model: LlmModel, kind: str, sets: Sequence[KernelRows]) -> Gpu:
    """``gpu`` with the constants of one kind of kernel fitted to ``sets``.

    Robust least squares of log(predicted / measured), so that every row counts by its relative
    error and a step of the measured curve does not bend the whole fit.
    """
    block = gpu.linear[0] if kind == "linear" else gpu.attention
    names = _FITTED[kind]
    start = np.array([getattr(block, name) for name in names])

    def build(scale: np.ndarray) -> Gpu:
        values = dict(zip(names, (start * scale).tolist(), strict=True))
        changed = dataclasses.replace(block, **values)
        if kind == "linear":
            return dataclasses.replace(gpu, linear=(changed, *gpu.linear[1:]))
        return dataclasses.replace(gpu, attention=changed)

    def residuals(scale: np.ndarray) -> np.ndarray:
        candidate = build(scale)
        return np.concatenate(
            [np.log(predicted_s(candidate, model, kind, s) / s.seconds) for s in sets]
        )

    found = least_squares(
        residuals, np.ones(len(start)), bounds=(0.05, 20.0), loss="soft_l1", f_scale=0.03
    )
    return build(found.x)


def held_out_errors(
    gpu: Gpu, model: LlmModel, kind: str, sets: Sequence[KernelRows]
) -> list[np.ndarray]:
    """Relative errors of each set's rows under constants fitted without them."""
    errors = [np.empty(len(s.seconds)) for s in sets]
    for fold in range(FOLDS):
        fitted = fit(gpu, model, kind, [s.where(s.fold() != fold) for s in sets])
        for error, rows in zip(errors, sets, strict=True):
            mask = rows.fold() == fold
            error[mask] = relative_errors(fitted, model, kind, rows.where(mask))
    return errors


def _served_contexts(
    gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows, errors: np.ndarray
) -> str:
    """Error of decode rows at the contexts that serving mostly has, as a phrase."""
    if kind != "decode":
        return ""
    low, high = SERVED_CONTEXTS
    served = (rows.length >= low) & (rows.length <= high)
    kv_bytes = rows.size * rows.length * model.kv_bytes_per_token_layer
    cold = served & (kv_bytes > L2_BYTES[gpu.name])
    return (
        f"; contexts {low} to {high} alone {100 * np.abs(errors[served]).mean():.1f} %, of them "
        f"with KV beyond the L2 cache {100 * np.abs(errors[cold]).mean():.1f} %"
    )


def kernel_fidelity(directory: Path) -> list[FidelityRow]:
    """One row per GPU, kind of kernel and file found under ``directory``/kernels.

    Args:
      directory: what ``sources.shared_data`` returns.
    """
    model = load_model("llama-3.1-8b")
    rows = []
    for gpu_name, kinds in FILES.items():
        gpu = load_gpu(gpu_name)
        for kind, names in kinds.items():
            paths = [directory / "kernels" / name for name in names]
            paths = [path for path in paths if path.is_file()]
            if not paths:
                continue
            sets = [READ[kind](path, model) for path in paths]
            held_out = held_out_errors(gpu, model, kind, sets)
            for path, rows_of_file, errors in zip(paths, sets, held_out, strict=True):
                shipped = relative_errors(gpu, model, kind, rows_of_file)
                engine = path.name.split("_gemm_")[1] if kind == "linear" else "vllm"
                detail = (
                    f"{len(errors)} rows, each held out of the fit it is judged by; shipped "
                    f"constants {100 * np.abs(shipped).mean():.1f} %, bias "
                    f"{100 * shipped.mean():+.1f} %"
                    f"{_served_contexts(gpu, model, kind, rows_of_file, errors)}; "
                    f"rest: {REASONS[kind]}"
                )
                rows.append(
                    FidelityRow.within(
                        f"cost model vs kernels: {gpu_name} {kind} ({engine.split('_')[0]})",
                        100 * float(np.abs(errors).mean()),
                        100 * BARS[kind],
                        "% (mean)",
                        detail,
                    )
                )
    return rows
