"""Calibration: from a running engine to a checked latency table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.agents.progress import Progress
from jaxserve.errors import InputError
from jaxserve.fields import TOKEN_BUDGETS, Tier
from jaxserve.live.calibration.fit import (
    MAX_ERROR,
    Fit,
    fit,
    of_load_test,
    of_steps,
    predict,
)
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.live.calibration.sweep import EngineMeasurements, measure
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.show.text_table import TextTable
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import EngineSettings, Gpu, LlmModel, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.build import fill_measured
from jaxserve.sim.table.file import Calibration, TableFile


@dataclass(frozen=True)
class Deployed:
    """The user's description of the engine."""

    hardware: str
    """name of its GPU, or path of a GPU file."""
    model: str
    """name of its model."""
    tensor_parallel: int = 1
    """GPUs that share every layer."""
    tier: int = 0
    """quantisation tier of the served weights."""
    token_budget: int | None = None
    """most tokens of an iteration; None for the engine's own figure, or else vLLM's default."""

    def load(self) -> tuple[Gpu, LlmModel]:
        """Loads the descriptions of GPU and model.

        Raises:
          InputError: a name is unknown, or a number is out of range.
        """
        checks.whole("--tensor-parallel", self.tensor_parallel, 1, 64)
        checks.whole("--tier", self.tier, 0, len(Tier) - 1)
        if self.token_budget is not None:
            checks.whole("--token-budget", self.token_budget, *TOKEN_BUDGETS)
        return load_gpu(self.hardware), load_model(self.model)


@dataclass(frozen=True)
class CalibrationReport:
    """A calibration that passed its check."""

    measured: EngineMeasurements
    """the measurements."""
    fit: Fit
    """the fitted factors."""
    latency_errors: NDArray[np.float64]
    """relative error of the mean latency at every point of the load test."""
    calibration: Calibration
    """the table's record of the calibration."""
    table: TableFile
    """the filled table."""

    @property
    def from_steps(self) -> bool:
        """Whether the fit is to steps, not to the load test."""
        return self.measured.steps is not None


def calibrate(
    target: Target, plan: CalibrationPlan, deployed: Deployed, progress: Progress
) -> CalibrationReport:
    """Measures a running engine and fits a table to it.

    Raises:
      InputError: a number is out of range, ``measure`` fails, or the error of the fit exceeds
        ``MAX_ERROR``.
    """
    plan.check()
    deployed.load()

    async def run() -> EngineMeasurements:
        async with EngineClient(target) as engine:
            return await measure(engine, plan, progress)

    return calibrated(asyncio.run(run()), deployed)


def calibrated(measured: EngineMeasurements, deployed: Deployed) -> CalibrationReport:
    """Fits a table to measurements; raises as ``calibrate`` does."""
    gpu, model = deployed.load()
    budget = deployed.token_budget or measured.token_budget or EngineSettings.token_budget
    kv_tokens = float(measured.kv_pool_tokens or np.inf)
    served, steps = _served(measured), measured.steps
    found = fit(of_load_test(served, kv_tokens, budget) if steps is None else of_steps(steps))
    _refuse_beyond(
        found.held_out_error, f"on {found.held_out} of {found.points} loads that it was not shown"
    )
    cost = found.cost_model(gpu.name, model.name, deployed.tensor_parallel)
    # By Little's law, for all requests in flight.
    in_engine_s = measured.load_test.concurrency / (
        predict(cost, served, kv_tokens, budget).requests_per_s
    )
    frontend_s = _frontend_s(measured, in_engine_s, cost, budget)
    errors = (in_engine_s + frontend_s) / measured.latency_s - 1
    _refuse_beyond(float(np.abs(errors).mean()), "on the latency of the requests")
    calibration = Calibration(
        tier=deployed.tier,
        depths=(0,) if steps is None else tuple(int(depth) for depth in np.unique(steps.depth)),
        kv_pool_tokens=measured.kv_pool_tokens,
        frontend_s=frontend_s,
    )
    source = f"{len(steps)} steps" if steps is not None else "a load test"
    table = fill_measured(
        cost,
        gpu,
        model,
        source=f"calibrated on {source} of a running engine; {_filled(calibration)}",
        fit_error=found.held_out_error,
        token_budget=budget,
        calibration=calibration,
    )
    return CalibrationReport(measured, found, errors, calibration, table)


def report_table(report: CalibrationReport) -> TextTable:
    """The factors of the fit as a table."""
    found = report.fit
    rows = [(f"each {name}", _microseconds(factor)) for name, factor in found.factors.items()]
    if found.knee_tokens is not None:
        rows.append(("free tokens (the knee)", f"{found.knee_tokens:.0f}"))
    rows.append(("front end, of TTFT", _microseconds(report.calibration.frontend_s)))
    return TextTable("an iteration of the engine", ("spent on", "microseconds"), tuple(rows))


def report_sentences(report: CalibrationReport) -> list[str]:
    """Sentences on the errors of the fit, and on unmeasured columns."""
    found, errors = report.fit, report.latency_errors
    unit = "kinds of steps" if report.from_steps else "points of the load test"
    return [
        f"fitted to {found.points} {unit}, {found.error:.1%} off; {found.held_out} of them held "
        f"out: {found.held_out_error:.1%} off, the tenth with the largest loads "
        f"{found.largest_error:.1%}, the worst {found.worst_error:+.1%}",
        f"latency of the {report.measured.requests} requests: {np.abs(errors).mean():.1%} off, "
        f"{errors.mean():+.1%} on average",
        _filled(report.calibration),
    ]


def _filled(calibration: Calibration) -> str:
    """One sentence on unmeasured tiers and depths, and the source of their times."""
    measured = Tier(calibration.tier).name
    depths = ", ".join(map(str, calibration.depths))
    return (
        f"only tier {calibration.tier} ({measured}) was measured and the other tiers are copies of "
        f"it; only depth {depths} was measured and others follow from their tokens, with free "
        "drafts"
    )


def _served(measured: EngineMeasurements) -> Sweep:
    """The load test, with concurrency limited to the engine's batch cap."""
    sweep = measured.load_test
    if measured.batch_cap is None:
        return sweep
    return replace(sweep, concurrency=np.minimum(sweep.concurrency, measured.batch_cap))


def _frontend_s(
    measured: EngineMeasurements, in_engine_s: NDArray[np.float64], cost: CostModel, budget: int
) -> float:
    """Delay of the front end: the median over requests that run alone.

    TTFT and latency of such requests each give an upper bound; tokens in bursts spoil that of TTFT.
    """
    sweep = measured.load_test
    alone = sweep.concurrency == 1
    if sweep.ttft_s is None or not alone.any():
        return 0.0
    prefill_s = cost.prefill_alone_s(sweep.prompt_tokens, 0, budget)
    beyond_s = (sweep.ttft_s - prefill_s)[alone], (measured.latency_s - in_engine_s)[alone]
    return max(0.0, min(float(np.median(each)) for each in beyond_s))


def _refuse_beyond(error: float, where: str) -> None:
    if not error <= MAX_ERROR:
        raise InputError(
            f"the fit is {error:.0%} off {where}, beyond {MAX_ERROR:.0%}, so no table was written: "
            "the engine may have had other work, or runs fewer sequences at a time than "
            "--concurrency asks for"
        )


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.4g}"
