"""The search for constant settings: the best of a task, and the best of each of its regimes.

They maximise the task's own objective, the mean reward per window, on the fast simulator.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.objective import horizon_of, in_chunks, mean_reward, on_all_devices
from jaxserve.agents.progress import Progress
from jaxserve.agents.regimes import regime_env
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.spaces import action_text
from jaxserve.tasks.spec import REGIME_COUNT


def static_objective(env: ServeEnv, indices: np.ndarray, keys: jax.Array) -> np.ndarray:
    """float[N, S]: mean reward of N constant settings int32[N, 6] on S episodes."""
    settings = np.repeat(np.asarray(indices, np.int32), len(keys), axis=0)
    chosen = jnp.tile(keys, len(indices))
    values = in_chunks(functools.partial(_static_rollouts, env, horizon_of(env)), settings, chosen)
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
        neighbours = np.unique(np.concatenate([single_changes(row, sizes) for row in best]), axis=0)
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


def single_changes(setting: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The setting and everything one knob away, int32[N, 6]."""
    rows = [np.asarray(setting, np.int32)]
    for knob, size in enumerate(sizes):
        for value in range(size):
            if value != setting[knob]:
                row = rows[0].copy()
                row[knob] = value
                rows.append(row)
    return np.stack(rows)


def setting_text(indices: np.ndarray, sizes: np.ndarray) -> str:
    """A setting in words, active knobs only."""
    return action_text(action_at(jnp.asarray(indices)), sizes > 1)


def _scores(env: ServeEnv, settings: np.ndarray, keys: jax.Array) -> np.ndarray:
    return static_objective(env, settings, keys).mean(1)


@functools.partial(jax.jit, static_argnums=1)
def _static_rollouts(
    env: ServeEnv, horizon: int, settings: jax.Array, keys: jax.Array
) -> jax.Array:
    def episode(env: ServeEnv, setting: jax.Array, key: jax.Array) -> jax.Array:
        action = action_at(setting)
        return mean_reward(env, key, horizon, lambda _: action)

    return on_all_devices(episode, env, settings, keys)
