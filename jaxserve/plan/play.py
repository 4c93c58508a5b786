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
from scipy.stats import t as student_t

from jaxserve.plan.inputs import PlanInputs, PlanObjective, inputs_digest
from jaxserve.plan.options import EngineOption
from jaxserve.plan.played_traffic import PlayedTraffic
from jaxserve.plan.traffic_parts import traffic_to_play
from jaxserve.runtime.process_pool import in_processes
from jaxserve.sim.machine.acceptance import Drafts
from jaxserve.sim.machine.cost_json import cost_to_dict
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import ServedBy, simulate
from jaxserve.sim.traffic.traces import Trace

_WAITS = 0.5
_SURE = 2.0
"""Half widths of its 95 % interval between an attainment and the objective from which on more
windows of a sample cannot be expected to change the answer."""


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
    """whether only the busiest parts of the traffic are played, or of a sample a part."""
    slowdown: float = 1.0
    """factor on all times of iterations."""
    traffic_scale: float = 1.0
    """factor on the rate of arrivals."""


@dataclass(frozen=True)
class Played:
    """Result of a run."""

    attainment: float
    """share of the requests inside the objectives; of slices an upper bound for the whole traffic:
    every request outside of the busiest parts counts as inside the objectives, and of a sample the
    share is the upper end of its interval."""
    requests: int
    """requests that were played and count."""
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
    peak: float
    """most sequences that ran at once, as a mean over the engines."""
    unserved: int
    """requests that no engine has room for."""
    crowded: float
    """share of the missed requests that arrived in windows busier than the mean."""
    sampling: float = 0.0
    """half width of a 95 % interval of the attainment from the sample of the traffic, one-sided for
    a bound; 0 where none was drawn."""
    margin: float = 0.0
    """part of the attainment that makes it an upper bound; 0 where it is the expected one."""

    @property
    def expected_misses(self) -> float:
        """Share of the requests that miss, without the margin of a bound."""
        return 1.0 - self.attainment + self.margin

    @property
    def chance(self) -> float:
        """Half width of a 95 % interval of the attainment from the chance of arrivals alone, of
        which misses are a Poisson count, and from the sample."""
        missed = max((1.0 - self.attainment) * self.requests, 1.0)
        return math.hypot(1.96 * math.sqrt(missed) / self.requests, self.sampling)

    def sure(self, attainment: float) -> bool:
        """Whether more windows of a sample cannot be expected to change the answer whether the
        share of the requests suffices."""
        return abs(1.0 - self.expected_misses - attainment) > _SURE * self.chance


def judge(
    logs: Sequence[np.ndarray], traffic: PlayedTraffic, objective: PlanObjective, replicas: int
) -> Played:
    """The result of a run.

    Args:
      logs: ``LOG_DTYPE`` rows of each part of the traffic.
      traffic: the parts.
      replicas: engines that served.
    """
    weight = np.concatenate(traffic.weights)
    busy = np.concatenate([part.busy for part in traffic.parts])
    counts = np.concatenate([part.counted for part in traffic.parts])
    log = np.concatenate(logs)
    served = _served(log)
    late = ~served | (log["ttft_s"] > objective.ttft_s)
    slow = served & (log["tpot_s"] > objective.tpot_s)
    missed = late | slow
    waits_s = log["first_scheduled_s"] - log["arrival_s"]
    waited = late & (~served | (waits_s > _WAITS * objective.ttft_s))
    several = served & (log["output_tokens"] > 1)

    def share(requests: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
        whole = float(weight[of].sum())
        return float(weight[requests & of].sum()) / whole if whole else 0.0

    def quantile(name: str, of: NDArray[np.bool_], percent: float) -> float:
        return _quantile(log[name][of & counts], weight[of & counts], percent)

    played = Played(
        attainment=1.0 - float(weight[missed].sum()) / max(traffic.requests, 1),
        requests=int(counts.sum()),
        missed_ttft=share(late, counts),
        missed_tpot=share(slow, counts),
        ttft_p50_s=quantile("ttft_s", served, 50),
        ttft_p99_s=quantile("ttft_s", served, 99),
        tpot_p50_s=quantile("tpot_s", several, 50),
        tpot_p99_s=quantile("tpot_s", several, 99),
        waited=share(waited, late),
        preempted=float(np.average(log["preemptions"], weights=weight)),
        in_flight=_mean_in_flight(logs) / replicas,
        peak=max(_most_at_once(each) for each in logs) / replicas,
        unserved=int((~served & counts).sum()),
        crowded=share(busy, missed),
    )
    if traffic.strata is None:
        return played
    missed_of = np.split(missed, np.cumsum([len(each) for each in logs])[:-1])
    played = dataclasses.replace(played, sampling=_sampling_error(missed_of, traffic))
    if not traffic.bound:
        return played
    margin = min(played.chance, 1.0 - played.attainment)
    return dataclasses.replace(played, attainment=played.attainment + margin, margin=margin)


def _served(log: np.ndarray) -> NDArray[np.bool_]:
    """bool[n], whether each request was served to its end."""
    return np.isfinite(log["finish_s"]) & (log["finish_s"] > 0)


def _mean_in_flight(logs: Sequence[np.ndarray]) -> float:
    """Mean sequences that run at once, from the first arrival of each part to its last end."""
    running_s = lasted_s = 0.0
    for log in logs:
        served = _served(log)
        running_s += float((log["finish_s"] - log["first_scheduled_s"])[served].sum())
        end_s = log["finish_s"][served].max(initial=0.0)
        lasted_s += max(float(end_s - log["arrival_s"].min(initial=0.0)), 1e-9)
    return running_s / lasted_s


def _most_at_once(log: np.ndarray) -> int:
    """Most sequences that ran at once; a preempted one counts as running."""
    served = log[_served(log)]
    began, ended = np.sort(served["first_scheduled_s"]), np.sort(served["finish_s"])
    running = np.arange(1, len(began) + 1) - np.searchsorted(ended, began, side="right")
    return int(running.max(initial=0))


def _sampling_error(missed_of: Sequence[NDArray[np.bool_]], traffic: PlayedTraffic) -> float:
    """Half width of a 95 % interval of the share of misses: of a stratum with X requests in N
    windows, n of them drawn, and misses y and requests x played in each, the total has the variance
    v = (X / mean(x))^2 (1 - n / N) / n times that of y - x sum(y) / sum(x) (Cochran, 6.11).
    Student's t has sum(v)^2 / sum(v^2 / (n - 1)) degrees of freedom (5.16)."""
    assert traffic.strata is not None
    sums = [
        (part.sums(missed), part.sums(part.counted))
        for missed, part in zip(missed_of, traffic.parts, strict=True)
    ]
    missed, counted = (np.concatenate(each).astype(np.float64) for each in zip(*sums, strict=True))
    stratum = np.concatenate([part.strata for part in traffic.parts])
    variance = of_variance = 0.0
    for number, of in enumerate(traffic.strata):
        misses, requests = missed[stratum == number], counted[stratum == number]
        drawn = len(misses)
        if drawn < 2 or drawn == of.windows:
            continue
        played = max(requests.sum(), 1.0)
        off = misses - requests * misses.sum() / played
        spread = float((off**2).sum()) / (drawn - 1)
        own = (of.requests * drawn / played) ** 2 * (1.0 - drawn / of.windows) / drawn * spread
        variance += own
        of_variance += own**2 / (drawn - 1)
    if not variance:
        return 0.0
    t = student_t.ppf(0.95 if traffic.bound else 0.975, variance**2 / of_variance)
    return float(t) * math.sqrt(variance) / traffic.requests


def interval(results: Sequence[Played]) -> tuple[float, float]:
    """95 % interval of the attainment.

    Args:
      results: whole runs of one deployment at the expected times and at both ends of their doubt.
        A shorter time does not always mean fewer misses, so the extremes count.
    """
    low = min(results, key=lambda each: each.attainment)
    high = max(results, key=lambda each: each.attainment)
    return max(low.attainment - low.chance, 0.0), min(high.attainment + high.chance, 1.0)


def _quantile(values: NDArray[np.float64], weights: NDArray[np.float64], percent: float) -> float:
    """Weighted percentile; NaN without values."""
    if not len(values):
        return math.nan
    return float(np.percentile(values, percent, weights=weights, method="inverted_cdf"))


class Player:
    """Plays deployments on the traffic of a plan; a result is computed once."""

    def __init__(self, inputs: PlanInputs, kept: Path | None = None, lanes: int = 1) -> None:
        """Args: the plan's inputs, a file that keeps results for a run that goes on, and the runs
        at a time, in processes of their own if they are several."""
        self._inputs = inputs
        whole, screen = traffic_to_play(inputs.trace, inputs.objective.attainment)
        self._traffic = {False: whole, True: screen}
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
        jobs = [self._job(play) for play in new.values()]
        lanes = self.lanes if len(jobs) > 1 else 1
        if done is not None:
            for _ in range(len(plays) - len(new)):
                done()
        for key, result in zip(new, in_processes(_play, jobs, lanes), strict=True):
            self._keep(key, result)
            if done is not None:
                done()
        return [self._results[key] for key in keys]

    def _job(self, play: Play) -> tuple[PlayedTraffic, Play, int, PlanObjective, float]:
        """Arguments of ``_play``."""
        by, traffic = play.deployment, self._traffic[play.slices]
        played = traffic.played_replicas(by.replicas, by.prefill)
        inputs, share = self._inputs, traffic.shared(played, by.replicas)
        return share, play, played, inputs.objective, inputs.frontend_s

    @property
    def sample(self) -> str | None:
        """Sentence on the sample that stands for the whole traffic; None without."""
        return self._traffic[False].description

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


def _play(
    traffic: PlayedTraffic, play: Play, played: int, objective: PlanObjective, frontend_s: float
) -> Played:
    """One run, which ends after the first round of its traffic whose answer is sure; ``played`` of
    the replicas serve the traffic."""
    by, scale = play.deployment.of(played), play.traffic_scale
    timer = TabulatedTimer(by.option.cost, by.option.tier, play.slowdown)
    logs: list[np.ndarray] = []
    for so_far in traffic.rounds():
        for part in so_far.parts[len(logs) :]:
            trace = part.trace
            if scale != 1.0:
                trace = dataclasses.replace(trace, arrival_s=trace.arrival_s / scale)
            logs.append(simulate(trace, timer, served_by(by, trace, frontend_s), part.before))
        result = judge(logs, so_far, objective, played)
        if result.sure(objective.attainment):
            break
    return result


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
