"""Fits a cost model to a measured load test, and fills a latency table from it.

What is fitted are factors on the times of a prior, the cost model of a known GPU, by least squares
on log TPOT. Each factor has a prior of its own width, so a sweep that says nothing about a constant
(no long contexts, no short outputs) leaves it where it was. TTFT counts little and robustly: load
generators differ in whether it includes the wait for a slot.

Three errors are found by fits to other rows: on every third row, which tells interpolation, and on
the rows with the most requests in flight and the longest sequences, which tell extrapolation. The
table carries the largest.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, least_squares

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import TOKEN_BUDGETS, Tier
from jaxserve.sim.fit.extrapolation import Extrapolation, edges
from jaxserve.sim.fit.plausible import check_plausible
from jaxserve.sim.fit.sweep import Sweep, read_sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import GIB, EngineSettings, Gpu, LlmModel, load_gpu
from jaxserve.sim.machine.memory import kv_capacity_tokens, sequence_kv
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.build import fill_measured
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop
from jaxserve.sim.table.extent import Extent
from jaxserve.sim.table.file import (
    TableFile,
    write_table_file,
)

FOLDS = 3
"""Every third row is held out in turn."""
WORST_TPOT_ERROR = 0.15
"""Mean relative error on TPOT, of the fit or on rows that a fit was not shown, beyond which there
is no table: a unit, a column or the GPU is wrong, or rows do not tell how others behave."""

_TPOT_SIGMA = 0.03  # relative; what repeated runs of a load test scatter
_TTFT_SIGMA = 0.5
_MAX_FACTOR = 5.0


@dataclass(frozen=True)
class _Constant:
    """Fitted factor: its fields of ``CostModel``, and its expected distance from 1 (log)."""

    name: str
    fields: tuple[str, ...]
    sigma: float


_CONSTANTS = (
    _Constant("weight streaming", ("weight_read_s", "head_read_s"), 0.2),
    _Constant("linear arithmetic", ("linear_s_per_token", "head_s_per_row"), 0.2),
    _Constant("host time", ("host_s",), 1.0),
    _Constant("elementwise kernels", ("elementwise_s_per_token",), 0.7),
    _Constant("KV streaming", ("kv_read_s_per_token",), 0.2),
    _Constant("attention per sequence", ("attention_constant_s", "attention_s_per_sequence"), 0.3),
    _Constant("prefill attention", ("prefill_s_per_token", "prefill_s_per_pair"), 0.2),
)


@dataclass(frozen=True)
class FittedConstant:
    """Fitted factor on some of the prior's times."""

    name: str
    """part of an iteration that takes these times."""
    factor: float
    """fitted time / prior time."""
    known: float
    """share of the prior's variance that the measurements removed; near 0 means that they say
    nothing about this constant."""
    at_limit: bool
    """the factor is as far from 1 as is allowed. Fast ones are at the peak of the GPU, so the sweep
    is of a faster GPU than the prior's peaks say."""


@dataclass(frozen=True)
class GpuPeaks:
    """Peaks of the measured GPU where they differ from the prior's; None where they do not."""

    bandwidth_gb_per_s: float | None = None
    """memory bandwidth, 10**9 bytes/s."""
    bf16_tflops: float | None = None
    """peak arithmetic, 10**12 FLOP/s."""
    memory_gib: float | None = None
    """device memory, GiB."""


@dataclass(frozen=True)
class MeasuredEngine:
    """Settings of the measured engine."""

    tensor_parallel: int = 1
    """GPUs that shared every layer."""
    tier: int = 0
    """quantisation tier."""
    token_budget: int = EngineSettings.token_budget
    """tokens that one iteration could process."""

    def check(self) -> None:
        """Raises InputError where a number is out of range."""
        checks.whole("tier", self.tier, 0, len(Tier) - 1)
        checks.whole("token_budget", self.token_budget, *TOKEN_BUDGETS)


@dataclass(frozen=True)
class FitReport:
    """Result of a fit. Errors are mean absolute relative errors."""

    rows: int
    """measured points."""
    constants: tuple[FittedConstant, ...]
    """fitted factors."""
    tpot_error: float
    """mean TPOT error of the final fit on the rows it was fitted to."""
    ttft_error: float | None
    """mean absolute relative error of TTFT on these rows."""
    held_out_tpot_error: float
    """mean TPOT error on each third of the rows by a fit to the others."""
    held_out_ttft_error: float | None
    """mean absolute relative error of TTFT on held-out rows."""
    extrapolations: tuple[Extrapolation, ...]
    """errors on the rows with the most requests in flight and on those with the longest sequences,
    by fits to the others; an axis is left out whose rows do not suffice."""
    single_lengths: dict[str, float]
    """lengths of which all rows have one, tokens: beyond them nothing is known."""
    prior_tpot_error: float
    """mean absolute relative error of the prior's TPOT."""
    worst_row: tuple[int, float]
    """row (from 1) with the largest held-out TPOT error, and that error with its sign."""
    table: TableFile
    """the filled table."""
    note: str = ""
    """what was understood of the files, in one line."""
    left_out: int = 0
    """requests that failed or were cut off, which the times leave out."""


def fit(
    path: Path | str | Sequence[Path | str],
    gpu_name: str,
    model_name: str,
    out: Path | str,
    *,
    peaks: GpuPeaks | None = None,
    engine: MeasuredEngine | None = None,
) -> FitReport:
    """Fits the sweep in ``path`` and writes the table that it gives to ``out``.

    Args:
      path: measured sweep, see ``read_sweep``: a file, or several of one engine.
      gpu_name: GPU whose constants are the prior.
      model_name: model that was measured.
      out: path of the table, ending in .parquet.
      peaks: of the measured GPU, where it is not ``gpu_name``.
      engine: how it was started.

    Raises:
      InputError: anything unknown, unreadable, implausible or out of range, or a fit that is more
        than ``WORST_TPOT_ERROR`` off; nothing is written then.
    """
    checks.ending("out", out, ".parquet")
    engine = engine or MeasuredEngine()
    engine.check()
    gpu = rescale(load_gpu(gpu_name), peaks or GpuPeaks())
    model = load_model(model_name)
    files = [Path(each) for each in ([path] if isinstance(path, Path | str) else path)]
    sweep = read_sweep(files, engine.tensor_parallel, engine.token_budget, model.name, engine.tier)
    named = ", ".join(each.name for each in files)
    source = f"fitted to {named}, {len(sweep)} rows, prior {gpu_name}"
    if sweep.left_out:
        source += f", {sweep.left_out:,} requests left out"
    try:
        check_plausible(sweep, _prediction(gpu, model, engine))
        report = fit_sweep(sweep, gpu, model, source=source, engine=engine)
        _check_good(report)
    except InputError as error:
        raise InputError(f"sweep file {', '.join(map(str, files))}: {error}") from None
    write_table_file(out, report.table)
    return report


def fit_sweep(
    sweep: Sweep,
    gpu: Gpu,
    model: LlmModel,
    *,
    source: str,
    engine: MeasuredEngine | None = None,
) -> FitReport:
    """Fits a sweep; ``gpu`` is the prior. See ``fit``.

    Args:
      sweep: measured rows.
      gpu: the prior.
      model: shapes of the layers.
      source: origin of the sweep, for the table's metadata.
      engine: settings of the measured engine; default is ``MeasuredEngine()``.

    Raises:
      InputError: the model does not fit into memory, or a number is out of range.
    """
    engine = engine or MeasuredEngine()
    prior = CostModel.of(gpu, model, engine.tensor_parallel)
    predict = _predictor(gpu, model, engine)
    lowest = _lowest_factors(gpu, engine.tier)

    def fitted_to(rows: Sweep) -> CostModel:
        return _scaled(prior, _solve(prior, lowest, rows, predict).x)

    def held_out_s(out: NDArray[np.bool_]) -> ClosedLoop:
        return predict(fitted_to(sweep.select(~out)), sweep.select(out))

    solution = _solve(prior, lowest, sweep, predict)
    cost = _scaled(prior, solution.x)
    folds_s = np.empty((2, len(sweep)))
    for fold in range(FOLDS):
        out = np.arange(len(sweep)) % FOLDS == fold
        loop = held_out_s(out)
        folds_s[:, out] = loop.tpot_s, loop.ttft_p50_s
    held_out = folds_s[0] / sweep.tpot_s - 1
    worst = int(np.abs(held_out).argmax())
    fitted = predict(cost, sweep)
    held_out_error = _mean_error(folds_s[0], sweep.tpot_s)
    extrapolations = tuple(
        Extrapolation.of(edge, held_out_s(edge.rows).tpot_s / sweep.tpot_s[edge.rows] - 1)
        for edge in edges(sweep.axes())
    )
    table = fill_measured(
        cost,
        gpu,
        model,
        source=source,
        fit_error=max([held_out_error, *(each.error for each in extrapolations)]),
        token_budget=engine.token_budget,
        measured=Extent.of_rows(sweep.concurrency, sweep.prompt_tokens, sweep.output_tokens),
    )
    return FitReport(
        rows=len(sweep),
        constants=_fitted_constants(solution),
        tpot_error=_mean_error(fitted.tpot_s, sweep.tpot_s),
        ttft_error=None if sweep.ttft_s is None else _mean_error(fitted.ttft_p50_s, sweep.ttft_s),
        held_out_tpot_error=held_out_error,
        held_out_ttft_error=None if sweep.ttft_s is None else _mean_error(folds_s[1], sweep.ttft_s),
        extrapolations=extrapolations,
        single_lengths=sweep.single_lengths(),
        prior_tpot_error=_mean_error(predict(prior, sweep).tpot_s, sweep.tpot_s),
        worst_row=(worst + 1, float(held_out[worst])),
        table=table,
        note=sweep.note,
        left_out=sweep.left_out,
    )


def _predictor(
    gpu: Gpu, model: LlmModel, engine: MeasuredEngine
) -> Callable[[CostModel, Sweep], ClosedLoop]:
    """Function that predicts rows by a cost model, with the memory that ``gpu`` has for KV."""
    kv_tokens = kv_capacity_tokens(gpu, model, engine.tier, 1.0, False, engine.tensor_parallel)

    def predict(cost: CostModel, rows: Sweep) -> ClosedLoop:
        return closed_loop(
            cost,
            rows.concurrency,
            rows.prompt_tokens,
            rows.output_tokens,
            tier=engine.tier,
            kv_tokens=kv_tokens,
            sequence_kv=sequence_kv(model, engine.tensor_parallel),
            token_budget=engine.token_budget,
        )

    return predict


def _prediction(gpu: Gpu, model: LlmModel, engine: MeasuredEngine) -> Callable[[Sweep], ClosedLoop]:
    """Prediction of rows by the prior."""
    prior = CostModel.of(gpu, model, engine.tensor_parallel)
    return partial(_predictor(gpu, model, engine), prior)


def _check_good(report: FitReport) -> None:
    """Raises InputError where the fit says little about the engine that was measured."""
    if report.tpot_error > WORST_TPOT_ERROR:
        raise InputError(
            f"the fit is {report.tpot_error:.0%} off in TPOT, row {report.worst_row[0]} most of "
            f"all; at most {WORST_TPOT_ERROR:.0%} is accepted: look at its columns, at the token "
            "budget and tier, and whether another GPU is nearer"
        )
    unseen = {f"every {FOLDS}rd row": report.held_out_tpot_error} | {
        f"rows from {each.largest_left:g} to {each.largest:g} {each.axis}": each.error
        for each in report.extrapolations
    }
    rows, error = max(unseen.items(), key=lambda item: item[1])
    if error > WORST_TPOT_ERROR:
        raise InputError(
            f"a fit to the other rows is {error:.0%} off in TPOT of {rows}; at most "
            f"{WORST_TPOT_ERROR:.0%} is accepted: measure more settings between these and the "
            "others, and look at the columns, the token budget and the tier"
        )


def rescale(gpu: Gpu, peaks: GpuPeaks) -> Gpu:
    """``gpu`` with other peaks: its efficiencies are kept and its absolute times scale with them.

    Raises:
      InputError: a number is not positive.
    """
    given = {
        "bandwidth_gb_per_s": (peaks.bandwidth_gb_per_s, gpu.bandwidth_bytes_per_s / 1e9),
        "bf16_tflops": (peaks.bf16_tflops, gpu.linear[0].flops_per_s / 1e12),
        "memory_gib": (peaks.memory_gib, gpu.memory_bytes / GIB),
    }
    bandwidth, flops, memory = (
        1.0 if value is None else checks.positive(name, value) / own
        for name, (value, own) in given.items()
    )
    fp16, int8, int4 = (
        dataclasses.replace(fit, flops_per_s=fit.flops_per_s * flops) for fit in gpu.linear
    )
    return dataclasses.replace(
        gpu,
        memory_bytes=gpu.memory_bytes * memory,
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * bandwidth,
        linear=(fp16, int8, int4),
        attention=dataclasses.replace(
            gpu.attention, prefill_per_token_s=gpu.attention.prefill_per_token_s / bandwidth
        ),
        elementwise_s_per_token=gpu.elementwise_s_per_token / bandwidth,
    )


def _lowest_factors(gpu: Gpu, tier: int) -> NDArray[np.float64]:
    """Smallest allowed log factors: no kernel may exceed the peak of the GPU."""
    linear, attention = gpu.linear[tier], gpu.attention
    efficiency = {
        "weight streaming": linear.bandwidth_efficiency,
        "linear arithmetic": linear.flops_efficiency,
        "KV streaming": attention.bandwidth_efficiency,
        "prefill attention": attention.prefill_flops_efficiency,
    }
    return np.log([efficiency.get(constant.name, 1 / _MAX_FACTOR) for constant in _CONSTANTS])


def _solve(
    prior: CostModel,
    lowest: NDArray[np.float64],
    sweep: Sweep,
    predict: Callable[[CostModel, Sweep], ClosedLoop],
) -> OptimizeResult:
    """Log factors with the least squared residuals, in units of their standard deviations."""
    sigma = np.array([constant.sigma for constant in _CONSTANTS])

    def residuals(log_factors: NDArray[np.float64]) -> NDArray[np.float64]:
        loop = predict(_scaled(prior, log_factors), sweep)
        parts = [np.log(loop.tpot_s / sweep.tpot_s) / _TPOT_SIGMA, log_factors / sigma]
        if sweep.ttft_s is not None:
            parts.append(np.log(loop.ttft_p50_s / sweep.ttft_s) / _TTFT_SIGMA)
        return np.concatenate(parts)

    bounds = (np.minimum(lowest, -1e-6), math.log(_MAX_FACTOR))
    return least_squares(residuals, np.zeros(len(sigma)), bounds=bounds, loss="soft_l1")


def _scaled(prior: CostModel, log_factors: NDArray[np.float64]) -> CostModel:
    """``prior`` with the times of every constant multiplied."""
    changes = {}
    for constant, log_factor in zip(_CONSTANTS, log_factors, strict=True):
        factor = math.exp(log_factor)
        for name in constant.fields:
            value = getattr(prior, name)
            scaled = (
                tuple(factor * x for x in value) if isinstance(value, tuple) else factor * value
            )
            changes[name] = scaled
    return dataclasses.replace(prior, **changes)


def _fitted_constants(solution: OptimizeResult) -> tuple[FittedConstant, ...]:
    """Factors, and how much narrower than the prior each has become (Laplace approximation)."""
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    return tuple(
        FittedConstant(
            name=constant.name,
            factor=math.exp(log_factor),
            known=float(np.clip(1 - variance / constant.sigma**2, 0.0, 1.0)),
            at_limit=bool(bound),
        )
        for constant, log_factor, variance, bound in zip(
            _CONSTANTS, solution.x, np.diag(covariance), solution.active_mask, strict=True
        )
    )


def _mean_error(predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64]) -> float:
    """Mean absolute relative error."""
    return float(np.abs(predicted_s / measured_s - 1).mean())
