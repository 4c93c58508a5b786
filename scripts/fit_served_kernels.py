"""Prints what share of a GPU's peaks the products of each engine reach, from measured kernels.

    python scripts/fit_served_kernels.py CHECKOUT    # of ai-dynamo/aiconfigurator

Each format, engine and family of GPUs is fitted by itself, as the cost model has it: a constant and
the p-norm of reading weights and of arithmetic. The printed mean error is of all rows.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import least_squares

from jaxserve.sim.machine.stack import ServedGpu, Stack, serve

DATA = "aic-core/src/aiconfigurator_core/systems/data"
VERSIONS = {"vllm": "0.24.0", "trtllm": "1.3.0rc20", "sglang": "0.5.14"}
FAMILIES = {
    "hopper": {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb"},
    "blackwell": {"b200_sxm": "b200-sxm-180gb", "gb200": "gb200-nvl72-186gb"},
}
LINEAR = {"fp8": "fp8", "nvfp4": "fp4"}
EXPERTS = {
    "bfloat16": "bf16",
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "nvfp4": "fp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
"""Formats by their names in the files; Blackwell multiplies mxfp4 with 8-bit activations."""
Rows = dict[str, np.ndarray]


def main() -> None:
    """Fits every format that a file has."""
    found: dict[str, Any] = {}
    for family, gpus in FAMILIES.items():
        for engine, version in VERSIONS.items():
            for group, names in (("linear", LINEAR), ("experts", EXPERTS)):
                for name, number_format in names.items():
                    if (name == "w4a16_mxfp4") == (family == "blackwell") and "mxfp4" in name:
                        continue
                    read = _linear if group == "linear" else _experts
                    parts = [read(*each, engine, version, name) for each in gpus.items()]
                    fitted = _fit([part for part in parts if part is not None])
                    if fitted:
                        own = found.setdefault(engine, {}).setdefault(family, {})
                        own.setdefault(group, {})[number_format] = fitted
    print(json.dumps(found, indent=1))


def _linear(system: str, gpu: str, engine: str, version: str, name: str) -> Rows | None:
    rows = _rows(system, "gemm", engine, version)
    if rows is None or name not in rows["gemm_dtype"]:
        return None
    tokens, wide, deep = (rows[each].astype(float) for each in ("m", "n", "k"))
    served = (wide >= 1024) & (deep >= 1024) & (wide * deep >= 4e6) & (tokens <= 16384)
    keep = served & (rows["gemm_dtype"] == name)
    size = wide * deep
    return _sides(rows, keep, gpu, LINEAR[name], size, 2 * tokens * size)


def _experts(system: str, gpu: str, engine: str, version: str, name: str) -> Rows | None:
    rows = _rows(system, "moe", engine, version)
    if rows is None or name not in rows["moe_dtype"]:
        return None
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    tokens, hidden, width, chosen, count = (rows[each].astype(float) for each in names)
    split = rows["moe_tp_size"] * rows["moe_ep_size"]
    keep = (rows["moe_dtype"] == name) & (rows["distribution"] == "balanced") & (split <= 8)
    keep &= (
        _fastest(rows, keep)
        & (tokens <= 16384)
        & (width >= 256 * rows["moe_tp_size"])
        & (count >= 8)
    )
    each = 3 * hidden * width / split
    touched = np.minimum(tokens * chosen / count, 1.0)
    size, flops = count * each * touched, 2 * tokens * chosen * each
    moved = tokens * chosen * hidden / rows["moe_ep_size"]
    return _sides(rows, keep, gpu, EXPERTS[name], size, flops, moved)


def _fastest(rows: Rows, keep: np.ndarray) -> np.ndarray:
    """Whether a row is of the fastest of an engine's kernels for the same work."""
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    work = np.stack([rows[name] for name in (*names, "moe_tp_size", "moe_ep_size")], axis=1)
    _, same = np.unique(work, axis=0, return_inverse=True)
    least = np.full(same.max() + 1, np.inf)
    np.minimum.at(least, same.ravel()[keep], rows["latency"][keep])
    return rows["latency"] <= least[same.ravel()]


def _sides(
    rows: Rows,
    keep: np.ndarray,
    gpu: str,
    number_format: str,
    size: np.ndarray,
    flops: np.ndarray,
    moved: np.ndarray | None = None,
) -> Rows:
    """Measured seconds, and those of reading and of arithmetic at the peaks."""
    experts = moved is not None
    machine = _machine(gpu, number_format, experts)
    fit = (machine.expert_linear if experts else machine.linear)[0]
    return {
        "seconds": 1e-3 * rows["latency"][keep],
        "read_s": (size * fit.weight_bytes / machine.bandwidth_bytes_per_s)[keep],
        "arithmetic_s": (flops / fit.flops_per_s)[keep],
        "move_s": moved[keep] / machine.bandwidth_bytes_per_s
        if moved is not None
        else 0 * size[keep],
    }


def _machine(gpu: str, number_format: str, experts: bool = True) -> ServedGpu:
    model = "gpt-oss-120b" if experts else "llama-3.1-8b"
    served, _ = serve(gpu, model, Stack(formats=(number_format,) * 3))
    assert isinstance(served, ServedGpu)
    return served


def _rows(system: str, kind: str, engine: str, version: str) -> Rows | None:
    path = f"HEAD:{DATA}/{system}/{kind}/{engine}/{version}/{kind}_perf.parquet"
    shown = subprocess.run(["git", "-C", sys.argv[1], "show", path], capture_output=True)
    if shown.returncode:
        return None
    table = pq.read_table(io.BytesIO(shown.stdout))
    return {name: table[name].to_numpy() for name in table.column_names}


def _fit(parts: list[Rows]) -> dict[str, float] | None:
    if not parts:
        return None
    seconds, read_s, arithmetic_s, move_s = (
        np.concatenate([part[name] for part in parts])
        for name in ("seconds", "read_s", "arithmetic_s", "move_s")
    )

    def predicted(logs: np.ndarray) -> np.ndarray:
        constant, bandwidth, flops, p, moved = np.exp(logs)
        roofline_s = ((read_s / bandwidth) ** p + (arithmetic_s / flops) ** p) ** (1 / p)
        return constant + roofline_s + moved * move_s

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(predicted(logs) / seconds)

    bounds = np.log([1e-7, 0.02, 0.01, 1.0, 0.1]), np.log([1e-4, 1.0, 1.0, 4.0, 40.0])
    start = np.log([1e-5, 0.7, 0.4, 1.5, 6.0])
    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x
    constant, bandwidth, flops, p, moved = (float(f"{each:.3g}") for each in np.exp(found))
    error = float(np.abs(predicted(found) / seconds - 1).mean())
    return {
        "bandwidth_efficiency": bandwidth,
        "flops_efficiency": flops,
        "p_norm": p,
        **({"moved_bytes": moved} if move_s.any() else {}),
        "constant_s": constant,
        "mean_error": round(error, 3),
    }


if __name__ == "__main__":
    main()
