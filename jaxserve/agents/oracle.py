"""The switch-aware oracle: a plan for every episode that knows what traffic is to come.

The plan knows the schedule of regimes and bursts of every episode in advance. The plan holds one
setting per regime and burst state, and looks ahead so that a switch is over when the regime
arrives. The plan is refined on each episode by itself and maximises the task's own objective, the
mean reward per window, on the fast simulator. Reload and re-role delays are simulated, so a plan
that flaps pays for it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.objective import horizon_of, in_chunks, mean_reward, on_all_devices
from jaxserve.agents.progress import Progress
from jaxserve.agents.search import single_changes
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.sim.traffic.workload import draw_arrivals, init_workload
from jaxserve.tasks.spec import REGIME_COUNT

BURST_STATES = 2
SITUATIONS = REGIME_COUNT * BURST_STATES
_BURSTING = 1.5  # times the regime's base rate counts as a burst
_LEADS = (0, 1, 2, 4, 6, 8, 12)
"""Windows that a plan may look ahead."""


class OraclePlan(NamedTuple):
    """An oracle plan."""

    settings: Any
    """int32[SITUATIONS, 6], grid indices for each regime x burst state."""
    lead: Any
    """int32, index into the look-ahead choices."""


class Schedule(NamedTuple):
    """The hidden schedule of an episode."""

    situation: jax.Array
    """int32[T], regime * BURST_STATES + bursting, in each window."""


def oracle_plans(
    env: ServeEnv,
    keys: jax.Array,
    static: np.ndarray,
    by_regime: np.ndarray,
    *,
    sweeps: int = 2,
    generations: int = 24,
    offspring: int = 24,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[OraclePlan, np.ndarray]:
    """Plans of the oracle, one per episode, and their mean rewards.

    First a plan that all episodes share is improved setting by setting (``sweeps`` passes of
    coordinate ascent), then each episode's copy by evolution.

    Args:
      keys: S episodes to plan for.
      static: int32[7], the best static setting, where the plan starts.
      by_regime: int32[regimes, 6], settings to consider whole, see ``regime_settings``.

    Returns:
      a OraclePlan with a leading episode axis and float[S], the mean reward of each.
    """
    sizes = grid_sizes(env)
    schedules = episode_schedules(env, keys)
    shared = _shared_plan(env, keys, schedules, static, by_regime, sizes, sweeps, progress)
    occurring = np.unique(np.asarray(schedules.situation))
    generator = np.random.default_rng(seed)
    count = len(keys)
    parents = OraclePlan(
        np.tile(shared.settings, (count, 1, 1)), np.full(count, shared.lead, dtype=np.int32)
    )
    best = _paired_values(env, parents, keys, schedules)
    for generation in range(generations):
        if progress:
            progress("oracle, episode by episode", generation, generations)
        children = _mutate(parents, offspring, occurring, sizes, generator)
        repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, offspring, axis=0), schedules)
        values = _paired_values(env, children, jnp.repeat(keys, offspring), repeated)
        values = values.reshape(count, offspring)
        winner = values.argmax(1)
        better = values.max(1) > best
        chosen = np.arange(count) * offspring + winner
        parents = OraclePlan(
            np.where(better[:, None, None], children.settings[chosen], parents.settings),
            np.where(better, children.lead[chosen], parents.lead),
        )
        best = np.maximum(best, values.max(1))
    return parents, best


def episode_schedules(env: ServeEnv, keys: jax.Array) -> Schedule:
    """The hidden schedules of episodes, int32[S, T]; traffic does not depend on actions."""
    return _schedules(env, keys, horizon_of(env))


def _shared_plan(
    env: ServeEnv,
    keys: jax.Array,
    schedules: Schedule,
    static: np.ndarray,
    by_regime: np.ndarray,
    sizes: np.ndarray,
    sweeps: int,
    progress: Progress | None,
) -> OraclePlan:
    """Coordinate ascent over situations; a regime is first given whole settings of others."""
    plan = OraclePlan(np.tile(static, (SITUATIONS, 1)).astype(np.int32), np.int32(0))
    occurring = [int(s) for s in np.unique(np.asarray(schedules.situation))]
    regimes = sorted({situation // BURST_STATES for situation in occurring})
    whole = np.concatenate([by_regime, static[None]]).astype(np.int32)
    steps = sweeps * (len(regimes) + len(occurring) + 1)
    done = 0

    def improve(where: slice | int, settings: np.ndarray) -> None:
        nonlocal plan, done
        if progress:
            progress("oracle, shared plan", done, steps)
        done += 1
        trial = np.tile(plan.settings, (len(settings), 1, 1))
        trial[:, where] = settings[:, None] if isinstance(where, slice) else settings
        # A whole regime's setting may overwrite two different ones, so the plan itself competes.
        trial = np.concatenate([plan.settings[None], trial])
        leads = np.full(len(trial), plan.lead)
        values = _plan_values(env, OraclePlan(trial, leads), keys, schedules).mean(1)
        plan = plan._replace(settings=trial[int(np.argmax(values))])

    # The regimes' own settings may only pay together (one deployment role for several regimes).
    every = by_regime[np.arange(REGIME_COUNT) % len(by_regime)]
    tuned = np.repeat(every, BURST_STATES, axis=0).astype(np.int32)
    both = OraclePlan(np.stack([plan.settings, tuned]), np.zeros(2, np.int32))
    values = _plan_values(env, both, keys, schedules).mean(1)
    plan = plan._replace(settings=both.settings[int(np.argmax(values))])
    for _ in range(sweeps):
        for regime in regimes:
            first = regime * BURST_STATES
            own = single_changes(plan.settings[first], sizes)
            improve(slice(first, first + BURST_STATES), np.concatenate([own, whole]))
        for situation in occurring:
            improve(situation, single_changes(plan.settings[situation], sizes))
        choices = np.arange(len(_LEADS), dtype=np.int32)
        trial = OraclePlan(np.tile(plan.settings, (len(choices), 1, 1)), choices)
        done += 1
        values = _plan_values(env, trial, keys, schedules).mean(1)
        plan = plan._replace(lead=choices[int(np.argmax(values))])
    return plan


def _mutate(
    parents: OraclePlan,
    offspring: int,
    occurring: np.ndarray,
    sizes: np.ndarray,
    generator: np.random.Generator,
) -> OraclePlan:
    """``offspring`` children of each parent: one or two settings change one or two knobs."""
    settings = np.repeat(np.asarray(parents.settings), offspring, axis=0)
    lead = np.repeat(np.asarray(parents.lead), offspring)
    count = len(settings)
    active = np.flatnonzero(sizes > 1)
    for _ in range(2):
        rows = np.flatnonzero(generator.random(count) < 0.8)
        situation = generator.choice(occurring, len(rows))
        knob = generator.choice(active, len(rows))
        near = settings[rows, situation, knob] + generator.choice([-2, -1, 1, 2], len(rows))
        far = generator.integers(0, sizes[knob])
        value = np.where(generator.random(len(rows)) < 0.7, near, far)
        settings[rows, situation, knob] = np.clip(value, 0, sizes[knob] - 1)
    moved = generator.random(count) < 0.1
    lead = np.where(moved, generator.integers(0, len(_LEADS), count), lead).astype(np.int32)
    return OraclePlan(settings, lead)


def _plan_values(
    env: ServeEnv, plans: OraclePlan, keys: jax.Array, schedules: Schedule
) -> np.ndarray:
    """float[N, S]: every plan on every episode."""
    count, episodes = len(plans.lead), len(keys)
    crossed = OraclePlan(
        np.repeat(plans.settings, episodes, axis=0), np.repeat(plans.lead, episodes)
    )
    tiled = jax.tree.map(lambda leaf: jnp.tile(leaf, (count, 1)), schedules)
    return _paired_values(env, crossed, jnp.tile(keys, count), tiled).reshape(count, episodes)


def _paired_values(
    env: ServeEnv, plans: OraclePlan, keys: jax.Array, schedules: Schedule
) -> np.ndarray:
    """float[N]: the n-th plan on the n-th episode."""
    plans = OraclePlan(*map(jnp.asarray, plans))
    run = functools.partial(_plan_rollouts, env, horizon_of(env))
    return in_chunks(run, plans, keys, schedules)


@functools.partial(jax.jit, static_argnums=1)
def _plan_rollouts(
    env: ServeEnv, horizon: int, plans: OraclePlan, keys: jax.Array, schedules: Schedule
) -> jax.Array:
    def episode(env: ServeEnv, plan: OraclePlan, key: jax.Array, schedule: Schedule) -> jax.Array:
        lead = jnp.asarray(_LEADS)[plan.lead]

        def action(step: jax.Array):
            ahead = schedule.situation[jnp.minimum(step + lead, horizon - 1)]
            now = schedule.situation[step]
            # Only a new regime is seen ahead; a burst is answered when it is there.
            regime = ahead // BURST_STATES
            burst = jnp.where(regime == now // BURST_STATES, now % BURST_STATES, 0)
            return action_at(plan.settings[regime * BURST_STATES + burst])

        return mean_reward(env, key, horizon, action)

    return on_all_devices(episode, env, plans, keys, schedules)


@functools.partial(jax.jit, static_argnames="horizon")
def _schedules(env: ServeEnv, keys: jax.Array, horizon: int) -> Schedule:
    def one(key: jax.Array) -> Schedule:
        _, workload_key = jax.random.split(key)

        def step(state, window):
            state, arrivals = draw_arrivals(env.workload, state, window, env.ticks, env.window_s)
            base = env.workload.regimes.rate_rps[arrivals.regime]
            bursting = arrivals.rate_rps > _BURSTING * base
            return state, arrivals.regime * BURST_STATES + bursting

        start = init_workload(env.workload, workload_key)
        return Schedule(jax.lax.scan(step, start, jnp.arange(horizon))[1])

    return jax.vmap(one)(keys)
