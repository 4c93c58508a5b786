"""Fits the constants of the cost model to measured kernels, one kind of kernel at a time."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from jaxserve.sim.fit.kernel_rows import FOLDS, KernelRows
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import Gpu, LlmModel

Array = NDArray[np.float64]

CONSTANTS: dict[str, tuple[str, ...]] = {
    "linear": ("linear.bandwidth_efficiency", "linear.flops_efficiency", "linear.p_norm"),
    "elementwise": ("linear.layer_constant_s", "elementwise_s_per_token"),
    "head": ("head_bandwidth_efficiency", "head_flops_efficiency"),
    "decode": (
        "attention.constant_s", "attention.per_sequence_s", "attention.bandwidth_efficiency",
        "attention.q_norm", "cache.bytes_per_s",
    ),
    "prefill": (
        "attention.prefill_constant_s", "attention.prefill_per_token_s",
        "attention.prefill_flops_efficiency",
    ),
}  # fmt: skip
"""Constants of a ``Gpu`` by kind of kernel; ``linear`` is the fit of bf16, and not every GPU has a
``cache``."""

_MAX_FACTOR = 20.0
_NOISE = 0.03  # relative; steps of tiles and waves that the equations average
_FROM_ZERO = 1e-5
"""Starting values of constants whose prior is 0; only seconds may be 0."""
_STEP = 1e-4


def constants(gpu: Gpu, kind: str) -> dict[str, float]:
    """The constants of a kind of kernel by their names."""
    blocks = {path: _block(gpu, path) for path in CONSTANTS[kind]}
    return {
        path: getattr(block, path.split(".")[-1])
        for path, block in blocks.items()
        if block is not None
    }


def with_constants(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """``gpu`` with other constants, by their names."""
    for path, value in values.items():
        group, _, name = path.rpartition(".")
        changed = dataclasses.replace(_block(gpu, path), **{name: value})
        if group == "linear":
            gpu = dataclasses.replace(gpu, linear=(changed, *gpu.linear[1:]))
        else:
            gpu = dataclasses.replace(gpu, **{group: changed}) if group else changed
    return gpu


def predicted_s(
    gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows, tensor_parallel: int = 1
) -> Array:
    """The cost model's time of one layer's kernel for each row, float64[n].

    Args:
      gpu: constants to use.
      model: shapes of the layers.
      kind: kind of kernel, a key of ``CONSTANTS``.
      rows: sizes and lengths of n kernels.
      tensor_parallel: GPUs that share every layer.
    """
    cost = CostModel.of(gpu, model, tensor_parallel)
    if kind == "linear":
        alone = dataclasses.replace(
            cost,
            linear_constant_s=(0.0,) * 3,
            elementwise_s_per_token=0.0,
            allreduce_s=0.0,
            allreduce_s_per_token=0.0,
            beyond=None,
        )
        return alone.linear_s(rows.size) / cost.layers
    if kind == "elementwise":
        per_token_s = cost.elementwise_s_per_token * rows.size
        return (cost.linear_constant_s[0] + per_token_s) / cost.layers
    if kind == "head":
        return dataclasses.replace(cost, head_gather_s_per_row=0.0).head_s(rows.size)
    if kind == "decode":
        return _decode_s(gpu, cost, rows)
    prefix = 0.0 if rows.prefix is None else rows.prefix
    prompts_s = rows.size * cost.prefill_attention_s(rows.length, prefix)
    return cost.prefill_constant_s + prompts_s / cost.layers


def _decode_s(gpu: Gpu, cost: CostModel, rows: KernelRows) -> Array:
    """A measured kernel has the KV of its one layer in the cache, where it fits."""
    kv_tokens = rows.size * rows.length
    seconds = cost.decode_attention_s(rows.size, kv_tokens)
    if gpu.cache is not None:
        memory = gpu.bandwidth_bytes_per_s * gpu.attention.bandwidth_efficiency
        bytes_per_token = cost.kv_read_s_per_token * memory
        cached = dataclasses.replace(
            cost, kv_read_s_per_token=bytes_per_token / gpu.cache.bytes_per_s
        )
        fits = kv_tokens * bytes_per_token <= gpu.cache.cache_bytes
        seconds = np.where(fits, cached.decode_attention_s(rows.size, kv_tokens), seconds)
    return seconds / cost.layers


def relative_errors(
    gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows, tensor_parallel: int = 1
) -> Array:
    """(predicted - measured) / measured of each row, float64[n].

    Args:
      gpu: constants to use.
      model: shapes of the layers.
      kind: kind of kernel, a key of ``CONSTANTS``.
      rows: measured times of n kernels, s, with their sizes and lengths.
      tensor_parallel: GPUs that share every layer.
    """
    off_s = predicted_s(gpu, model, kind, rows, tensor_parallel) - rows.seconds
    return off_s / (rows.seconds if rows.whole_s is None else rows.whole_s)


def fit(
    gpu: Gpu, model: LlmModel, kind: str, sets: Sequence[KernelRows], tensor_parallel: int = 1
) -> Gpu:
    """``gpu`` with the constants of one kind of kernel fitted to ``sets``.

    Robust least squares of log(predicted / measured), so that every row counts by its relative
    error and a step of the measured curve does not bend the whole fit.

    Args:
      gpu: the prior.
      model: shapes of the layers.
      kind: kind of kernel, a key of ``CONSTANTS``.
      sets: measured rows, each set of one model.
      tensor_parallel: GPUs that share every layer.
    """
    start = {path: value or _FROM_ZERO for path, value in constants(gpu, kind).items()}

    def build(scale: Array) -> Gpu:
        scaled = np.array(list(start.values())) * scale
        return with_constants(gpu, dict(zip(start, scaled.tolist(), strict=True)))

    def residuals(scale: Array) -> Array:
        candidate = build(scale)
        predicted = (predicted_s(candidate, model, kind, s, tensor_parallel) for s in sets)
        return np.concatenate(
            [np.log(p_s / s.seconds) for p_s, s in zip(predicted, sets, strict=True)]
        )

    found = least_squares(
        residuals,
        np.ones(len(start)),
        bounds=(1 / _MAX_FACTOR, _MAX_FACTOR),
        loss="soft_l1",
        f_scale=_NOISE,
    )
    return build(found.x)


def held_out_errors(
    gpu: Gpu, model: LlmModel, kind: str, sets: Sequence[KernelRows], tensor_parallel: int = 1
) -> list[Array]:
    """Relative errors of each set's rows under constants fitted without them.

    Args:
      gpu: the prior.
      model: shapes of the layers.
      kind: kind of kernel, a key of ``CONSTANTS``.
      sets: measured rows, each set of one model.
      tensor_parallel: GPUs that share every layer.
    """
    errors = [np.empty(len(s.seconds)) for s in sets]
    for fold in range(FOLDS):
        shown = [s.where(s.fold() != fold) for s in sets]
        fitted = fit(gpu, model, kind, shown, tensor_parallel)
        for error, rows in zip(errors, sets, strict=True):
            mask = rows.fold() == fold
            error[mask] = relative_errors(fitted, model, kind, rows.where(mask), tensor_parallel)
    return errors


def uncertainty(
    gpu: Gpu, model: LlmModel, kind: str, rows: KernelRows, tensor_parallel: int = 1
) -> dict[str, float]:
    """Relative standard deviation of each fitted constant, if rows scatter by some percent (Laplace
    approximation).

    Args:
      gpu: fitted constants.
      model: shapes of the layers.
      kind: kind of kernel, a key of ``CONSTANTS``.
      rows: sizes and lengths of n kernels.
      tensor_parallel: GPUs that share every layer.
    """
    found = constants(gpu, kind)

    def log_s(path: str, factor: float) -> Array:
        changed = with_constants(gpu, {path: found[path] * factor})
        return np.log(predicted_s(changed, model, kind, rows, tensor_parallel))

    slopes = [(log_s(path, 1 + _STEP) - log_s(path, 1 - _STEP)) / (2 * _STEP) for path in found]
    information = np.array(slopes) @ np.array(slopes).T + 1e-12 * np.eye(len(found))
    deviations = _NOISE * np.sqrt(np.diag(np.linalg.inv(information)))
    return dict(zip(found, deviations.tolist(), strict=True))


def _block(gpu: Gpu, path: str) -> Any:
    group = path.rpartition(".")[0]
    if group == "linear":
        return gpu.linear[0]
    return getattr(gpu, group) if group else gpu
