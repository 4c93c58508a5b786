"""Engines that the user measured: load tests and tables in place of published constants.

A load test is fitted as ``jaxserve table fit`` does it. Its factors on the prior's times also go to
other layouts and formats of the same kind of GPU, whose doubt stays larger. The doubt of a fit is
its error on rows that it was not shown; where the plan runs beyond the rows, the error of the
extrapolation grows with the distance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.plan.as_played import fit_as_played, in_closed_loop
from jaxserve.plan.capacity import usual_in_flight
from jaxserve.plan.doubt import Doubt
from jaxserve.plan.inputs import PlanInputs
from jaxserve.plan.options import EngineOption
from jaxserve.sim.fit.load_test import WORST_TPOT_ERROR, FitReport, MeasuredEngine, fit_sweep
from jaxserve.sim.fit.plausible import check_plausible
from jaxserve.sim.fit.sweep import Sweep, read_sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.formats import STORED_BYTES
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.closed_loop import ClosedLoop
from jaxserve.sim.table.extent import Extent
from jaxserve.sim.table.file import read_table_file

_OTHER_MODEL = 2.5
"""Times the expected TPOT from which a load test is of another model or GPU."""
_FARTHEST = 4.0
"""Times the longest measured sequence beyond which a table or a load test says nothing."""
_NOISE = 0.01
"""Relative scatter of repeated load tests that no fit removes."""


@dataclass(frozen=True)
class LoadTest:
    """Load tests of one engine."""

    gpu: str
    """kind of GPU, as ``--hardware`` names it."""
    tensor_parallel: int
    """GPUs that shared every layer."""
    weight_format: str
    """number format of the weights."""
    paths: tuple[Path, ...]
    """files, whose rows are fitted together."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Times of a measured engine, and what is known of their errors."""

    option: EngineOption
    """the engine, with published times."""
    cost: CostModel
    """fitted times."""
    error: float
    """mean absolute relative error on rows that the fit was not shown."""
    growth: Mapping[str, tuple[float, float]]
    """of an axis beyond the rows: error of its extrapolation, and the factor between the largest
    value the fit saw and the largest it was asked for."""
    extent: Extent | None
    """what was measured; None where the table does not tell."""
    name: str
    """name of the measurement."""
    factor: float | None = None
    """one factor on all times, where that is all that was measured."""
    note: str = ""
    """what was understood of the files, in one line."""

    def doubt(self, inputs: PlanInputs, in_flight: float, published: Doubt | None) -> Doubt:
        """Doubt where a plan runs.

        Args:
          in_flight: most requests in flight on one engine.
          published: doubt of another layout or format, which the fit does not remove; None for the
            engine that was measured.

        Raises:
          InputError: the requests are far longer than all that was measured.
        """
        error, source = math.hypot(self.error, _NOISE), self.name
        if self.extent is not None:
            asked = Extent.of_requests(
                in_flight, inputs.trace.prompt_tokens, inputs.trace.output_tokens
            )
            if asked.sequences[1] > _FARTHEST * self.extent.sequences[1]:
                raise InputError(
                    f"{self.name} measured sequences of at most {self.extent.sequences[1]:,.0f} "
                    f"tokens, but the traffic has {asked.sequences[1]:,.0f}; measure longer ones"
                )
            beyond = {
                "requests in flight": asked.in_flight[1] / self.extent.in_flight[1],
                "tokens in a sequence": asked.sequences[1] / self.extent.sequences[1],
            }
            for axis, ratio in beyond.items():
                if ratio > 1.0:
                    worst, factor = self.growth.get(axis, (max(2 * self.error, 0.05), 2.0))
                    steps = math.log(ratio) / math.log(max(factor, 1.2))
                    error += worst * steps
                    source += f", {ratio:.1f} times beyond its {axis}"
        if published is None:
            return Doubt(error, source, True)
        # The factors carry over; what is left is what layouts and formats differ in.
        return Doubt(math.hypot(error, 0.5 * published.error), f"{source}; of another layout")


def measured_options(
    options: Sequence[EngineOption],
    inputs: PlanInputs,
    load_tests: Sequence[str] = (),
    table: Path | None = None,
    tell: Callable[[str], object] | None = None,
) -> list[EngineOption]:
    """Options with the times of load tests and of a table where the user has them.

    Args:
      load_tests: texts ``[GPU/TP/FORMAT=]FILE``.
      tell: is given the description of each load test.

    Raises:
      InputError: a file is of no engine of the plan, or does not tell its times.
    """
    found = list(options)
    published = {option.name: option for option in options}
    fits = [fit_load_test(test, inputs, options) for test in parse_load_tests(load_tests, inputs)]
    if tell is not None:
        for measured in fits:
            tell(measured.note)
    if table is not None:
        fits.append(read_measured_table(table, options))
    for measured in fits:
        found = with_measured(found, measured, inputs, published)
    return found


def parse_load_tests(texts: Sequence[str], inputs: PlanInputs) -> list[LoadTest]:
    """Load tests from ``[GPU/TP/FORMAT=]FILE``.

    Raises:
      InputError: a text names no file or no engine of the plan.
    """
    paths: dict[tuple[str, int, str], list[Path]] = {}
    for text in texts:
        engine, _, file = text.rpartition("=")
        if not Path(file).is_file():
            raise InputError(f"--load-test {file} is not a file; it must be a load test")
        paths.setdefault(_engine(engine, text, inputs), []).append(Path(file))
    return [LoadTest(*key, tuple(files)) for key, files in paths.items()]


def _engine(engine: str, text: str, inputs: PlanInputs) -> tuple[str, int, str]:
    kinds = list(inputs.prices)
    if not engine:
        if len(kinds) > 1:
            raise InputError(
                f"--load-test {text} does not say of which GPU; write it like "
                f"{kinds[0]}/1/{inputs.formats[0]}={text}, or name one GPU with --hardware"
            )
        return kinds[0], 1, inputs.formats[0]
    gpu, *rest = engine.split("/")
    checks.one_of(f"GPU of --load-test {text}", gpu, kinds)
    size = checks.digits(f"TP of --load-test {text}", rest[0], 1, 64) if rest else 1
    chosen = rest[1] if len(rest) > 1 else inputs.formats[0]
    return gpu, size, checks.one_of(f"format of --load-test {text}", chosen, STORED_BYTES)


def fit_load_test(test: LoadTest, inputs: PlanInputs, options: Sequence[EngineOption]) -> Measured:
    """Times fitted to load tests.

    Raises:
      InputError: the rows cannot be read, are of another model, or do not tell the times.
    """
    named = ", ".join(str(path) for path in test.paths)
    gpu = load_gpu(test.gpu).name
    option = next(
        (
            each
            for each in options
            if (each.gpu, each.tensor_parallel, each.weight_format)
            == (gpu, test.tensor_parallel, test.weight_format)
        ),
        None,
    )
    if option is None:
        raise InputError(
            f"load test {named} is of {gpu} TP{test.tensor_parallel} {test.weight_format}, which "
            "is not among the engines of the plan; look at --hardware and --format"
        )
    model = load_model(inputs.model).name
    sweep = read_sweep(test.paths, test.tensor_parallel, model=model)
    engine = MeasuredEngine(test.tensor_parallel, option.tier)
    _check_times(sweep, option, engine.token_budget, named)
    report = fit_as_played(
        sweep,
        option,
        engine.token_budget,
        partial(
            fit_sweep, gpu=option.machine[0], model=option.machine[1], source=named, engine=engine
        ),
    )
    _check_fit(report, named)
    lost = f" ({report.left_out:,} requests left out)" if report.left_out else ""
    return Measured(
        option=option,
        cost=report.table.metadata.cost_model,
        error=report.held_out_tpot_error,
        growth={
            each.axis: (
                max(abs(each.worst_error), report.held_out_tpot_error),
                each.largest / each.largest_left,
            )
            for each in report.extrapolations
        },
        extent=Extent.of_rows(sweep.concurrency, sweep.prompt_tokens, sweep.output_tokens),
        name=f"load test {named}{lost}",
        note=report.note,
    )


def read_measured_table(path: Path, options: Sequence[EngineOption]) -> Measured:
    """Times of a latency table.

    Raises:
      InputError: the table is of no engine of the plan, or of another model.
    """
    metadata = read_table_file(str(path)).metadata
    stack = metadata.stack
    layout = ("bf16", "bf16", False)
    if stack is not None:
        layout = (stack.formats[0], stack.kv_format, stack.attention_data_parallel)
    engine = (metadata.hardware, metadata.tensor_parallel, *layout)
    option = next((each for each in options if _engine_of(each) == engine), None)
    if option is None or option.machine[1].name != metadata.model:
        raise InputError(
            f"table {path} is of {metadata.model} on {metadata.hardware} with tensor_parallel "
            f"{metadata.tensor_parallel}, {layout[0]} weights and {layout[1]} KV, which is not "
            "among the engines of the plan"
        )
    return Measured(
        option=option,
        cost=metadata.cost_model,
        error=option.doubt.error if metadata.fit_error is None else metadata.fit_error,
        growth={},
        extent=metadata.measured,
        name=f"table {path}",
    )


def _engine_of(option: EngineOption) -> tuple[str, int, str, str, bool]:
    """Fields that tell one engine of a model from another."""
    return (
        option.gpu,
        option.tensor_parallel,
        option.weight_format,
        option.kv_format,
        option.attention_data_parallel,
    )


def with_measured(
    options: Sequence[EngineOption],
    measured: Measured,
    inputs: PlanInputs,
    published: Mapping[str, EngineOption],
) -> list[EngineOption]:
    """Options with the measured times and doubts in place of the published ones.

    An engine that was measured itself keeps its own times when another one of its kind follows.

    Args:
      published: options with published times, by name.
    """
    found = []
    for option in options:
        same = _engine_of(option) == _engine_of(measured.option)
        if option.gpu != measured.option.gpu or (option.doubt.measured and not same):
            found.append(option)
            continue
        before = published[option.name]
        cost = measured.cost if same else transferred(measured, before.cost)
        in_flight = usual_in_flight(replace(option, cost=cost), inputs)
        doubt = measured.doubt(inputs, in_flight, None if same else before.doubt)
        found.append(replace(option, cost=cost, doubt=option.doubted(doubt)))
    return found


def transferred(measured: Measured, other: CostModel) -> CostModel:
    """Times of another layout or format, with the factors that the fit found on the prior's."""
    if measured.factor is not None:
        return other.slower(measured.factor)
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(CostModel):
        fitted, prior = (
            getattr(measured.cost, field.name),
            getattr(measured.option.cost, field.name),
        )
        if fitted == prior or isinstance(fitted, str) or field.name == "beyond":
            continue
        if isinstance(fitted, tuple):
            factors = [
                one / before if before else 1.0 for one, before in zip(fitted, prior, strict=True)
            ]
            own = getattr(other, field.name)
            changes[field.name] = tuple(x * factor for x, factor in zip(own, factors, strict=True))
        elif prior:
            changes[field.name] = getattr(other, field.name) * fitted / prior
    return replace(other, **changes)


def _check_times(sweep: Sweep, option: EngineOption, token_budget: int, named: str) -> None:
    def predict(rows: Sweep) -> ClosedLoop:
        return in_closed_loop(rows, option.cost, option, token_budget)

    usual = float(np.median(sweep.tpot_s / predict(sweep).tpot_s))
    if not 1 / _OTHER_MODEL <= usual <= _OTHER_MODEL:
        raise InputError(
            f"load test {named} has {usual:.2g} times the TPOT that {option.name} is expected to "
            "have; it is of another model, GPU or format, or its times are not in milliseconds"
        )
    try:
        check_plausible(sweep, predict)
    except InputError as error:
        raise InputError(f"load test {named}: {error}") from None


def _check_fit(report: FitReport, named: str) -> None:
    if report.held_out_tpot_error > WORST_TPOT_ERROR:
        raise InputError(
            f"load test {named} does not tell the times of the engine: a fit to two thirds of its "
            f"rows is {report.held_out_tpot_error:.0%} off on the others; at most "
            f"{WORST_TPOT_ERROR:.0%} is accepted"
        )
