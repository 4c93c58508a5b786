"""Simulated twins of a deployment, which play the real traffic under different knobs.

In every window the real arrivals, by class and tick, go to three simulated deployments: under the
knobs in force, the policy's, and the static ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_key
from jaxserve.sim.fast.fleet import init_fleet
from jaxserve.sim.fast.state import SimState, init_sim
from jaxserve.sim.machine.fleet import Fleet
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.tasks.reward import compute_reward
from jaxserve.types import ServeAction, WindowMetrics


@dataclass(frozen=True)
class Expectation:
    """The simulator's expectation of one window under given knobs."""

    good: float
    """requests inside their objectives."""
    ttft_met: float
    itl_s: float
    reward: float


class Twins:
    """Simulated deployments, one for each way to operate."""

    def __init__(self, envs: Sequence[ServeEnv]) -> None:
        """Args: the environment of each twin; they differ in the constants of their fleets only.
        All twins are idle, and all replicas of a fleet serve."""
        self._env = env = envs[0]
        self._count = len(envs)
        self._fleets = _stacked([each.deployment.fleet for each in envs])
        self.begin(round(float(env.deployment.num_gpus)))

    def begin(self, serving: int) -> None:
        """Lets every twin begin anew, idle; of a fleet so many replicas serve."""
        env, fleet = self._env, self._env.deployment.fleet
        classes = len(np.asarray(env.slo.ttft_s))
        idle = init_sim(classes, env.time_scale, env.workload.classes.output_ages)
        if fleet is not None:
            replicas = init_fleet(episode_key(0, "test"), fleet, jnp.int32(serving), classes)
            idle = dataclasses.replace(idle, fleet=replicas)
        self._states: SimState = _stacked([idle] * self._count)

    def compile(self) -> None:
        """Compiles the simulator before the first window, which would miss its deadline."""
        before = self._states
        counts = np.zeros((self._env.ticks, len(np.asarray(self._env.slo.ttft_s))), np.float32)
        self.advance([self._env.locked] * self._count, counts, 1.0)
        self._states = before

    def advance(
        self, actions: Sequence[ServeAction], counts: np.ndarray, acceptance_scale: float
    ) -> list[Expectation]:
        """Plays a window.

        Args:
          actions: knobs of each twin.
          counts: float32[K, F], arrivals by tick and class.
          acceptance_scale: see ``Regimes``.
        """
        arrivals = Arrivals(
            counts=jnp.asarray(counts, jnp.float32),
            rate_rps=jnp.float32(counts.sum() / self._env.window_s),
            regime=jnp.int32(0),
            acceptance_scale=jnp.float32(acceptance_scale),
        )
        self._states, metrics, rewards = _advance(
            self._env, self._fleets, self._states, _stacked(actions), arrivals
        )
        good, met = (
            np.asarray(getattr(metrics, name)).sum(axis=1) for name in ("good", "ttft_met")
        )
        return [
            Expectation(*map(float, values))
            for values in zip(
                good, met, np.asarray(metrics.itl_s), np.asarray(rewards), strict=True
            )
        ]


def _stacked(trees: Sequence[Any]) -> Any:
    """One tree for several of one structure, whose leaves have one more axis in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _advance(
    env: ServeEnv, fleets: Fleet | None, states: SimState, actions: ServeAction, arrivals: Arrivals
) -> tuple[SimState, WindowMetrics, jax.Array]:
    """A window of every twin; leaves [count, ...], except the environment's and the arrivals'."""

    def window(
        fleet: Fleet | None, state: SimState, action: ServeAction
    ) -> tuple[SimState, WindowMetrics, jax.Array]:
        acts, own = env.effective_action(action), env
        if fleet is not None:
            # Replicas may be scaled by others than the task's policy.
            acts = acts.replace(replicas=action.replicas)
            own = env.replace(deployment=dataclasses.replace(env.deployment, fleet=fleet))
        state, metrics = own.simulate(state, acts, arrivals)
        return state, metrics, compute_reward(env.reward, metrics, False).total

    return jax.vmap(window)(fleets, states, actions)


def acceptance_scale(env: ServeEnv, counts: np.ndarray, depth: int, seen: float) -> float | None:
    """Acceptance of drafts relative to the task's profiles; None without drafts.

    Args:
      counts: float32[K, F], arrivals.
      seen: accepted / proposed draft tokens.
    """
    mix = counts.sum(axis=0)
    if depth < 1 or seen <= 0.0 or mix.sum() <= 0.0:
        return None
    per_step = np.asarray(env.workload.classes.tokens_per_step)[:, depth]
    profile = float((mix * (per_step - 1.0)).sum() / mix.sum()) / depth
    return float(np.clip(seen / profile, 0.0, 3.0)) if profile > 0.0 else None
