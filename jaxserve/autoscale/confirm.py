"""A rule in the reference simulator: every request, every iteration, every replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.reference_rollout import ReferenceEpisode
from jaxserve.autoscale.setup import WINDOW_S, FleetDemand
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.readings import Latencies, first_reading, no_latencies, read_window
from jaxserve.scaling.rule_form import RuleMemory, first_memory
from jaxserve.scaling.setting import KINDS, RuleSetting, wanted_by
from jaxserve.sim.machine.cost_model import IterationTimer
from jaxserve.types import WindowMetrics


@dataclass(frozen=True)
class Confirmed:
    """A lane in the reference simulator, window by window."""

    ended: NDArray[np.float64]
    """requests that completed, were rejected or lost."""
    good: NDArray[np.float64]
    """requests that met both objectives."""
    arrivals: NDArray[np.float64]
    """requests that arrived."""
    rented_s: NDArray[np.float64]
    """seconds of replicas that were paid for."""

    @property
    def attainment(self) -> float:
        """Share of the requests inside both objectives."""
        return float(self.good.sum() / max(self.ended.sum(), 1e-9))


def play_reference(
    demand: FleetDemand,
    lane: RuleSetting,
    timer: IterationTimer,
    windows: slice,
    progress: Callable[[int], None] = lambda done: None,
) -> Confirmed:
    """Plays a lane on windows of the recording."""
    fleet, env = demand.fleet, demand.env
    workload = dataclasses.replace(
        env.workload,
        replay_starts=jnp.array([windows.start], jnp.int32),
        replay_places=jnp.int32(1),
    )
    env = dataclasses.replace(env, workload=workload)
    initial = lane.serving(demand.first_replicas(windows))
    count = windows.stop - windows.start
    episode = ReferenceEpisode(
        env, jax.random.key(demand.seed), timer, count, demand.setup.trace, initial
    )
    memory, reading = first_memory(fleet, initial), first_reading(initial)
    prompts = env.workload.classes.prompt_tokens
    latencies = no_latencies(len(prompts), WINDOW_S)
    rows = []
    kind, numbers = jnp.int32(KINDS.index(lane.kind)), jnp.asarray(lane.numbers)
    for number in range(count):
        # A rule speaks when it has read a window.
        wanted = memory.wanted[0]
        if number:
            wanted, memory = _want(fleet, kind, numbers, memory, reading)
        metrics = episode.step(demand.action.replace(replicas=jnp.int32(wanted)))
        reading, latencies = _read(latencies, metrics, prompts)
        ended = np.sum(metrics.completed) + np.sum(metrics.rejected) + np.sum(metrics.lost)
        rows.append(
            (
                float(ended),
                float(np.sum(metrics.good)),
                float(np.sum(metrics.arrivals)),
                float(metrics.replicas_rented) * WINDOW_S,
            )
        )
        progress(1)
    return Confirmed(*np.array(rows, np.float64).T)


@jax.jit
def _want(
    fleet: Fleetwide, kind: jax.Array, values: jax.Array, memory: RuleMemory, reading: Reading
) -> tuple[jax.Array, RuleMemory]:
    return wanted_by(fleet, kind, values, memory, reading)


@jax.jit
def _read(
    latencies: Latencies, metrics: WindowMetrics, prompts: jax.Array
) -> tuple[Reading, Latencies]:
    return read_window(latencies, metrics, prompts, WINDOW_S)
