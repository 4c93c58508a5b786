"""Measures control windows, and computes the simulator's expectations of the same traffic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.live.guard import Values, as_values, values_in_force
from jaxserve.live.measured import Streams, arrivals_by_tick, measure, observe
from jaxserve.live.readings import Snapshot
from jaxserve.live.show import WindowComparison
from jaxserve.live.twins import Expectation, Twins, acceptance_scale
from jaxserve.seeds import episode_key
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.spaces import make_action
from jaxserve.tasks.spec import TaskSpec
from jaxserve.types import ServeObservation, WindowMetrics


@dataclass(frozen=True)
class MeasuredWindow:
    """A measured window."""

    seconds: float
    in_force: Values
    """knobs in force during the window."""
    metrics: WindowMetrics
    expected: list[Expectation]
    """expectations under the knobs in force, the policy's, and the static ones."""
    acceptance_scale: float
    """see ``Regimes``."""
    strangers: tuple[str, ...]
    """classes with traffic that no stream is named after."""
    ended: int
    """requests that ended."""
    unjudged: int
    """requests among them of which nobody knows whether they met their objectives."""

    @property
    def good(self) -> float:
        """Requests inside their objectives."""
        return float(np.sum(np.asarray(self.metrics.good)))

    @property
    def comparison(self) -> WindowComparison:
        """The measurement beside the expectations."""
        ttft_met = float(np.sum(np.asarray(self.metrics.ttft_met)))
        seen = Expectation(self.good, ttft_met, float(self.metrics.itl_s), math.nan)
        in_force, policy, static = self.expected
        return WindowComparison(seen, in_force, policy, static, self.ended, self.unjudged)


class WindowMeter:
    """Measures one window after the other; keeps the observation and the twins between them."""

    def __init__(self, env: ServeEnv, spec: TaskSpec, static: Values) -> None:
        """Args: environment and spec of the task, and the static setting."""
        self._env = env
        self._streams = Streams.of(spec)
        self._static = static
        # Measured replicas serve already, so that those of the simulation need no start-up.
        measured = _started_at_once(env)
        self._scales = "replicas" in spec.knobs
        self._twins = Twins([measured, *[env if self._scales else measured] * 2])
        self._scale = 1.0
        _, first = env.reset(episode_key(0, "test"))
        self.seen: ServeObservation = first.observation
        """latest observation."""

    def compile(self) -> None:
        """Compiles all programs before the first window, which would miss its deadline."""
        self._twins.compile()
        observe(self._env, self.seen, idle_metrics(len(self._env.slo.ttft_s)), None, 0)

    def begin(self, serving: int) -> None:
        """Lets the simulated deployments begin with so many replicas of a fleet."""
        self._twins.begin(serving)

    def in_force(self, knobs: Mapping[str, Any]) -> Values:
        """Knobs in force in an answer of ``/control/knobs``."""
        return values_in_force(knobs["knobs"], as_values(self._env.locked))

    def measure(
        self, before: Snapshot, after: Snapshot, wanted: Values, number: int
    ) -> MeasuredWindow:
        """Measures the window between two snapshots.

        Args:
          wanted: the policy's latest action.
          number: number of the window, from 1.
        """
        env, in_force = self._env, self.in_force(after.knobs)
        action = make_action(**in_force)
        metrics = measure(env, self._streams, after.window, before.engines, after.engines, action)
        serving = in_force["replicas"]
        if after.fleet is not None:
            # 0 would stand for all replicas.
            metrics, serving = after.fleet.shown_in(env, metrics), max(len(after.fleet.serving), 1)
        counts = arrivals_by_tick(env, self._streams, after.window)
        depth = int(in_force["speculation_depth"])
        scale = acceptance_scale(env, counts, depth, float(metrics.acceptance))
        self._scale = self._scale if scale is None else scale
        counted = {"replicas": serving}
        others = [wanted, self._static]
        if not self._scales:
            others = [each | counted for each in others]
        actions = [make_action(**each) for each in (in_force | counted, *others)]
        expected = self._twins.advance(actions, counts, self._scale)
        self.seen = observe(env, self.seen, metrics, after.window, number)
        classes = after.window.classes.values()
        unjudged = sum(each.unjudged for each in classes)
        return MeasuredWindow(
            seconds=after.window.seconds,
            in_force=in_force,
            metrics=metrics,
            expected=expected,
            acceptance_scale=self._scale,
            strangers=self._streams.strangers(after.window),
            ended=unjudged + sum(each.judged + each.rejected + each.failed for each in classes),
            unjudged=unjudged,
        )


def _started_at_once(env: ServeEnv) -> ServeEnv:
    """The environment, in which replicas of a fleet need no start-up."""
    fleet = env.deployment.fleet
    if fleet is None:
        return env
    at_once = dict.fromkeys(
        ("start_least_s", "start_most_s", "failing_share", "refused_share"), jnp.float32(0.0)
    )
    at_once_fleet = dataclasses.replace(fleet, **at_once)
    deployment = dataclasses.replace(env.deployment, fleet=at_once_fleet)
    return dataclasses.replace(env, deployment=deployment)
