"""Episodes in the reference simulator: the same traffic, the same knobs, the same reward.

``ReferenceEpisode`` plays an episode of a ``ServeEnv`` request by request and reports every window
as the fast simulator does, so that a policy can act on it and its score can be compared.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.policy import Policy, act
from jaxserve.env import ServeEnv
from jaxserve.seeds import policy_key
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.machine.cost_model import CostModel, IterationTimer
from jaxserve.sim.machine.deployment import GIB, Deployment
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.reference.counters import WindowStats
from jaxserve.sim.reference.episode_requests import episode_requests, roll_traffic
from jaxserve.sim.reference.replicas import Phase
from jaxserve.sim.reference.request import Request, request_log
from jaxserve.sim.reference.settings import (
    Knobs,
    ReferenceSettings,
    SchedulerSettings,
    ShiftedExponentialFrontEnd,
)
from jaxserve.sim.reference.simulator import ReferenceSimulator
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.traffic.trace_classes import class_map
from jaxserve.sim.traffic.traces import Trace
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.tasks.reward import compute_reward
from jaxserve.tasks.spec import CLASS_COUNT, TaskSpec, load_task
from jaxserve.types import RewardParts, ServeAction, ServeObservation, WindowMetrics


def table_timer(task: str | int | TaskSpec) -> CostModel:
    """The cost model that the latency table of ``jaxserve.make(task)`` was built from."""
    spec = task if isinstance(task, TaskSpec) else load_task(task)
    return read_table_file(f"{spec.model}__{spec.hardware}").metadata.cost_model


def reference_settings(deployment: Deployment) -> ReferenceSettings:
    """The fast simulator's deployment as the reference simulator describes one."""
    d = jax.tree.map(float, jax.tree.map(np.asarray, _scalars(deployment)))
    return ReferenceSettings(
        num_gpus=round(d["num_gpus"]),
        queue_capacity=round(d["queue_capacity"]),
        restart_s=d["restart_s"],
        rerole_s=d["rerole_s"],
        oom_restart_s=d["oom_restart_s"],
        # Only the quotient of the two matters.
        kv_bytes_per_token=d["kv_transfer_s_per_token"],
        link_bytes_per_s=1.0,
        front_end=ShiftedExponentialFrontEnd(d["frontend_s"], d["frontend_tail_s"]),
        scheduler=SchedulerSettings(
            token_budget=round(d["token_budget"]),
            prefix_caching=bool(d["prefix_caching"]),
            sequence_kv=deployment.on_host().sequence_kv,
        ),
        fleet=None if deployment.fleet is None else FleetSettings.on_host(deployment.fleet),
    )


def reference_knobs(deployment: Deployment, action: ServeAction) -> Knobs:
    """A clipped action as knobs of the reference simulator."""
    depth, tier = int(action.speculation_depth), int(action.quantization_tier)
    pool_tokens = float(deployment.kv_pool_tokens[tier, int(depth > 0)])
    return Knobs(
        batch_cap=int(action.batch_cap),
        kv_capacity_tokens=int(float(action.kv_budget_fraction) * pool_tokens),
        speculation_depth=depth,
        tier=tier,
        priority_routing=bool(action.priority_routing),
        prefill_gpus=min(int(action.prefill_decode_split), round(float(deployment.num_gpus)) - 1),
        replicas=None
        if deployment.fleet is None
        else int(action.replicas) or round(float(deployment.num_gpus)),
    )


@dataclass(frozen=True)
class DeploymentMemory:
    """Memory of an iteration from a ``Deployment``; a ``MemoryMeter`` of the reference
    simulator."""

    deployment: Deployment
    """deployment with NumPy leaves."""

    @property
    def device_bytes(self) -> float:
        """Memory of one GPU, bytes."""
        return float(self.deployment.device_gib) * GIB

    def used_bytes(
        self,
        *,
        tokens: int,
        logits_rows: int,
        speculation_depth: int,
        tier: int,
    ) -> float:
        """Bytes in use during an iteration, the whole KV pool included."""
        d, drafting = self.deployment, int(speculation_depth > 0)
        return GIB * float(
            d.weights_gib[tier]
            + d.activation_base_gib
            + drafting * d.draft_gib
            + d.kv_pool_gib[tier, drafting]
            + d.activation_gib_per_token * tokens
            + d.logits_gib_per_row * logits_rows
        )


@dataclass(frozen=True)
class SlowTimer:
    """A timer whose iterations all take ``scale`` times as long: an episode's hardware slowness."""

    timer: IterationTimer
    scale: float

    def iteration_s(self, **iteration: Any) -> float:
        """Seconds of one iteration; arguments as ``IterationTimer.iteration_s``."""
        return self.scale * self.timer.iteration_s(**iteration)


class ReferenceEpisode:
    """Episode of ``env`` in the reference simulator, advanced window by window.

    Args:
      env: what to play.
      key: typed key of the episode, consumed as ``env.reset`` consumes it: the fast simulator faces
        the same requests under the same key.
      timer: iteration times, see ``table_timer``.
      windows: length; the environment's horizon by default.
      trace: the one that ``env`` replays. Its own requests are then played, with the prefixes that
        they share, instead of requests that are drawn from its classes.
      serving: replicas of a fleet that serve at the start; None for all.
    """

    def __init__(
        self,
        env: ServeEnv,
        key: jax.Array,
        timer: IterationTimer,
        windows: int | None = None,
        trace: Trace | None = None,
        serving: int | None = None,
    ) -> None:
        self.env = env
        self.windows = int(env.horizon) if windows is None else windows
        self.traffic, start, time_scale, seed = jax.tree.map(
            np.asarray, _start(env, key, self.windows)
        )
        self._arrivals = self.traffic.counts.sum(axis=1)
        # Requests too long to be served: those drawn from classes are without them.
        self._too_long = np.zeros_like(self._arrivals)
        if self.traffic.rejected is not None:
            self._arrivals = self._arrivals + self.traffic.rejected
            self._too_long += self.traffic.rejected if trace is None else 0.0
        classes = env.workload.classes
        if trace is None:
            self.requests = episode_requests(self.traffic, classes, key, env.window_s)
        else:
            trace = trace.within_table()
            self.requests = trace_requests(
                trace,
                class_map(trace, CLASS_COUNT),
                start_s=int(start) * env.window_s,
                end_s=(int(start) + self.windows) * env.window_s,
                priority=np.asarray(classes.priority).tolist(),
                acceptance=list(np.asarray(classes.tokens_per_step, np.float64)),
            )
        self._memory = DeploymentMemory(env.deployment.on_host())
        self._timer = SlowTimer(timer, float(time_scale))
        self._seed = int(seed)
        self._simulator: ReferenceSimulator | None = None
        self._window = 0
        self._upcoming = 0
        self._open: list[Request] = []
        self._serving = serving
        self._ttft_slo_s = np.asarray(env.slo.ttft_s, np.float64)
        self._tpot_slo_s = np.asarray(env.slo.tpot_s, np.float64)

    def start(self, action: ServeAction) -> ReferenceSimulator:
        """The simulator at time 0, in FP16 and colocated like every episode, ready for
        ``action``."""
        at_start = dataclasses.replace(action, quantization_tier=0, prefill_decode_split=0)
        knobs = reference_knobs(self.env.deployment, at_start)
        knobs = dataclasses.replace(knobs, replicas=self._serving)
        return ReferenceSimulator(
            reference_settings(self.env.deployment),
            self._timer,
            knobs,
            self.requests,
            seed=self._seed,
            memory=self._memory,
        )

    def step(self, action: ServeAction) -> WindowMetrics:
        """Holds the knobs (clipped) for one window; float32 NumPy leaves."""
        if self._simulator is None:
            self._simulator = self.start(action)
        self._window += 1
        knobs = reference_knobs(self.env.deployment, action)
        stats = self._simulator.advance(self._window * self.env.window_s, knobs)
        queued = {request.id for request in self._simulator.queued()}
        return self._metrics(stats, action, queued)

    def log(self) -> np.ndarray:
        """``LOG_DTYPE`` row of every request that has arrived so far."""
        return request_log([]) if self._simulator is None else self._simulator.log()

    def meets_slo(self, log: np.ndarray) -> np.ndarray:
        """bool[n]: which of the ``LOG_DTYPE`` rows completed inside both objectives."""
        group = log["traffic_class"]
        return (log["ttft_s"] <= self._ttft_slo_s[group]) & (
            log["tpot_s"] <= self._tpot_slo_s[group]
        )

    def _metrics(self, stats: WindowStats, action: ServeAction, queued: set[int]) -> WindowMetrics:
        classes = len(self._ttft_slo_s)

        def count(group: Any) -> np.ndarray:
            return np.bincount(np.asarray(group, np.int64), minlength=classes).astype(np.float32)

        def count_requests(requests: list[Request]) -> np.ndarray:
            return count([request.traffic_class for request in requests])

        self._collect_arrivals(stats.end_s)
        rejected = [request for request in self._open if request.rejected]
        lost = [request for request in self._open if request.lost]
        self._open = [
            request
            for request in self._open
            if not (request.rejected or request.lost or request.finish_s == request.finish_s)
        ]
        first, done = stats.first_tokens, stats.completions
        completed = count(done["traffic_class"])
        in_time = first["ttft_s"] <= self._ttft_slo_s[first["traffic_class"]]
        tpot_sum = np.bincount(done["traffic_class"], done["tpot_s"], minlength=classes)
        idle_bytes = self._memory.used_bytes(
            tokens=0,
            logits_rows=0,
            speculation_depth=int(action.speculation_depth),
            tier=stats.tier,
        )
        energy_j = self._energy_j(stats)
        assert self._simulator is not None
        values: dict[str, Any] = dict(
            arrivals=self._arrivals[self._window - 1],
            completed=completed,
            good=count(done["traffic_class"][self.meets_slo(done)]),
            rejected=count_requests(rejected) + self._too_long[self._window - 1],
            lost=count_requests(lost),
            waiting=count_requests([r for r in self._open if r.id in queued]),
            running=count_requests([r for r in self._open if r.id not in queued]),
            overdue=count_requests([r for r in self._open if self._is_overdue(r, stats.end_s)]),
            on_track=count_requests([r for r in self._open if self._is_on_track(r, stats.end_s)]),
            first_tokens=count(first["traffic_class"]),
            ttft_met=count(first["traffic_class"][in_time]),
            ttft_exceeded=(first["ttft_s"] > TTFT_EDGES_S[:, None]).sum(axis=1),
            tpot_s=tpot_sum / np.maximum(completed, 1.0),
            itl_s=np.nan_to_num(stats.itl_s),
            p50_itl_s=np.nan_to_num(stats.p50_itl_s),
            p99_itl_s=np.nan_to_num(stats.p99_itl_s),
            tokens=stats.tokens,
            preemptions=stats.preemptions,
            memory_gib=max(stats.peak_memory_bytes, idle_bytes) / GIB,
            energy_j=energy_j,
            cost_usd=self._memory.deployment.cost_usd(
                self.env.window_s, energy_j, self._rented(stats)
            ),
            kv_occupancy=min(stats.kv_occupancy, 1.0),
            acceptance=stats.draft_accepted / max(stats.drafted, 1),
            capacity=stats.capacity,
            oom=float(stats.oom_restarts > 0),
            replicas_ready=self._simulator.replicas.count(Phase.SERVING),
            replicas_starting=self._simulator.replicas.count(Phase.STARTING),
            replicas_rented=stats.rented_s / self.env.window_s,
        )
        return WindowMetrics(
            **{name: jnp.asarray(value, jnp.float32) for name, value in values.items()},
            regime=jnp.int32(self.traffic.regime[self._window - 1]),
            tier=jnp.int32(stats.tier),
            prefill_gpus=jnp.int32(stats.prefill_gpus),
        )

    def _is_overdue(self, request: Request, now_s: float) -> bool:
        """Whether an open request has missed an objective, whatever comes."""
        group = request.traffic_class
        if math.isnan(request.first_token_s):
            waited_s = now_s - request.arrival_s + request.frontend_s
            return waited_s > self._ttft_slo_s[group]
        decoded_s = now_s - request.first_token_s
        allowed_s = self._tpot_slo_s[group] * (request.output_tokens - 1)
        return request.ttft_s > self._ttft_slo_s[group] or decoded_s > allowed_s

    def _is_on_track(self, request: Request, now_s: float) -> bool:
        """Whether an open request would meet its objectives if it went on as it did so far."""
        group = request.traffic_class
        if not request.ttft_s <= self._ttft_slo_s[group]:  # NaN without a first token
            return False
        # As many times between tokens as there would be if the next token came now.
        return now_s - request.first_token_s <= self._tpot_slo_s[group] * request.generated

    def _collect_arrivals(self, until_s: float) -> None:
        while (
            self._upcoming < len(self.requests)
            and self.requests[self._upcoming].arrival_s <= until_s
        ):
            self._open.append(self.requests[self._upcoming])
            self._upcoming += 1

    def _energy_j(self, stats: WindowStats) -> float:
        """Idle power and the work of every iteration, at most the power limit."""
        d = self._memory.deployment
        work_j = sum(
            work.tokens * d.joule_per_token[tier]
            + work.iterations * d.joule_per_weight_pass[tier]
            + work.kv_tokens * d.joule_per_kv_token
            for tier, work in enumerate(stats.work)
        )
        return float(d.energy_j(self.env.window_s, work_j, self._rented(stats)))

    def _rented(self, stats: WindowStats) -> float | None:
        """Replicas of a fleet that were paid for; None for all."""
        fleet = self._memory.deployment.fleet
        return None if fleet is None else stats.rented_s / self.env.window_s


@dataclass(frozen=True)
class ReferenceRollout:
    """Episode of T windows of a policy in the reference simulator."""

    metrics: WindowMetrics
    """the windows, every leaf stacked to [T, ...]."""
    parts: RewardParts
    """the reward's terms, [T]."""
    actions: ServeAction
    """the knobs that acted, [T]."""
    log: np.ndarray
    """``jaxserve.sim.reference.request.LOG_DTYPE`` row of every request."""


def reference_rollout(
    env: ServeEnv,
    policy: Policy,
    key: jax.Array,
    timer: IterationTimer,
    windows: int | None = None,
) -> ReferenceRollout:
    """Plays one episode under ``policy``.

    Args:
      key: typed key of the episode; actions draw from its ``jaxserve.seeds.policy_key``.
      timer: iteration times, see ``table_timer``.
      windows: length; the environment's horizon by default. Where it is longer, the observed step
        and cost are those of ``ServeEnv.next_observation_without_end``.
    """
    episode = ReferenceEpisode(env, key, timer, windows)

    @jax.jit
    def observe(
        observation: ServeObservation, metrics: WindowMetrics, count: jax.Array
    ) -> tuple[ServeObservation, RewardParts]:
        parts = compute_reward(env.reward, metrics, count % env.horizon == 0)
        return env.next_observation_without_end(observation, metrics, count), parts

    _, timestep = env.reset(key)
    observation, memory = timestep.observation, policy.init(env)
    rows = []
    for window in range(episode.windows):
        action, memory = act(policy, env, memory, observation, policy_key(key, window))
        metrics = episode.step(action)
        observation, parts = observe(observation, metrics, jnp.int32(window + 1))
        rows.append(jax.tree.map(np.asarray, (metrics, parts, action)))
    metrics, parts, actions = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return ReferenceRollout(metrics, parts, actions, episode.log())


def episode_traffic(env: ServeEnv, key: jax.Array, windows: int) -> list[Request]:
    """Requests of an episode, the same in both simulators under one key."""
    traffic, *_ = _start(env, key, windows)
    return episode_requests(traffic, env.workload.classes, key, env.window_s)


@functools.partial(jax.jit, static_argnums=2)
def _start(
    env: ServeEnv, key: jax.Array, windows: int
) -> tuple[Arrivals, jax.Array, jax.Array, jax.Array]:
    """An episode's traffic, the first window of its recording, the slowness of its hardware, and a
    seed for what is left to chance."""
    state, _ = env.reset(key)
    traffic = roll_traffic(env.workload, state.workload, windows, env.ticks, env.window_s)
    start = state.workload.replay_start
    return traffic, start, state.sim.time_scale, jax.random.bits(key)


def _scalars(deployment: Deployment) -> dict[str, Any]:
    return {name: leaf for name, leaf in vars(deployment).items() if np.ndim(leaf) == 0}
