"""Scenarios in which the simulators are compared: traffic, load and constant knobs.

Traffic is that of a task, or of one of its regimes without bursts. Load is the mean arrival rate as
a share of the capacity under the knobs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.registry import make
from jaxserve.sim.traffic.trace_classes import class_map
from jaxserve.sim.traffic.traces import load_trace
from jaxserve.sim.traffic.workload import Workload
from jaxserve.spaces import REQUIRED_KNOBS
from jaxserve.tasks.replay import recorded_counts, trace_path
from jaxserve.tasks.spec import CLASS_COUNT, TaskSpec, load_task

LOADS = (0.3, 0.6, 0.9, 1.2)


def at_engine(env: ServeEnv) -> ServeEnv:
    """The environment without a front end: TTFT begins at the engine."""
    zero = jnp.zeros_like(env.deployment.frontend_s)
    deployment = dataclasses.replace(env.deployment, frontend_s=zero, frontend_tail_s=zero)
    return dataclasses.replace(env, deployment=deployment)


@dataclass(frozen=True)
class Traffic:
    """Traffic of a task, or of one of its regimes without bursts and cycle."""

    task: str
    """name of the task."""
    regime: int | None = None
    """index of the regime, None for all of them."""
    spec: TaskSpec | None = field(default=None, compare=False)
    """the task, if ``task`` does not name a built-in one."""

    def load(self) -> TaskSpec:
        """The task."""
        return load_task(self.task) if self.spec is None else self.spec

    @property
    def name(self) -> str:
        """Short name for reports."""
        return self.task if self.regime is None else f"{self.task}[{self.regime}]"


@dataclass(frozen=True)
class Scenario:
    """Traffic, load and knobs."""

    traffic: Traffic
    """traffic of a task."""
    load: float
    """mean arrival rate as a share of the capacity."""
    knobs: Mapping[str, float] = field(default_factory=dict)
    """knobs by name; others have their default."""

    @property
    def settings(self) -> str:
        """The knobs as a text."""
        return " ".join(f"{name}={value:g}" for name, value in self.knobs.items())

    @property
    def name(self) -> str:
        """Short name for reports."""
        return f"{self.traffic.name} load {self.load:g} {self.settings}"


def scenario_grid() -> list[Scenario]:
    """Tasks and stationary regimes x knobs of interest x loads."""
    one_gpu: tuple[dict[str, float], ...] = (
        dict(batch_cap=64),
        dict(batch_cap=16),
        dict(batch_cap=256, kv_budget_fraction=0.25),
        dict(batch_cap=256, speculation_depth=2),
        dict(batch_cap=64, speculation_depth=4),
        dict(batch_cap=64, quantization_tier=1),
        dict(batch_cap=64, quantization_tier=2),
    )
    several_gpus = (*one_gpu, dict(batch_cap=64, prefill_decode_split=1))
    classes = (*several_gpus, dict(batch_cap=64, priority_routing=1))
    traffics = (
        (Traffic("static_workload"), one_gpu),
        (Traffic("bursty_workload"), several_gpus),
        (Traffic("bursty_workload", regime=2), several_gpus),
        (Traffic("adversarial_multitenant"), classes),
        (Traffic("adversarial_multitenant", regime=0), classes),
        (Traffic("trace_replay"), one_gpu),
    )
    return [
        Scenario(traffic, load, knobs)
        for traffic, choices in traffics
        for knobs, load in itertools.product(choices, LOADS)
    ]


def environment(traffic: Traffic) -> ServeEnv:
    """The task's environment under this traffic, with every knob of an engine unlocked."""
    spec = traffic.load()
    if traffic.regime is not None:
        regime = dataclasses.replace(
            spec.regimes[traffic.regime], burst_start_per_s=0.0, cycle_amplitude=0.0
        )
        spec = dataclasses.replace(spec, regimes=(regime,))
    return make(spec, overrides={"knobs": list(REQUIRED_KNOBS)})


def workload_at(
    env: ServeEnv, traffic: Traffic, rate_rps: float, seed: int, windows: int
) -> Workload:
    """The environment's traffic at a mean rate.

    Args:
      env: result of ``environment(traffic)``.
      traffic: traffic of the environment.
      rate_rps: requests per second; a recording is sped up or slowed down to this rate.
      seed: number of the episode; episodes take consecutive stretches of a recording.
      windows: length of the episode.
    """
    scale = rate_rps / float(env.reward.expected_requests_per_s)
    if env.workload.replay_counts is None:
        regimes = env.workload.regimes
        scaled = dataclasses.replace(regimes, rate_rps=regimes.rate_rps * scale)
        return dataclasses.replace(env.workload, regimes=scaled)
    counts = _recorded_counts(traffic.task, scale, env.window_s, env.ticks)
    rows = (seed * windows + np.arange(windows)) % len(counts)
    return dataclasses.replace(
        env.workload,
        replay_counts=jnp.asarray(counts[rows]),
        replay_starts=jnp.zeros(1, jnp.int32),
        replay_places=jnp.int32(1),
    )


@functools.lru_cache
def _recorded_counts(task: str, scale: float, window_s: float, ticks: int) -> np.ndarray:
    """Counts of the task's recording at ``scale`` times its speed, float32[W, K, F]."""
    trace = load_trace(trace_path(load_task(task).trace or ""), time_scale=scale)
    return recorded_counts(trace, class_map(trace, CLASS_COUNT), window_s, ticks)
