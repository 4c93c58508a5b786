"""The cost model against measured GEMM and attention kernels of Llama-3.1-8B.

``jaxserve.sim.fit.kernel_rows`` selects the rows. Each third of them is held out once: constants
are fitted to the other two thirds and judged on the held-out one. The shipped constants are the fit
to all rows.
"""

from pathlib import Path

import numpy as np

from jaxserve.sim.fit.kernel_fit import held_out_errors, relative_errors
from jaxserve.sim.fit.kernel_rows import KernelRows, decode_rows, linear_rows, prefill_rows
from jaxserve.sim.machine.hardware import Gpu, LlmModel, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.studies.fidelity.measurements import FidelityRow

SERVED_CONTEXTS = (128, 8192)
"""Shortest and longest context, tokens, of decode rows whose error is also given separately."""
L2_BYTES = {
    "h100-sxm-80gb": 50e6,
    "h200-sxm-141gb": 50e6,
    "a100-sxm-80gb": 40e6,
}
"""L2 cache in bytes, of GPUs whose files have none; from NVIDIA's architecture papers."""
_HBM = {"linear": 0.04, "decode": 0.09, "prefill": 0.06}
BARS = dict.fromkeys(L2_BYTES, _HBM) | {"l40s-48gb": dict.fromkeys(_HBM, 0.15)}
"""Largest mean absolute relative error that passes, per GPU and kind of kernel."""

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
    "l40s-48gb": {
        "linear": ("l40s_gemm_vllm_0.24.0_gemm_perf.parquet",),
        "decode": ("l40s_attention_vllm_0.24.0_generation_attention_perf.parquet",),
        "prefill": ("l40s_attention_vllm_0.24.0_context_attention_perf.parquet",),
    },
}
"""Measured files per GPU and kind of kernel."""

REASONS = {
    "linear": "tile quantisation: steps at multiples of the tile that a smooth roofline averages",
    "decode": "split-KV steps, and a benchmark that repeats one layer reads KV from the L2 cache, "
    "which serving never does",
    "prefill": "rounding to tiles and waves of thread blocks",
}


READ = {"linear": linear_rows, "decode": decode_rows, "prefill": prefill_rows}


def _served_contexts(
    gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows, errors: np.ndarray
) -> str:
    """Phrase with the error of decode rows at the usual contexts of serving; empty for others."""
    if kind != "decode":
        return ""
    low, high = SERVED_CONTEXTS
    served = (rows.length >= low) & (rows.length <= high)
    kv_bytes = rows.size * rows.length * model.kv_bytes_per_token_layer
    cold = served & (kv_bytes > (gpu.cache.cache_bytes if gpu.cache else L2_BYTES[gpu.name]))
    return (
        f"; contexts {low} to {high} alone {100 * np.abs(errors[served]).mean():.1f} %, of them "
        f"with KV beyond the L2 cache {100 * np.abs(errors[cold]).mean():.1f} %"
    )


def kernel_fidelity(directory: Path) -> list[FidelityRow]:
    """One row per GPU, kind of kernel and file in ``directory``/kernels.

    Args:
      directory: directory of measurements, see ``measurements.shared_data``.
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
                        100 * BARS[gpu_name][kind],
                        "% (mean)",
                        detail,
                    )
                )
    return rows
