"""The two yardsticks of every task: the best static setting and a switch-aware oracle.

Both maximise the task's own objective, the mean reward per window, on the fast simulator. The best
static setting is chosen on training seeds. The oracle knows the schedule of regimes and bursts of
every episode in advance: it is a plan that holds one setting per regime and burst state, looks
ahead so that a switch is over when the regime arrives, and is refined on each episode by itself.
Reload and re-role delays are simulated, so a plan that flaps pays for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.devices import EVERYWHERE, all_devices, on_each, spread
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.sim.workload import draw_arrivals, init_workload
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import REGIME_COUNT

BURST_STATES = 2
SITUATIONS = REGIME_COUNT * BURST_STATES
_CHUNK = 1024  # episodes per compiled batch
_BURSTING = 1.5  # times the regime's base rate counts as a burst
_LEADS = (0, 1, 2, 4, 6, 8, 12)
"""Windows that a plan may look ahead."""

Progress = Callable[[str, int, int], None]
"""Called with a stage name, steps done and steps in all."""


class Plan(NamedTuple):
    """An oracle plan."""

    settings: Any
    """int32[SITUATIONS, 6], grid indices for each regime x burst state."""
    lead: Any
    """int32, index into the look-ahead choices."""


class Schedule(NamedTuple):
    """The hidden schedule of an episode."""

    situation: jax.Array
    """int32[T], regime * BURST_STATES + bursting, in each window."""


def static_objective(env: ServeEnv, indices: np.ndarray, keys: jax.Array) -> np.ndarray:
    """float[N, S]: mean reward of N constant settings int32[N, 6] on S episodes."""
    settings = np.repeat(np.asarray(indices, np.int32), len(keys), axis=0)
    chosen = jnp.tile(keys, len(indices))
    values = _in_chunks(functools.partial(_static_rollouts, env, _horizon(env)), settings, chosen)
    return values.reshape(len(indices), len(keys))


def best_static(
    env: ServeEnv,
    keys: jax.Array,
    *,
    candidates: int = 512,
    rounds: int = 6,
    keep: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """The best constant setting: random search over the grid, then coordinate refinement.

    Args:
      keys: training episodes.
      candidates: random settings tried first.
      rounds: refinement rounds; each tries every single-knob change of the ``keep`` best.

    Returns:
      int32[6], grid indices.
    """
    sizes = grid_sizes(env)
    generator = np.random.default_rng(seed)
    pool = np.unique(generator.integers(0, sizes, (4 * candidates, 6)), axis=0)
    pool = generator.permutation(pool)[:candidates].astype(np.int32)
    scores = _scores(env, pool, keys)
    for turn in range(rounds):
        if progress:
            progress("best static", turn, rounds)
        best = pool[np.argsort(-scores)[:keep]]
        neighbours = np.unique(
            np.concatenate([_single_changes(row, sizes) for row in best]), axis=0
        )
        seen = {row.tobytes() for row in pool}
        fresh = np.array([row for row in neighbours if row.tobytes() not in seen], np.int32)
        if not len(fresh):
            break
        pool = np.concatenate([pool, fresh])
        scores = np.concatenate([scores, _scores(env, fresh, keys)])
    return pool[int(np.argmax(scores))]


def regime_settings(
    env: ServeEnv,
    keys: jax.Array,
    static: np.ndarray,
    *,
    regimes: int = REGIME_COUNT,
    progress: Progress | None = None,
) -> np.ndarray:
    """int32[regimes, 6]: the best constant setting of each regime held for whole episodes.

    Args:
      regimes: how many the task has; an environment repeats them up to ``REGIME_COUNT``.
    """
    best = []
    for regime in range(regimes):
        if progress:
            progress("best setting of each regime", regime, regimes)
        held = regime_env(env, regime)
        found = best_static(held, keys, candidates=256, rounds=4, keep=4, seed=regime)
        both = np.stack([found, static])
        best.append(both[int(np.argmax(_scores(held, both, keys)))])
    return np.stack(best)


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
) -> tuple[Plan, np.ndarray]:
    """One plan per episode and its mean reward.

    First a plan that all episodes share is improved setting by setting (``sweeps`` passes of
    coordinate ascent), then each episode's copy by evolution.

    Args:
      keys: S episodes to plan for.
      static: int32[6], the best static setting, where the plan starts.
      by_regime: int32[regimes, 6], settings to consider whole, see ``regime_settings``.

    Returns:
      a Plan with a leading episode axis and float[S], the mean reward of each.
    """
    sizes = grid_sizes(env)
    schedules = episode_schedules(env, keys)
    shared = _shared_plan(env, keys, schedules, static, by_regime, sizes, sweeps, progress)
    occurring = np.unique(np.asarray(schedules.situation))
    generator = np.random.default_rng(seed)
    count = len(keys)
    parents = Plan(
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
        parents = Plan(
            np.where(better[:, None, None], children.settings[chosen], parents.settings),
            np.where(better, children.lead[chosen], parents.lead),
        )
        best = np.maximum(best, values.max(1))
    return parents, best


def _shared_plan(
    env: ServeEnv,
    keys: jax.Array,
    schedules: Schedule,
    static: np.ndarray,
    by_regime: np.ndarray,
    sizes: np.ndarray,
    sweeps: int,
    progress: Progress | None,
) -> Plan:
    """Coordinate ascent over situations; a regime is first given whole settings of others."""
    plan = Plan(np.tile(static, (SITUATIONS, 1)).astype(np.int32), np.int32(0))
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
        values = _plan_values(env, Plan(trial, leads), keys, schedules).mean(1)
        plan = plan._replace(settings=trial[int(np.argmax(values))])

    # The regimes' own settings may only pay together (one deployment role for several regimes).
    every = by_regime[np.arange(REGIME_COUNT) % len(by_regime)]
    tuned = np.repeat(every, BURST_STATES, axis=0).astype(np.int32)
    both = Plan(np.stack([plan.settings, tuned]), np.zeros(2, np.int32))
    values = _plan_values(env, both, keys, schedules).mean(1)
    plan = plan._replace(settings=both.settings[int(np.argmax(values))])
    for _ in range(sweeps):
        for regime in regimes:
            first = regime * BURST_STATES
            own = _single_changes(plan.settings[first], sizes)
            improve(slice(first, first + BURST_STATES), np.concatenate([own, whole]))
        for situation in occurring:
            improve(situation, _single_changes(plan.settings[situation], sizes))
        choices = np.arange(len(_LEADS), dtype=np.int32)
        trial = Plan(np.tile(plan.settings, (len(choices), 1, 1)), choices)
        done += 1
        values = _plan_values(env, trial, keys, schedules).mean(1)
        plan = plan._replace(lead=choices[int(np.argmax(values))])
    return plan


def episode_schedules(env: ServeEnv, keys: jax.Array) -> Schedule:
    """The hidden schedules of episodes, int32[S, T]; traffic does not depend on actions."""
    return _schedules(env, keys, _horizon(env))


def regime_env(env: ServeEnv, regime: int) -> ServeEnv:
    """The same task held in one regime."""
    workload = env.workload
    held = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[regime], leaf.shape), workload.regimes)
    return dataclasses.replace(env, workload=dataclasses.replace(workload, regimes=held))


def _single_changes(setting: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The setting and everything one knob away, int32[N, 6]."""
    rows = [np.asarray(setting, np.int32)]
    for knob, size in enumerate(sizes):
        for value in range(size):
            if value != setting[knob]:
                row = rows[0].copy()
                row[knob] = value
                rows.append(row)
    return np.stack(rows)


def _mutate(
    parents: Plan,
    offspring: int,
    occurring: np.ndarray,
    sizes: np.ndarray,
    generator: np.random.Generator,
) -> Plan:
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
    return Plan(settings, lead)


def _scores(env: ServeEnv, settings: np.ndarray, keys: jax.Array) -> np.ndarray:
    return static_objective(env, settings, keys).mean(1)


def _plan_values(env: ServeEnv, plans: Plan, keys: jax.Array, schedules: Schedule) -> np.ndarray:
    """float[N, S]: every plan on every episode."""
    count, episodes = len(plans.lead), len(keys)
    crossed = Plan(np.repeat(plans.settings, episodes, axis=0), np.repeat(plans.lead, episodes))
    tiled = jax.tree.map(lambda leaf: jnp.tile(leaf, (count, 1)), schedules)
    return _paired_values(env, crossed, jnp.tile(keys, count), tiled).reshape(count, episodes)


def _paired_values(env: ServeEnv, plans: Plan, keys: jax.Array, schedules: Schedule) -> np.ndarray:
    """float[N]: the n-th plan on the n-th episode."""
    plans = Plan(*map(jnp.asarray, plans))
    run = functools.partial(_plan_rollouts, env, _horizon(env))
    return _in_chunks(run, plans, keys, schedules)


def _in_chunks(run: Callable[..., jax.Array], *batched: Any) -> np.ndarray:
    """Runs episodes in batches of one size, so that one compiled program serves every search."""
    count = len(jax.tree.leaves(batched)[0])
    padded = -(-count // _CHUNK) * _CHUNK
    rows = np.arange(padded) % count
    values = []
    for chosen in np.split(rows, padded // _CHUNK):
        values.append(np.asarray(run(*jax.tree.map(functools.partial(_take, chosen), batched))))
    return np.concatenate(values)[:count]


def _take(rows: np.ndarray, leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[rows]


def _horizon(env: ServeEnv) -> int:
    return int(np.max(env.horizon))


@functools.partial(jax.jit, static_argnums=1)
def _static_rollouts(
    env: ServeEnv, horizon: int, settings: jax.Array, keys: jax.Array
) -> jax.Array:
    def episode(env: ServeEnv, setting: jax.Array, key: jax.Array) -> jax.Array:
        action = action_at(setting)
        return _mean_reward(env, key, horizon, lambda _: action)

    return _on_all_devices(episode, env, settings, keys)


@functools.partial(jax.jit, static_argnums=1)
def _plan_rollouts(
    env: ServeEnv, horizon: int, plans: Plan, keys: jax.Array, schedules: Schedule
) -> jax.Array:
    def episode(env: ServeEnv, plan: Plan, key: jax.Array, schedule: Schedule) -> jax.Array:
        lead = jnp.asarray(_LEADS)[plan.lead]

        def action(step: jax.Array):
            ahead = schedule.situation[jnp.minimum(step + lead, horizon - 1)]
            now = schedule.situation[step]
            # Only a new regime is seen ahead; a burst is answered when it is there.
            regime = ahead // BURST_STATES
            burst = jnp.where(regime == now // BURST_STATES, now % BURST_STATES, 0)
            return action_at(plan.settings[regime * BURST_STATES + burst])

        return _mean_reward(env, key, horizon, action)

    return _on_all_devices(episode, env, plans, keys, schedules)


def _on_all_devices(episode: Callable[..., jax.Array], env: ServeEnv, *batched: Any) -> jax.Array:
    """float32[N]: episodes of one environment, an equal share of them on each device."""
    mapped = jax.vmap(episode, (None, *[0] * len(batched)))
    pieces = [spread()] * len(batched)
    return on_each(all_devices(), mapped, EVERYWHERE, *pieces, out=spread())(env, *batched)


def _mean_reward(env: ServeEnv, key: jax.Array, horizon: int, action) -> jax.Array:
    state, _ = env.reset(key)

    def step(carry, _):
        state, total = carry
        state, timestep = env.step(state, action(state.step))
        return (state, total + timestep.reward), None

    (_, total), _ = jax.lax.scan(step, (state, jnp.float32(0.0)), None, length=horizon)
    return total / horizon


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


def setting_text(indices: np.ndarray, sizes: np.ndarray) -> str:
    """A setting in words, active knobs only."""
    action = action_at(jnp.asarray(indices))
    parts = [
        f"{knob} {float(getattr(action, knob)):g}"
        for knob, size in zip(KNOBS, sizes, strict=True)
        if size > 1
    ]
    return ", ".join(parts)
