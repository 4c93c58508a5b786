"""A plan beside a started server: a part of the traffic is sent, and the plan is made again.

The busiest part of the traffic goes to the server at its times, and the reference simulator plays
the same requests. One factor on all times of iterations makes the mean TPOT equal; what is left of
the median TTFT is the delay between client and engine. How far the factor differs between the
thirds of the requests is the doubt that is left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.player import RequestOutcome, play
from jaxserve.live.prompts import RandomPrompts
from jaxserve.plan.inputs import PlanInputs, PlanObjective
from jaxserve.plan.load_tests import Measured, with_measured
from jaxserve.plan.options import EngineOption
from jaxserve.plan.play import PlannedDeployment, served_by
from jaxserve.plan.traffic_parts import busiest
from jaxserve.sim.fast.state import Slo
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import simulate
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.traffic.traces import Trace

_REQUESTS = 300
_SHORTEST_S, _LONGEST_S = 30.0, 600.0
_FEWEST = 20
"""Completed requests below which a check says nothing."""
_MOST_FAILED = 0.05
"""Share of the requests that may fail."""
_FARTHEST = 8.0
"""Factor on the times beyond which the server is not what was planned."""
_ROUNDS = 12
_CLOSE = 2e-3
_NOISE = 0.01


@dataclass(frozen=True)
class CheckFigures:
    """Latencies of the requests of a check."""

    attainment: float
    """share of the requests inside the objectives."""
    ttft_p50_s: float
    """median time to first token."""
    ttft_p99_s: float
    """99th percentile."""
    tpot_mean_s: float
    """mean time per output token."""
    tpot_p99_s: float
    """99th percentile."""

    @classmethod
    def of(
        cls, ttft_s: NDArray[np.float64], tpot_s: NDArray[np.float64], objective: PlanObjective
    ) -> CheckFigures:
        """CheckFigures of the times float64[n]; NaN where a request failed or has one token."""
        inside = (ttft_s <= objective.ttft_s) & ~(tpot_s > objective.tpot_s)
        return cls(
            attainment=float(inside.mean()),
            ttft_p50_s=float(np.nanpercentile(ttft_s, 50)),
            ttft_p99_s=float(np.nanpercentile(ttft_s, 99)),
            tpot_mean_s=float(np.nanmean(tpot_s)),
            tpot_p99_s=float(np.nanpercentile(tpot_s, 99)),
        )


@dataclass(frozen=True)
class Check:
    """A plan beside a started server."""

    planned: PlannedDeployment
    """deployment that the plan named."""
    requests: int
    """requests that were sent."""
    failed: int
    """requests that ended with an error."""
    seconds: float
    """time in which they were sent."""
    expected: CheckFigures
    """figures of the reference simulator, with the plan's times."""
    measured: CheckFigures
    """figures of the server."""
    factor: float
    """measured / planned times of iterations."""
    error: float
    """mean absolute difference of the factor between thirds of the requests, relative."""
    frontend_s: float
    """delay between client and engine, s."""

    def sentences(self) -> list[str]:
        """The comparison in sentences."""
        off = self.factor - 1.0
        side = "slower" if off > 0 else "faster"
        return [
            f"The check sent {self.requests:,} requests in {self.seconds:.0f} s, of which "
            f"{self.failed:,} failed: iterations are {abs(off):.1%} {side} than planned "
            f"(within {self.error:.1%}), and {1e3 * self.frontend_s:.0f} ms pass between client "
            "and engine.",
            *(
                f"{name}: planned {scale * planned:.4g}{unit}, measured {scale * found:.4g}{unit} "
                f"({found / planned - 1:+.1%})"
                for name, planned, found, scale, unit in (
                    ("attainment", self.expected.attainment, self.measured.attainment, 100, " %"),
                    ("TTFT p50", self.expected.ttft_p50_s, self.measured.ttft_p50_s, 1e3, " ms"),
                    ("TTFT p99", self.expected.ttft_p99_s, self.measured.ttft_p99_s, 1e3, " ms"),
                    ("TPOT mean", self.expected.tpot_mean_s, self.measured.tpot_mean_s, 1e3, " ms"),
                    ("TPOT p99", self.expected.tpot_p99_s, self.measured.tpot_p99_s, 1e3, " ms"),
                )
            ),
        ]


def planned_in(
    folder: Path, inputs: PlanInputs, options: Sequence[EngineOption]
) -> PlannedDeployment:
    """The deployment that the plan in a folder names.

    Raises:
      InputError: there is no plan, it was made for something else, or its engine is not among
        ``options``.
    """
    path = folder / "plan.json"
    if not path.is_file():
        raise InputError(
            f"--check compares the plan in --out with a server, but {path} does not exist; run the "
            "same command without --check first, and start what it names"
        )
    where = f"plan {path}"
    plan = JsonObject(read_json(path, where), where)
    same = {
        "model": inputs.model,
        "traffic": inputs.traffic,
        "objective": dataclasses.asdict(inputs.objective),
    }
    for name, value in same.items():
        if plan.get(name) != value:
            raise InputError(
                f"{where} is of the {name} {plan.get(name)!r:.120}, not {value!r:.120}; name the "
                "options of the plan, or make it anew without --check"
            )
    by = plan.inside("deployment")
    if "draft" in by:
        raise InputError(
            f"{where} speculates with drafts, and --check sends random prompts, whose drafts are "
            "accepted as those of no traffic; make and check the plan without --draft"
        )
    for option in options:
        if (
            option.gpu == by.get("gpu")
            and option.tensor_parallel == by.get("tensor_parallel")
            and option.weight_format == by.get("weight_format")
            and option.kv_format == by.get("kv_format")
            and option.attention_data_parallel == by.get("expert_parallel")
            and option.draft is None
        ):
            return PlannedDeployment(
                option,
                by.whole("replicas", 1),
                by.whole("batch_cap", 1),
                by.whole("token_budget", 1),
                by.whole("prefill_replicas", 1) if "prefill_replicas" in by else 0,
            )
    raise InputError(
        f"{where} names {by.get('name')!r:.120}, which is not among the engines of these options"
    )


def part_to_send(trace: Trace) -> Trace:
    """The part of a trace that is sent: out of the one with the most output tokens, as long as
    suffices for a few hundred requests; without shared prefixes, which random prompts lack."""
    rate = len(trace) / max(trace.duration_s, 1e-9)
    length_s = min(max(_REQUESTS / rate, _SHORTEST_S), _LONGEST_S)
    busy = trace.chosen(busiest(trace)[0])
    part = busy.chosen(busy.arrival_s <= length_s)
    return dataclasses.replace(part, blocks=None)


def check_server(
    url: str,
    inputs: PlanInputs,
    planned: PlannedDeployment,
    progress: Callable[[str, int, int], None] | None = None,
) -> Check:
    """Sends the busiest part of the traffic to a server, and compares.

    Args:
      url: the deployment, or the gateway in front of it; the API key is read from OPENAI_API_KEY.

    Raises:
      InputError: the server cannot be reached or serves shorter sequences, too many requests fail,
        or its times are not those of what was planned.
    """
    part = part_to_send(inputs.trace)
    outcomes = asyncio.run(_sent(url, part, inputs.objective, progress))
    failures = [each.error for each in outcomes if each.error is not None]
    if len(failures) > _MOST_FAILED * len(outcomes) or len(outcomes) - len(failures) < _FEWEST:
        said = f"; the first: {failures[0]}" if failures else ""
        raise InputError(
            f"of {len(outcomes)} requests to {url} {len(failures)} failed, so that their times say "
            f"nothing of the plan: at least {_FEWEST} must end, and at most {_MOST_FAILED:.0%} may "
            f"fail{said}"
        )
    ttft_s = np.array([np.nan if each.ttft_s is None else each.ttft_s for each in outcomes])
    tpot_s = np.array([np.nan if each.tpot_s is None else each.tpot_s for each in outcomes])
    known = np.isfinite(tpot_s)
    if known.sum() < _FEWEST:
        raise InputError(
            f"only {known.sum()} of {len(outcomes)} answers had two tokens or more, which is too "
            "few to tell the time per token"
        )
    factor, log = _factor(part, planned, tpot_s, url)
    thirds = np.array_split(np.flatnonzero(known), 3)
    scatter = [abs(tpot_s[rows].mean() / log["tpot_s"][rows].mean() - 1.0) for rows in thirds]
    expected = _simulated(part, planned, 1.0)
    return Check(
        planned=planned,
        requests=len(outcomes),
        failed=len(failures),
        seconds=part.duration_s,
        expected=CheckFigures.of(
            expected["ttft_s"],
            np.where(part.output_tokens > 1, expected["tpot_s"], np.nan),
            inputs.objective,
        ),
        measured=CheckFigures.of(ttft_s, tpot_s, inputs.objective),
        factor=factor,
        error=float(np.mean(scatter)),
        frontend_s=max(float(np.nanmedian(ttft_s - log["ttft_s"])), 0.0),
    )


async def _sent(
    url: str,
    part: Trace,
    objective: PlanObjective,
    progress: Callable[[str, int, int], None] | None,
) -> list[RequestOutcome]:
    """Outcomes of the requests, sent at their times."""
    prompts, ended = RandomPrompts(0), 0

    def count(outcome: RequestOutcome) -> None:
        nonlocal ended
        ended += 1
        if progress is not None:
            progress("check", ended, len(part))

    slo: Any = Slo(np.array([objective.ttft_s]), np.array([objective.tpot_s]))  # type: ignore[arg-type]
    async with EngineClient(Target(url, os.environ.get("OPENAI_API_KEY"))) as client:
        await prompts.learn(client)
        return await play(client, ["default"], slo, trace_requests(part), prompts, count)


def _factor(
    part: Trace, planned: PlannedDeployment, tpot_s: NDArray[np.float64], url: str
) -> tuple[float, np.ndarray]:
    """Factor on all times that gives the measured mean TPOT, and the log with it.

    The mean TPOT grows with the factor, faster than it where requests pile up, so the factor is
    found by bisection of its logarithm.

    Raises:
      InputError: there is none within ``_FARTHEST``.
    """
    known = np.isfinite(tpot_s)
    wanted_s = float(tpot_s[known].mean())
    low, high = -np.log(_FARTHEST), np.log(_FARTHEST)
    for _ in range(_ROUNDS):
        factor = float(np.exp((low + high) / 2))
        log = _simulated(part, planned, factor)
        off = float(log["tpot_s"][known].mean()) / wanted_s - 1.0
        if abs(off) < _CLOSE:
            return factor, log
        low, high = (low, np.log(factor)) if off > 0 else (np.log(factor), high)
    if abs(np.log(factor)) > 0.98 * np.log(_FARTHEST):
        side = "longer" if factor > 1.0 else "shorter"
        raise InputError(
            f"tokens of {url} take {1e3 * wanted_s:.3g} ms on average, which is more than "
            f"{_FARTHEST:g} times {side} than planned for {planned.name}; another model or GPU "
            "answers there"
        )
    return factor, log


def _simulated(part: Trace, planned: PlannedDeployment, factor: float) -> np.ndarray:
    """``LOG_DTYPE`` rows of the requests, with ``factor`` times the planned iteration times."""
    timer = TabulatedTimer(planned.option.cost, planned.option.tier, factor)
    return simulate(part, timer, served_by(planned, part))


def options_as_checked(
    options: Sequence[EngineOption], check: Check, inputs: PlanInputs
) -> list[EngineOption]:
    """Options with the measured times: the factor goes to all layouts and formats of the kind of
    GPU, whose doubt stays larger than that of the engine itself."""
    option = check.planned.option
    measured = Measured(
        option=option,
        cost=option.cost.slower(check.factor),
        error=float(np.hypot(check.error, _NOISE)),
        growth={},
        extent=None,
        name=f"check on {check.requests:,} requests",
        factor=check.factor,
    )
    return with_measured(options, measured, inputs, {each.name: each for each in options})


def check_json(check: Check) -> dict[str, Any]:
    """The check as a JSON object."""
    figures = {"expected": check.expected, "measured": check.measured}
    numbers = ("requests", "failed", "seconds", "factor", "error", "frontend_s")
    return {
        "planned": check.planned.name,
        "sentences": check.sentences(),
        **{name: getattr(check, name) for name in numbers},
        **{name: dataclasses.asdict(each) for name, each in figures.items()},
    }
