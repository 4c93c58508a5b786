"""Calibration: from a running engine to a checked latency table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.agents.progress import Progress
from jaxserve.errors import InputError
from jaxserve.fields import TOKEN_BUDGETS, Tier
from jaxserve.live.calibration.fit import (
    Fit,
    fit,
    of_load_test,
    of_steps,
    predict,
)
from jaxserve.live.calibration.kept import KeptMeasurements
from jaxserve.live.calibration.plan import MAX_ERROR, CalibrationPlan
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
    loads_off: TextTable
    """loads whose TPOT or latency is off by more than ``MAX_ERROR``."""
    calibration: Calibration
    """the table's record of the calibration."""
    table: TableFile
    """the filled table."""

    @property
    def from_steps(self) -> bool:
        """Whether the fit is to steps, not to the load test."""
        return self.measured.steps is not None


class PoorFit(InputError):
    """A fit whose error exceeds the accepted one."""

    def __init__(self, sentence: str, loads: TextTable) -> None:
        """Args: the error, and the table of the loads that are off."""
        super().__init__(sentence)
        self.loads = loads


def calibrate(
    target: Target,
    plan: CalibrationPlan,
    deployed: Deployed,
    progress: Progress,
    keep: Path | None = None,
) -> CalibrationReport:
    """Measures a running engine and fits a table to it; measures on while the fit is poor, until
    the minutes of the plan are over.

    Args:
      keep: file of the measurements so far, from which the call goes on; the caller removes it.

    Raises:
      PoorFit: the error of the fit exceeds that of the plan.
      InputError: a number is out of range, or ``measure`` fails.
    """
    plan.check()
    deployed.load()
    kept = KeptMeasurements() if keep is None else KeptMeasurements.read(keep)

    def suffices(measured: EngineMeasurements) -> bool:
        try:
            calibrated(measured, deployed, plan.accept)
        except PoorFit:
            return False
        except InputError:
            pass  # more of the same does not mend it
        return True

    async def run() -> EngineMeasurements:
        async with EngineClient(target) as engine:
            return await measure(engine, plan, progress, kept, suffices)

    return calibrated(asyncio.run(run()), deployed, plan.accept)


def calibrated(
    measured: EngineMeasurements, deployed: Deployed, accept: float = MAX_ERROR
) -> CalibrationReport:
    """Fits a table to measurements; raises as ``calibrate`` does."""
    gpu, model = deployed.load()
    budget = deployed.token_budget or measured.token_budget or EngineSettings.token_budget
    kv_tokens = float(measured.kv_pool_tokens or np.inf)
    served, steps = _served(measured), measured.steps
    found = fit(of_load_test(served, kv_tokens, budget) if steps is None else of_steps(steps))
    cost = found.cost_model(gpu.name, model.name, deployed.tensor_parallel)
    # By Little's law, for all requests in flight.
    predicted = predict(cost, served, kv_tokens, budget)
    in_engine_s = measured.load_test.concurrency / predicted.requests_per_s
    frontend_s = _frontend_s(measured, in_engine_s, cost, budget)
    errors = (in_engine_s + frontend_s) / measured.latency_s - 1
    loads = _loads_off(served, predicted.tpot_s, errors)
    latency_error = float(np.abs(errors).mean())
    for error, where in (
        (found.held_out_error, f"{found.held_out} of {found.points} loads that it was not shown"),
        (latency_error, "the latency of the requests"),
    ):
        if not error <= accept:
            raise PoorFit(
                f"the fit is {error:.0%} off on {where}, beyond {accept:.0%}, so no table was "
                "written: the engine may have had other work, or runs fewer sequences at a time "
                "than --concurrency asks for; --accept takes a larger error",
                loads,
            )
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
        source=f"calibrated on {source} of a running engine; {_filled(calibration)}"
        + (f"; errors up to {accept:.0%} were accepted" if accept > MAX_ERROR else ""),
        fit_error=max(found.held_out_error, latency_error),
        token_budget=budget,
        calibration=calibration,
    )
    return CalibrationReport(measured, found, errors, loads, calibration, table)


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
        *(f"left out: {reason}" for reason in report.measured.left_out),
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


def _loads_off(
    sweep: Sweep, tpot_s: NDArray[np.float64], latency_errors: NDArray[np.float64]
) -> TextTable:
    """The loads whose predicted TPOT or latency is off by more than ``MAX_ERROR``."""
    tpot_errors = tpot_s / sweep.tpot_s - 1
    off = (np.abs(tpot_errors) > MAX_ERROR) | (np.abs(latency_errors) > MAX_ERROR)
    rows = zip(
        sweep.concurrency[off],
        sweep.prompt_tokens[off],
        sweep.output_tokens[off],
        tpot_errors[off],
        latency_errors[off],
        strict=True,
    )
    return TextTable(
        f"loads that the fit misses by more than {MAX_ERROR:.0%}",
        ("in flight", "prompt tokens", "output tokens", "fitted TPOT", "fitted latency"),
        tuple(
            (f"{load:.0f}", f"{prompt:.0f}", f"{output:.0f}", f"{tpot:+.0%}", f"{latency:+.0%}")
            for load, prompt, output, tpot, latency in rows
        ),
    )


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.4g}"
