"""Deployments played request by request on the reference simulator, in processes of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve.plan.attainment import Attained, Played, missed
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
    misses: list[np.ndarray] = []
    for so_far in traffic.rounds():
        for part in so_far.parts[len(logs) :]:
            trace = part.trace
            if scale != 1.0:
                trace = dataclasses.replace(trace, arrival_s=trace.arrival_s / scale)
            logs.append(simulate(trace, timer, served_by(by, trace, frontend_s), part.before))
            misses.append(missed(logs[-1], objective))
        attained = Attained.of(misses, so_far)
        if attained.sure(objective.attainment):
            break
    return Played.judged(attained, logs, so_far, objective, played)


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
