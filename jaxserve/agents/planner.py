"""Receding-horizon planning on the fast simulator itself: the competitor that needs no training.

Every few windows the planner imagines how traffic may go on, tries sequences of knobs against it
with the cross-entropy method, plays the start of the best one, and plans again. All candidates of
all episodes are one batch.

The planner knows the simulator's physics and present state, the task's traffic statistics, the
regime and the burst level that are in force. Arrivals, bursts, regimes and their lengths to come
are unknown to it: they are drawn afresh for every plan, and all candidates face the same draws.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxserve import checks
from jaxserve.agents.policy import PrivilegedPolicy
from jaxserve.env import EnvState, ServeEnv
from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_indices
from jaxserve.sim.traffic.workload import Workload, WorkloadState
from jaxserve.types import ServeAction

_PARTS = 2  # settings in a plan: one until the next look, one for what follows


@dataclass(frozen=True)
class PlannerConfig:
    """Depth and effort of the search; a decision simulates ``iterations * candidates * futures *
    horizon_windows`` windows."""

    horizon_windows: int = 24
    """long enough for a switch of tier or split to pay, and for requests to complete."""
    hold_windows: int = 4
    """windows between two decisions."""
    candidates: int = 48
    elites: int = 6
    """candidates that the next ones are drawn like."""
    iterations: int = 3
    futures: int = 2
    """draws of the traffic to come that every candidate faces."""
    exploration: float = 0.3
    """share of the knobs that are drawn from their whole grid at first; falls with iterations."""

    def __post_init__(self) -> None:
        checks.whole("planner: horizon_windows", self.horizon_windows, 2, 1000)
        checks.whole("planner: hold_windows", self.hold_windows, 1, self.horizon_windows - 1)
        checks.whole("planner: candidates", self.candidates, 2, 100_000)
        checks.whole("planner: elites", self.elites, 1, self.candidates)
        checks.whole("planner: iterations", self.iterations, 1, 1000)
        checks.whole("planner: futures", self.futures, 1, 1000)
        checks.number("planner: exploration", self.exploration, 0, 1)


class Intent(NamedTuple):
    """Memory of the planner from window to window."""

    window: jax.Array
    """int32, windows played."""
    plan: jax.Array
    """int32[2, 6], grid indices: until the next decision, and after it."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Planner(PrivilegedPolicy):
    """The planner for one task; build it with ``planner_for``."""

    sizes: jax.Array
    """int32[7], grid points of each knob; 1 for those that the task locks."""
    config: PlannerConfig = field(default=PlannerConfig(), metadata={"static": True})

    def init(self, env: ServeEnv) -> Intent:
        """Nothing planned yet: the task's own knobs."""
        start = jnp.where(self.sizes > 1, nearest_indices(env.locked), 0)
        return Intent(jnp.int32(0), jnp.stack([start] * _PARTS))

    def act_on_state(
        self, env: ServeEnv, memory: Intent, state: EnvState, key: jax.Array
    ) -> tuple[ServeAction, Intent]:
        """Plans anew every ``hold_windows``, and holds the plan's start in between."""
        window, plan = memory
        # All episodes of a batch count the same windows, so only one of the branches runs.
        plan = jax.lax.cond(
            window % self.config.hold_windows == 0,
            lambda: self._best_plan(env, state, jnp.stack([plan[1]] * _PARTS), key),
            lambda: plan,
        )
        return action_at(plan[0]), Intent(window + 1, plan)

    def _best_plan(
        self, env: ServeEnv, state: EnvState, plan: jax.Array, key: jax.Array
    ) -> jax.Array:
        """The cross-entropy method around int32[2, 6], what was going to be played."""
        config = self.config
        future_key, draw_key = jax.random.split(key)
        futures = jax.vmap(lambda key: imagine(env, state, key))(
            jax.random.split(future_key, config.futures)
        )

        def improve(carry: tuple[jax.Array, jax.Array], turn: jax.Array):
            best, odds = carry
            exploration = config.exploration / (1 + turn)
            plans = self._draw(odds, exploration, jax.random.fold_in(draw_key, turn))
            plans = plans.at[0].set(best)
            rewards = jax.vmap(
                lambda plan: jnp.mean(jax.vmap(lambda each: self._reward(env, each, plan))(futures))
            )(plans)
            _, order = jax.lax.top_k(rewards, config.elites)
            elites = plans[order]
            return (elites[0], jnp.mean(_one_hot(elites), axis=0)), None

        start = (plan, _one_hot(plan))
        (best, _), _ = jax.lax.scan(improve, start, jnp.arange(config.iterations))
        return best

    def _draw(self, odds: jax.Array, exploration: jax.Array, key: jax.Array) -> jax.Array:
        """int32[candidates, 2, 6] from probabilities float32[2, 6, N] mixed with uniform ones."""
        sizes = self.sizes[:, None]
        uniform = jnp.where(jnp.arange(odds.shape[-1]) < sizes, 1.0 / sizes, 0.0)
        logits = jnp.log((1.0 - exploration) * odds + exploration * uniform)
        shape = (self.config.candidates, *odds.shape[:-1])
        return jax.random.categorical(key, logits, shape=shape).astype(jnp.int32)

    def _reward(self, env: ServeEnv, state: EnvState, plan: jax.Array) -> jax.Array:
        """Reward of a plan in an imagined future."""

        def window(state: EnvState, index: jax.Array) -> tuple[EnvState, jax.Array]:
            part = (index >= self.config.hold_windows).astype(jnp.int32)
            state, timestep = env.step(state, action_at(plan[part]))
            return state, timestep.reward

        return jnp.sum(jax.lax.scan(window, state, jnp.arange(self.config.horizon_windows))[1])


def planner_for(env: ServeEnv, config: PlannerConfig | None = None) -> Planner:
    """The planner whose grids fit a task."""
    return Planner(jnp.asarray(grid_sizes(env), jnp.int32), config or PlannerConfig())


def imagine(env: ServeEnv, state: EnvState, key: jax.Array) -> EnvState:
    """A copy of the present moment with another future; of the traffic only the present is kept.

    Recorded traffic goes on from a random place of the recording.
    """
    workload = _another_future(env.workload, state.workload, key)
    return dataclasses.replace(state, workload=workload)


def _another_future(workload: Workload, state: WorkloadState, key: jax.Array) -> WorkloadState:
    traffic_key, order_key, dwell_key, place_key = jax.random.split(key, 4)
    regimes = state.order.shape[0]
    current = state.order[state.position % regimes]
    # Random ranks put the regimes that may follow in any order behind the current one.
    rank = jax.random.uniform(order_key, (regimes,)).at[current].set(-1.0)
    shortest, longest = workload.regimes.dwell_s[current]
    stay, rest = jax.random.uniform(dwell_key, (2,))
    replay_start = state.replay_start
    if workload.replay_counts is not None:
        replay_start = jax.random.randint(place_key, (), 0, len(workload.replay_counts))
    return dataclasses.replace(
        state,
        key=traffic_key,
        order=jnp.argsort(rank).astype(jnp.int32),
        position=jnp.zeros_like(state.position),
        dwell_left_s=jnp.ceil(rest * (shortest + stay * (longest - shortest))),
        replay_start=replay_start,
    )


def _one_hot(indices: Any) -> jax.Array:
    """float32[..., N]: N is the size of the largest grid."""
    return jax.nn.one_hot(indices, max(map(len, KNOB_GRIDS.values())))
