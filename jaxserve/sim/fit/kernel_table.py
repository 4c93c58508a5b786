"""Latency tables from measured kernels: fitted constants, and their errors.

Each kind of kernel is fitted by itself and judged on rows that its fit was not shown: every third
row, which tells interpolation, then the third of the largest sizes on each axis, which tells
extrapolation. Errors are relative to the layer that has the kernel. Of a layer profile iterations
that mix prompts and decodes are fitted too (``mixed_attention``), and whole iterations are judged
as well. The table carries the largest of these errors.

What kernels say nothing of (the time of the host, all-reduces, speculation, and head and
elementwise kernels where no file has them) stays as it is on the GPU that is named. The other tiers
keep their times in proportion to FP16, whose rows are used.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import TOKEN_BUDGETS
from jaxserve.sim.fit import kernel_fit
from jaxserve.sim.fit.extrapolation import Extrapolation, edges
from jaxserve.sim.fit.kernel_files import read_kernels
from jaxserve.sim.fit.kernel_rows import KernelRows
from jaxserve.sim.fit.layer_profile import (
    ATTENTION_COLUMNS,
    PRODUCTS,
    SHORTEST_CHUNK,
    LayerProfile,
    ProfileTimer,
)
from jaxserve.sim.fit.mixed_attention import MixedFit, fit_mixed
from jaxserve.sim.fit.plausible import check_unit
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import EngineSettings, Gpu, LinearFit, LlmModel
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.table.build import fill_measured
from jaxserve.sim.table.file import TableFile, write_table_file

WORST_ERROR = 0.15
"""Mean relative error on rows that a fit was not shown, or on whole iterations, beyond which there
is no table."""
MIN_KERNEL_ROWS = 8
MIN_SIZES = 3
"""Different values that an axis has at least."""

LABELS = {
    "linear": "linear layers",
    "elementwise": "elementwise kernels",
    "head": "output head",
    "decode": "decode attention",
    "prefill": "prefill attention",
    "mixed": "prompts beside decodes",
}
_AXES = {
    "linear": {"tokens": "size"},
    "elementwise": {"tokens": "size"},
    "head": {"sequences": "size"},
    "decode": {"sequences": "size", "KV tokens of each": "length"},
    "prefill": {"prompts": "size", "prompt tokens": "length", "prefix tokens": "prefix"},
}
"""Axes of each kind by their names, with the field of ``KernelRows``."""
_MAY_BE_ONE = ("prompts", "prefix tokens")
_NOT_KERNELS = ("host_s", "allreduce_s", "allreduce_s_per_token", "head_gather_s_per_row")
"""Terms of a cost model that a layer profile leaves out."""
_UNSURE = 0.5  # relative standard deviation of a constant
_BEYOND_PEAK = 1.1  # of a data sheet: clocks differ
_PEAKS = {
    "linear.bandwidth_efficiency": "memory bandwidth",
    "linear.flops_efficiency": "arithmetic rate",
    "attention.bandwidth_efficiency": "memory bandwidth",
    "attention.prefill_flops_efficiency": "arithmetic rate",
}


@dataclass(frozen=True)
class KernelFit:
    """Fit of one kind of kernel. Errors are mean absolute ones, relative to the layer that has the
    kernel, or to all layers where it is the output head."""

    kind: str
    """key of ``LABELS``."""
    rows: int
    """measured rows that were used."""
    error: float
    """error of the fit on the rows it was fitted to."""
    held_out_error: float
    """error on each third of the rows, by a fit to the others."""
    worst_error: float
    """the farthest of those, with its sign."""
    extrapolations: tuple[Extrapolation, ...]
    """errors on the rows with the largest sizes of each axis, by a fit to the others."""


@dataclass(frozen=True)
class IterationErrors:
    """Whole iterations of a layer profile, also those of prompts and decodes together."""

    loads: int
    """iterations that fit into memory."""
    error: float
    """mean absolute relative error."""
    mixed_error: float
    """the same of iterations with prompts and decodes."""
    worst_error: float
    """the farthest one, with its sign."""


@dataclass(frozen=True)
class KernelReport:
    """Result of a fit to kernels."""

    fits: tuple[KernelFit, ...]
    """fits by kind of kernel."""
    kept: tuple[str, ...]
    """kinds without rows in any file; their constants are those of the named GPU."""
    iterations: IterationErrors | None
    """None where there is no layer profile."""
    table: TableFile
    """the filled table."""
    left_out: Mapping[str, int]
    """rows in other number formats than FP16's, by the format: the other tiers keep their times in
    proportion to FP16."""


def fit_kernels(
    paths: Sequence[Path],
    gpu: Gpu,
    model: LlmModel,
    out: Path,
    *,
    tensor_parallel: int = 1,
    token_budget: int = EngineSettings.token_budget,
) -> KernelReport:
    """Fits the kernels in ``paths`` and writes the table that they give to ``out``.

    Args:
      paths: aiconfigurator's GEMM, generation and context attention, or the three files of a layer
        profile; in any order.
      gpu: where the fit begins, and what its memory, power and price are.
      model: what was measured.
      out: path of the table, ending in .parquet.
      tensor_parallel: GPUs that share every layer; files of single kernels have shapes for any.
      token_budget: tokens of an iteration, by which the table cuts prompts.

    Raises:
      InputError: a file is unknown or unreadable, its rows say too little or are in another unit,
        or the fit is further off than ``WORST_ERROR``; nothing is written then.
    """
    checks.ending("out", out, ".parquet")
    checks.whole("token_budget", token_budget, *TOKEN_BUDGETS)
    if isinstance(model, LargeModel):
        raise InputError(
            f"{model.name} is not a dense model with full attention, and its kernels are not known"
        )
    prior = CostModel.of(gpu, model, tensor_parallel)
    measured = read_kernels(paths, model, tensor_parallel)
    if measured.profile is not None:  # of all layers in turn: KV comes from the memory
        gpu = dataclasses.replace(gpu, cache=None)
    fitted, fits = gpu, []
    for kind, rows in measured.rows.items():
        _check_rows(kind, rows, measured.unit, gpu, model, tensor_parallel)
        found, fit = _fit(kind, rows, gpu, model, tensor_parallel)
        fitted = kernel_fit.with_constants(fitted, kernel_fit.constants(found, kind))
        fits.append(fit)
    fitted = _all_tiers(gpu, fitted)
    cost = CostModel.of(fitted, model, tensor_parallel)
    iterations = None
    if measured.profile is not None:
        pool = kv_capacity_tokens(gpu, model, 0, 1.0, False, tensor_parallel)
        timer = ProfileTimer(measured.profile, model.layers)
        mixed = fit_mixed(cost, measured.profile, float(pool))
        cost = mixed.cost
        fits.append(_checked_mixed(mixed))
        alone = dataclasses.replace(cost, **dict.fromkeys(_NOT_KERNELS, 0.0), beyond=None)
        iterations = _iteration_errors(alone, timer, measured.profile, float(pool))
    errors = [each.held_out_error for each in fits]
    errors += [edge.error for each in fits for edge in each.extrapolations]
    if iterations is not None:
        _check_error("whole iterations", iterations.error)
        _check_error("iterations of prompts and decodes together", iterations.mixed_error)
        errors += [iterations.error, iterations.mixed_error]
    names = ", ".join(path.name for path in paths)
    table = fill_measured(
        cost,
        gpu,
        model,
        source=f"fitted to {measured.source} in {names}, prior {gpu.name}, its host time "
        f"{1e3 * prior.host_s:g} ms",
        fit_error=max(errors),
        token_budget=token_budget,
    )
    report = KernelReport(
        fits=tuple(fits),
        kept=tuple(kind for kind in kernel_fit.CONSTANTS if kind not in measured.rows),
        iterations=iterations,
        table=table,
        left_out=measured.left_out,
    )
    write_table_file(out, report.table)
    return report


def _check_rows(
    kind: str, rows: KernelRows, unit: str, gpu: Gpu, model: LlmModel, tensor_parallel: int
) -> None:
    """Refuses rows that say too little, or that no GPU can have given."""
    label, count = LABELS[kind], len(rows.seconds)
    if count < MIN_KERNEL_ROWS:
        raise InputError(
            f"{count} rows are of {label} of {model.name} in bf16, tensor parallelism "
            f"{tensor_parallel}; at least {MIN_KERNEL_ROWS} are needed"
        )
    for axis, values in _axes(kind, rows).items():
        sizes = len(np.unique(values))
        if sizes < MIN_SIZES and not (sizes == 1 and axis in _MAY_BE_ONE):
            raise InputError(
                f"the rows of {label} have {sizes} different {axis}; at least {MIN_SIZES} are "
                "needed"
            )
    if not min(rows.seconds.min(), rows.size.min()) > 0:
        raise InputError(f"a row of {label} has a time or a size of 0")
    expected_s = kernel_fit.predicted_s(gpu, model, kind, rows, tensor_parallel)
    if expected_s.min() > 0:
        check_unit(f"the time of {label}", rows.seconds / expected_s, unit)


def _axes(kind: str, rows: KernelRows) -> dict[str, NDArray[np.float64]]:
    values = {axis: getattr(rows, name) for axis, name in _AXES[kind].items()}
    return {axis: each for axis, each in values.items() if each is not None}


def _fit(
    kind: str, rows: KernelRows, gpu: Gpu, model: LlmModel, tensor_parallel: int
) -> tuple[Gpu, KernelFit]:
    """The GPU with the constants of one kind, and how well they hold.

    Raises:
      InputError: the rows do not determine them, they are beyond the GPU's peaks, or too far off.
    """
    label, tp = LABELS[kind], tensor_parallel

    def errors_of(found: Gpu, judged: KernelRows) -> NDArray[np.float64]:
        return kernel_fit.relative_errors(found, model, kind, judged, tp)

    found = kernel_fit.fit(gpu, model, kind, [rows], tp)
    unsure = kernel_fit.uncertainty(found, model, kind, rows, tp)
    (held_out,) = kernel_fit.held_out_errors(gpu, model, kind, [rows], tp)
    extrapolations = tuple(
        Extrapolation.of(
            edge,
            errors_of(
                kernel_fit.fit(gpu, model, kind, [rows.where(~edge.rows)], tp),
                rows.where(edge.rows),
            ),
        )
        for edge in edges(_axes(kind, rows))
    )
    fit = KernelFit(
        kind=kind,
        rows=len(held_out),
        error=float(np.abs(errors_of(found, rows)).mean()),
        held_out_error=float(np.abs(held_out).mean()),
        worst_error=float(held_out[np.abs(held_out).argmax()]),
        extrapolations=extrapolations,
    )
    _check_error(label, fit.held_out_error)
    for path, deviation in unsure.items():
        # Seconds of which the rows show little are small.
        if deviation > _UNSURE and not path.endswith("_s"):
            spans = " and ".join(
                f"{values.min():g} to {values.max():g} {axis}"
                for axis, values in _axes(kind, rows).items()
            )
            raise InputError(
                f"the rows of {label} ({spans}) do not determine {path.split('.')[-1]}; measure "
                "smaller and larger sizes as well"
            )
    for path, value in kernel_fit.constants(found, kind).items():
        if path in _PEAKS and value > _BEYOND_PEAK:
            raise InputError(
                f"{label} reach {value:.2g} of the {_PEAKS[path]} of {gpu.name}: name the GPU that "
                "was measured, or a file with its peaks"
            )
    for edge in extrapolations:
        of_edge = f"{label} from {edge.largest_left:g} to {edge.largest:g} {edge.axis}"
        _check_error(of_edge, edge.error)
    return found, fit


def _checked_mixed(mixed: MixedFit) -> KernelFit:
    label = LABELS["mixed"]
    fit = KernelFit(
        kind="mixed",
        rows=mixed.rows,
        error=float(np.abs(mixed.errors).mean()),
        held_out_error=float(np.abs(mixed.held_out).mean()),
        worst_error=float(mixed.held_out[np.abs(mixed.held_out).argmax()]),
        extrapolations=mixed.extrapolations,
    )
    _check_error(label, fit.held_out_error)
    for edge in fit.extrapolations:
        of_edge = f"{label} from {edge.largest_left:g} to {edge.largest:g} {edge.axis}"
        _check_error(of_edge, edge.error)
    return fit


def _check_error(label: str, error: float) -> None:
    """Raises InputError where a fit says too little of what was measured."""
    if not error <= WORST_ERROR:
        raise InputError(
            f"the fit is {error:.0%} off in {label} that it was not shown, beyond "
            f"{WORST_ERROR:.0%}, so no table was written"
        )


def _all_tiers(prior: Gpu, fitted: Gpu) -> Gpu:
    """``fitted`` with the linear layers of the other tiers as far from their prior as FP16."""
    old, new = prior.linear[0], fitted.linear[0]

    def scaled(tier: LinearFit) -> LinearFit:
        bandwidth = new.bandwidth_efficiency / old.bandwidth_efficiency
        flops = new.flops_efficiency / old.flops_efficiency
        return dataclasses.replace(
            tier,
            bandwidth_efficiency=tier.bandwidth_efficiency * bandwidth,
            flops_efficiency=tier.flops_efficiency * flops,
            layer_constant_s=tier.layer_constant_s + new.layer_constant_s - old.layer_constant_s,
        )

    _, int8, int4 = fitted.linear
    return dataclasses.replace(fitted, linear=(new, scaled(int8), scaled(int4)))


def _iteration_errors(
    cost: CostModel, timer: ProfileTimer, profile: LayerProfile, kv_tokens: float
) -> IterationErrors:
    """Iterations at the profile's own points that an engine with so many KV tokens can have."""
    chunks, prefixes, seqs, contexts = (
        np.unique(profile.attention[name])[::2].astype(int).tolist()
        for name in ATTENTION_COLUMNS[:-1]
    )
    largest = profile.dense[PRODUCTS[0]][0].max()
    errors, mixed = [], []
    for chunk, prefix, count, context in itertools.product(chunks, prefixes, seqs, contexts):
        meant = (chunk or not prefix) and bool(count) == bool(context) and (chunk or count)
        fits = count * context + chunk + prefix <= kv_tokens and chunk + count <= largest
        if meant and fits and (not chunk or chunk >= SHORTEST_CHUNK):
            load = {"decode_seqs": count, "kv_tokens": float(count * context)}
            pieces = ((chunk, prefix),) if chunk else ()
            measured_s = timer.iteration_s(**load, chunks=pieces)
            errors.append(cost.iteration_s(**load, chunks=pieces) / measured_s - 1)
            mixed += errors[-1:] if chunk and count else []
    if not mixed:
        raise InputError(
            "the layer profile has no iteration of prompts and decodes that fits into the GPU's "
            "memory"
        )
    worst = max(errors, key=abs)
    error, mixed_error = (float(np.abs(each).mean()) for each in (errors, mixed))
    return IterationErrors(len(errors), error, mixed_error, float(worst))
