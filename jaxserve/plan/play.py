"""Deployments played request by request on the reference simulator, in processes of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.plan.inputs import PlanInputs, PlanObjective, inputs_digest
from jaxserve.plan.options import EngineOption
from jaxserve.plan.timer import TabulatedTimer
from jaxserve.runtime.process_pool import in_processes
from jaxserve.sim.machine.acceptance import Drafts
from jaxserve.sim.machine.cost_json import cost_to_dict
from jaxserve.sim.reference.own_log import ServedBy, simulate
from jaxserve.sim.traffic.traces import Trace

_SLICES = 3
_SLICE_SHARE = 1 / 24
_SLICE_LEAST_S = 90.0
_WAITS = 0.5


@dataclass(frozen=True)
class PlannedDeployment:
    """Replicas of one engine behind a router."""

    option: EngineOption
    """the engine."""
    replicas: int
    """engines."""
    batch_cap: int
    """sequences that one engine runs at once."""
    token_budget: int
    """tokens of an iteration."""
    prefill: int = 0
    """replicas that only prefill, the others then only decode; 0 where every replica does both."""

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.option.tensor_parallel

    @property
    def usd_per_hour(self) -> float:
        """Rent of all replicas."""
        return self.replicas * self.option.usd_per_hour

    @property
    def kv_tokens(self) -> int:
        """Tokens of the KV pool of one engine."""
        return self.option.kv_tokens(self.batch_cap, self.token_budget)

    @property
    def drafts(self) -> Drafts | None:
        """Speculation up to the batch cap; None without."""
        drafts = self.option.drafts
        return drafts and dataclasses.replace(drafts, depths=drafts.depths[: self.batch_cap])

    @property
    def name(self) -> str:
        """Description for people."""
        depths = ""
        if self.drafts is not None:
            spans = (f"{depth} ({first}-{last})" for first, last, depth in self.drafts.ranges)
            depths = f", speculation depth by sequences {', '.join(spans)}"
        split = ""
        if self.prefill:
            split = f" ({self.prefill} prefill, {self.replicas - self.prefill} decode)"
        return (
            f"{self.replicas} x {self.option.name}{split}, batch cap {self.batch_cap}, "
            f"token budget {self.token_budget}{depths}"
        )

    def of(self, replicas: int) -> PlannedDeployment:
        """The deployment with other replicas, as large a share of which only prefills."""
        prefill = round(self.prefill * replicas / self.replicas)
        if self.prefill:
            prefill = min(max(prefill, 1), replicas - 1)
        return dataclasses.replace(self, replicas=replicas, prefill=prefill)


@dataclass(frozen=True)
class Play:
    """One run of the reference simulator."""

    deployment: PlannedDeployment
    """what serves."""
    slices: bool = False
    """whether only the busiest parts of the traffic are played."""
    slowdown: float = 1.0
    """factor on all times of iterations."""
    traffic_scale: float = 1.0
    """factor on the rate of arrivals."""


@dataclass(frozen=True)
class Played:
    """Result of a run."""

    attainment: float
    """share of the requests inside the objectives; of slices an upper bound for the whole traffic:
    every request outside of them counts as inside the objectives."""
    requests: int
    """requests that were played."""
    missed_ttft: float
    """share of the played requests beyond the objective on TTFT, those not served included."""
    missed_tpot: float
    """share beyond the objective on TPOT."""
    ttft_p50_s: float
    """median time to first token."""
    ttft_p99_s: float
    """99th percentile."""
    tpot_p50_s: float
    """median time per output token."""
    tpot_p99_s: float
    """99th percentile."""
    waited: float
    """share of the requests beyond the objective on TTFT that waited for admission for most of
    it."""
    preempted: float
    """preemptions per request."""
    in_flight: float
    """mean sequences that run on one engine, over the time in which it has any."""
    unserved: int
    """requests that no engine has room for."""
    crowded: float
    """share of the missed requests that arrived in windows busier than the mean."""

    @property
    def chance(self) -> float:
        """Half width of a 95 % interval of the attainment from the chance of arrivals alone: misses
        are a Poisson count."""
        return 1.96 * math.sqrt(max((1.0 - self.attainment) * self.requests, 1.0)) / self.requests


def judge(
    log: np.ndarray, objective: PlanObjective, replicas: int, total: int, busy: NDArray[np.bool_]
) -> Played:
    """The result of a log.

    Args:
      log: ``LOG_DTYPE`` rows.
      replicas: engines that served.
      total: requests of the whole traffic, of which the log may have a part.
      busy: bool[n], whether each request arrived in a window busier than the mean.
    """
    served = np.isfinite(log["finish_s"]) & (log["finish_s"] > 0)
    late = ~served | (log["ttft_s"] > objective.ttft_s)
    slow = served & (log["tpot_s"] > objective.tpot_s)
    missed = late | slow
    waits_s = log["first_scheduled_s"] - log["arrival_s"]
    waited = late & (~served | (waits_s > _WAITS * objective.ttft_s))
    several = served & (log["output_tokens"] > 1)
    spans_s = (log["finish_s"] - log["first_scheduled_s"])[served]
    end_s = log["finish_s"][served].max(initial=0.0)
    begin_s = log["arrival_s"].min(initial=0.0)
    return Played(
        attainment=1.0 - float(missed.sum()) / max(total, 1),
        requests=len(log),
        missed_ttft=float(late.mean()),
        missed_tpot=float(slow.mean()),
        ttft_p50_s=_quantile(log["ttft_s"][served], 50),
        ttft_p99_s=_quantile(log["ttft_s"][served], 99),
        tpot_p50_s=_quantile(log["tpot_s"][several], 50),
        tpot_p99_s=_quantile(log["tpot_s"][several], 99),
        waited=float(waited.sum()) / max(int(late.sum()), 1),
        preempted=float(log["preemptions"].mean()),
        in_flight=float(spans_s.sum() / max(end_s - begin_s, 1e-9) / replicas),
        unserved=int((~served).sum()),
        crowded=float((missed & busy).sum()) / max(int(missed.sum()), 1),
    )


def interval(results: Sequence[Played]) -> tuple[float, float]:
    """95 % interval of the attainment.

    Args:
      results: whole runs of one deployment at the expected times and at both ends of their doubt.
        A shorter time does not always mean fewer misses, so the extremes count.
    """
    low = min(results, key=lambda each: each.attainment)
    high = max(results, key=lambda each: each.attainment)
    return max(low.attainment - low.chance, 0.0), min(high.attainment + high.chance, 1.0)


def _quantile(values: NDArray[np.float64], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan


def busiest(trace: Trace) -> list[NDArray[np.bool_]]:
    """Requests bool[n] of disjoint parts of a trace: with the most prompt tokens, the most output
    tokens and the most requests. A trace that they would cover to a half is one part."""
    length_s = max(_SLICE_SHARE * trace.duration_s, _SLICE_LEAST_S)
    if 2 * _SLICES * length_s > trace.duration_s:
        return [np.ones(len(trace), bool)]
    chosen = np.zeros(len(trace), bool)
    parts = []
    for weights in (trace.prompt_tokens, trace.output_tokens, np.ones(len(trace))):
        sums = np.append(0.0, np.cumsum(np.where(chosen, 0.0, weights)))
        ends = np.searchsorted(trace.arrival_s, trace.arrival_s + length_s)
        first = int((sums[ends] - sums[:-1]).argmax())
        part = np.zeros(len(trace), bool)
        part[first : ends[first]] = True
        part &= ~chosen
        chosen |= part
        parts.append(part)
    return [part for part in parts if part.any()]


class Player:
    """Plays deployments on the traffic of a plan; a result is computed once."""

    def __init__(self, inputs: PlanInputs, kept: Path | None = None, lanes: int = 1) -> None:
        """Args: the plan's inputs, a file that keeps results for a run that goes on, and the runs
        at a time, in processes of their own if they are several."""
        self._inputs = inputs
        self.lanes = lanes
        """Runs at a time."""
        self._kept = kept
        self._digest = inputs_digest(inputs)
        self._results: dict[str, Played] = _read_kept(kept)
        self.computed = 0
        """Runs that were computed and not read from ``kept``."""

    def play(self, plays: Sequence[Play], done: Callable[[], None] | None = None) -> list[Played]:
        """Results in the order of ``plays``; ``done`` is called after each."""
        keys = [self._key(play) for play in plays]
        new = {key: play for key, play in zip(keys, plays, strict=True) if key not in self._results}
        jobs = [(self._inputs, play) for play in new.values()]
        lanes = self.lanes if len(jobs) > 1 else 1
        if done is not None:
            for _ in range(len(plays) - len(new)):
                done()
        for key, result in zip(new, in_processes(_play, jobs, lanes), strict=True):
            self._keep(key, result)
            if done is not None:
                done()
        return [self._results[key] for key in keys]

    def _keep(self, key: str, result: Played) -> None:
        self._results[key] = result
        self.computed += 1
        if self._kept is not None:
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **dataclasses.asdict(result)}) + "\n")

    def _key(self, play: Play) -> str:
        by = play.deployment
        parts = (
            self._digest,
            cost_to_dict(by.option.cost),
            by.option.tier,
            by.replicas,
            by.batch_cap,
            by.token_budget,
            by.kv_tokens,
            *(by.option.sequence_kv or ()),
            play.slices,
            play.slowdown,
            play.traffic_scale,
            *(() if by.drafts is None else (by.drafts.profile, by.drafts.depths)),
            *((by.prefill, by.option.handover_s_per_token) if by.prefill else ()),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read_kept(path: Path | None) -> dict[str, Played]:
    """Results of an earlier run; lines that it did not finish are left out."""
    found: dict[str, Played] = {}
    if path is None or not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
            key = values.pop("key")
            found[key] = Played(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _play(inputs: PlanInputs, play: Play) -> Played:
    """One run."""
    trace, by = inputs.trace, play.deployment
    if play.traffic_scale != 1.0:
        trace = dataclasses.replace(trace, arrival_s=trace.arrival_s / play.traffic_scale)
    timer = TabulatedTimer(by.option.cost, by.option.tier, play.slowdown)
    engines = served_by(by, trace, inputs.frontend_s)
    busy = _in_busy_windows(trace)
    parts = busiest(trace) if play.slices else [np.ones(len(trace), bool)]
    logs = [simulate(trace.chosen(part), timer, engines) for part in parts]
    chosen = np.concatenate([busy[part] for part in parts])
    return judge(np.concatenate(logs), inputs.objective, by.replicas, len(trace), chosen)


def served_by(by: PlannedDeployment, trace: Trace, frontend_s: float = 0.0) -> ServedBy:
    """Settings of the engines of a deployment; prefixes are cached where the trace tells them."""
    return ServedBy(
        kv_tokens=by.kv_tokens,
        gpus=by.replicas,
        batch_cap=by.batch_cap,
        token_budget=by.token_budget,
        tier=by.option.tier,
        prefix_caching=trace.blocks is not None and by.option.caches_prefixes,
        frontend_s=frontend_s,
        drafts=by.drafts,
        prefill_gpus=by.prefill,
        handover_s_per_token=by.option.handover_s_per_token,
        sequence_kv=by.option.sequence_kv,
    )


def _in_busy_windows(trace: Trace, window_s: float = 60.0) -> NDArray[np.bool_]:
    """bool[n], whether a request arrives in a window with more requests than the mean one."""
    window = (trace.arrival_s / window_s).astype(np.int64)
    counts = np.bincount(window)
    return (counts > 1.1 * len(trace) / len(counts))[window]
