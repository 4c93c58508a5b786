"""Gymnasium environments: one episode at a time, or many in one compiled step.

    import gymnasium
    import jaxserve.adapters.gymnasium_env  # registers jaxserve/<task>-v0

    env = gymnasium.make("jaxserve/bursty_workload-v0")
    envs = gymnasium.make_vec("jaxserve/bursty_workload-v0", num_envs=256)

Actions are indices of the knob grids (MultiDiscrete, one entry for each knob of the task);
observations are the features of ``ServeEnv.observe``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from jaxserve.agents.grids import action_at, grid_sizes
from jaxserve.env import FEATURE_NAMES, EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.registry import make
from jaxserve.seeds import MAX_SEED, episode_key
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import task_names
from jaxserve.types import TimeStep

_LARGEST_FEATURE = 1e4


class ServeGymEnv(gymnasium.Env):
    """One deployment. ``info`` has the reward's parts and the window's metrics."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the name and form that gymnasium reads

    def __init__(self, task: str = "bursty_workload", split: str = "train", **options: Any) -> None:
        """Args: the task, whose seeds episodes have, and what ``jaxserve.make`` takes."""
        self.env = make(task, **options)
        self.split = split
        self.observation_space, self.action_space = _spaces(self.env)
        self._reset, self._step = jax.jit(_started), jax.jit(_stepped)
        self._state: EnvState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode; the same seed gives the same traffic."""
        super().reset(seed=seed)
        number = self.np_random.integers(MAX_SEED) if seed is None else seed
        self._state, timestep, features = self._reset(self.env, episode_key(int(number), self.split))
        return np.asarray(features), _info(timestep)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One window.

        Raises:
          InputError: an action outside the space, or a step before the first reset.
        """
        if self._state is None:
            raise InputError("step was called before reset")
        indices = _checked(action, self.action_space)
        self._state, timestep, features = self._step(self.env, self._state, indices)
        return (
            np.asarray(features),
            float(timestep.reward),
            bool(timestep.terminated),
            bool(timestep.truncated),
            _info(timestep),
        )


class ServeVectorEnv(VectorEnv):
    """Many deployments in one compiled step; each starts its next episode in the step after."""

    metadata = {  # noqa: RUF012 - the name and form that gymnasium reads
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "bursty_workload",
        split: str = "train",
        **options: Any,
    ) -> None:
        """Args: how many, and the rest as ``ServeGymEnv``."""
        self.env = make(task, **options)
        self.num_envs, self.split = num_envs, split
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reset = jax.jit(jax.vmap(_started, (None, 0)))
        self._step = jax.jit(jax.vmap(_next, (None, 0, 0, 0, 0)))
        self._state: EnvState | None = None
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts all episodes; a number seeds the first environment, and those after it count up."""
        first = seed if isinstance(seed, int) else None
        if first is not None:
            self._np_random = np.random.default_rng(first)
        chosen = [None] * self.num_envs if seed is None else seed
        if isinstance(chosen, int):
            chosen = [chosen + index for index in range(self.num_envs)]
        keys = self._keys(chosen)
        self._state, timestep, features = self._reset(self.env, keys)
        self._ended = np.zeros(self.num_envs, bool)
        return np.asarray(features), _info(timestep)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One window of each; where an episode ended before, its successor's start.

        Raises:
          InputError: an action outside the space, or a step before the first reset.
        """
        if self._state is None:
            raise InputError("step was called before reset")
        indices = _checked(actions, self.action_space)
        keys = self._keys([None] * self.num_envs)
        self._state, timestep, features = self._step(
            self.env, self._state, indices, keys, jnp.asarray(self._ended)
        )
        terminated, truncated = np.asarray(timestep.terminated), np.asarray(timestep.truncated)
        self._ended = terminated | truncated
        rewards = np.asarray(timestep.reward, np.float64)
        return np.asarray(features), rewards, terminated, truncated, _info(timestep)

    def _keys(self, seeds: list[int | None]) -> jax.Array:
        drawn = self.np_random.integers(MAX_SEED, size=len(seeds))
        numbers = [int(d) if s is None else s for s, d in zip(seeds, drawn, strict=True)]
        return jnp.stack([episode_key(number, self.split) for number in numbers])


def _spaces(env: ServeEnv) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.MultiDiscrete]:
    sizes = grid_sizes(env)
    shape = (len(FEATURE_NAMES),)
    box = gymnasium.spaces.Box(-_LARGEST_FEATURE, _LARGEST_FEATURE, shape, np.float32)
    return box, gymnasium.spaces.MultiDiscrete(sizes)


def _checked(action: Any, space: gymnasium.Space) -> jax.Array:
    array = np.asarray(action)
    if not np.issubdtype(array.dtype, np.integer) or not space.contains(array.astype(np.int64)):
        sizes = np.asarray(getattr(space, "nvec", ())).reshape(-1, len(KNOBS))[0]
        allowed = ", ".join(f"{knob} 0..{size - 1}" for knob, size in zip(KNOBS, sizes, strict=True))
        raise InputError(f"action is {action!r:.80}; it must be whole numbers: {allowed}")
    return jnp.asarray(array, jnp.int32)


def _started(env: ServeEnv, key: jax.Array) -> tuple[EnvState, TimeStep, jax.Array]:
    state, timestep = env.reset(key)
    return state, timestep, env.observe(timestep.observation)


def _stepped(
    env: ServeEnv, state: EnvState, indices: jax.Array
) -> tuple[EnvState, TimeStep, jax.Array]:
    state, timestep = env.step(state, action_at(indices))
    return state, timestep, env.observe(timestep.observation)


def _next(
    env: ServeEnv, state: EnvState, indices: jax.Array, key: jax.Array, ended: jax.Array
) -> tuple[EnvState, TimeStep, jax.Array]:
    stepped, started = _stepped(env, state, indices), _started(env, key)
    return jax.tree.map(lambda new, old: jnp.where(ended, new, old), started, stepped)


def _info(timestep: TimeStep) -> dict[str, Any]:
    parts = {name: np.asarray(value) for name, value in vars(timestep.parts).items()}
    metrics = {name: np.asarray(value) for name, value in vars(timestep.metrics).items()}
    return {"reward_parts": parts, "metrics": metrics}


for _task in task_names():
    gymnasium.register(
        id=f"jaxserve/{_task}-v0",
        entry_point=ServeGymEnv,
        vector_entry_point=ServeVectorEnv,
        kwargs={"task": _task},
    )
