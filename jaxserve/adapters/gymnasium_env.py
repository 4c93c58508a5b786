"""Gymnasium environments: one deployment at a time, or many in one compiled step.

    import gymnasium
    import jaxserve.adapters.gymnasium_env  # registers jaxserve/<task>-v0

    env = gymnasium.make("jaxserve/bursty_workload-v0")
    envs = gymnasium.make_vec("jaxserve/bursty_workload-v0", num_envs=256)

An action is an index into the grid of each knob, an observation the features of
``ServeEnv.observe``, and ``info`` has a window's figures as plain numbers: ``docs/adapters.md``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import gymnasium
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "this adapter needs gymnasium, which the gym extra installs: pip install 'jaxserve[gym]'",
        name="gymnasium",
    ) from None
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from jaxserve import checks
from jaxserve.adapters.flat import Seen, advance, checked_indices, feature_bounds, start
from jaxserve.env import EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import grid_sizes
from jaxserve.registry import make
from jaxserve.seeds import MAX_SEED, episode_key, random_episode_keys
from jaxserve.tasks.spec import TaskSpec, task_names

_AUTORESET_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)

# Programs of the module rather than of an instance, so that all instances share them.
_start_one, _advance_one = jax.jit(start), jax.jit(advance)
_start_many = jax.jit(jax.vmap(start, (None, 0)))
_advance_many = jax.jit(jax.vmap(advance, (None, 0, 0)))


class ServeGymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Gymnasium environment of one deployment. An episode ends at the task's horizon, a
    truncation."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the name and form that gymnasium reads

    def __init__(
        self, task: str | int | TaskSpec = "bursty_workload", split: str = "train", **options: Any
    ) -> None:
        """Args: the task, whose seeds episodes have, and what ``jaxserve.make`` takes."""
        self.serve_env, self.split = make(task, **options), split
        self.observation_space, self.action_space = _spaces(self.serve_env)
        self._sizes = self.action_space.nvec
        self._state: EnvState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts the episode of ``seed``, or a random one.

        Raises:
          InputError: a seed that is no whole number from 0 on, or options.
        """
        _refuse_options(options)
        seed = None if seed is None else checks.whole("seed", seed, 0)
        super().reset(seed=seed)
        number = _drawn(self.np_random) if seed is None else _episode(seed)
        self._state, seen = _start_one(self.serve_env, episode_key(number, self.split))
        seen = _on_host(seen)
        return seen.features, _plain(seen)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays a window.

        Raises:
          InputError: an action outside the space, or no episode in progress.
        """
        if self._state is None:
            raise InputError("step was called with no episode in progress; call reset first")
        indices = checked_indices(action, self._sizes)
        state, seen = _advance_one(self.serve_env, self._state, indices)
        seen = _on_host(seen)
        self._state = None if seen.truncated or seen.terminated else state
        return (
            seen.features,
            float(seen.reward),
            bool(seen.terminated),
            bool(seen.truncated),
            _plain(seen),
        )


class ServeVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many deployments in one compiled step, which start their next episode by themselves.

    With ``NEXT_STEP`` (gymnasium's default) the step after an episode's last one ignores the action
    and returns the start of the next episode. With ``SAME_STEP`` the last step returns it already,
    and ``info["final_obs"]`` and ``info["final_info"]`` have what ended.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the name and form that gymnasium reads

    def __init__(
        self,
        num_envs: int = 1,
        task: str | int | TaskSpec = "bursty_workload",
        split: str = "train",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        """Args: how many, how they restart, and the rest as ``ServeGymEnv``.

        Raises:
          InputError: less than one environment, or a mode that this environment does not have.
        """
        checks.whole("num_envs", num_envs, 1)
        self.autoreset_mode = _mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.serve_env, self.split, self.num_envs = make(task, **options), split, num_envs
        self.single_observation_space, self.single_action_space = _spaces(self.serve_env)
        self._sizes = self.single_action_space.nvec
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state: EnvState | None = None
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts all episodes.

        Args:
          seed: of the first environment, those after it count up; or one for each. The first
            one also decides the episodes that follow.

        Raises:
          InputError: a seed that is no whole number from 0 on, another number of seeds than of
            environments, or options.
        """
        _refuse_options(options)
        seeds = None if seed is None else self._checked_seeds(seed)
        super().reset(seed=None if seeds is None else seeds[0])
        if seeds is None:
            keys = self._next_keys()
        else:
            keys = jnp.stack([episode_key(_episode(number), self.split) for number in seeds])
        self._state, seen = _start_many(self.serve_env, keys)
        self._ended = np.zeros(self.num_envs, bool)
        seen = _on_host(seen)
        return seen.features, self._batched(seen, ~self._ended)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays a window of each environment.

        Raises:
          InputError: an action outside the space, or a step before the first reset.
        """
        if self._state is None:
            raise InputError("step was called with no episode in progress; call reset first")
        indices = checked_indices(actions, self._sizes, self.num_envs)
        state, seen = _advance_many(self.serve_env, self._state, indices)
        last = _on_host(seen)
        everywhere = np.ones(self.num_envs, bool)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            state, shown = self._restarted(state, last, self._ended)
            self._ended = shown.terminated | shown.truncated
            info = self._batched(shown, everywhere)
        else:
            ended = last.terminated | last.truncated
            state, fresh = self._restarted(state, last, ended)
            # The reward and the flags are the last window's; what they led to is in final_obs.
            shown = dataclasses.replace(last, features=fresh.features)
            info = self._batched(fresh, everywhere) | self._final(last, ended)
        self._state = state
        rewards = np.asarray(shown.reward, np.float64)
        return shown.features, rewards, shown.terminated, shown.truncated, info

    def _restarted(self, state: EnvState, seen: Any, ended: np.ndarray) -> tuple[EnvState, Any]:
        """States with new episodes where the old ones have ended."""
        if not ended.any():
            return state, seen
        fresh_state, fresh = _start_many(self.serve_env, self._next_keys())
        state = _where(ended, fresh_state, state)
        return state, jax.tree.map(functools.partial(_pick, ended), _on_host(fresh), seen)

    def _checked_seeds(self, seed: int | Sequence[int]) -> list[int]:
        if not isinstance(seed, Sequence):
            first = checks.whole("seed", seed, 0)
            return list(range(first, first + self.num_envs))
        if len(seed) != self.num_envs:
            raise InputError(
                f"seed has {len(seed)} entries; it must have one for each of the "
                f"{self.num_envs} environments"
            )
        return [checks.whole("seed", number, 0) for number in seed]

    def _next_keys(self) -> jax.Array:
        key = jax.random.key(_drawn(self.np_random))
        return random_episode_keys(key, self.num_envs, self.split)

    def _batched(self, seen: Any, known: np.ndarray) -> dict[str, Any]:
        """Numbers [num_envs] by name, and the masks that gymnasium puts beside them."""
        numbers = {name: np.asarray(value, np.float64) for name, value in seen.numbers.items()}
        return numbers | {f"_{name}": known.copy() for name in numbers}

    def _final(self, last: Any, ended: np.ndarray) -> dict[str, Any]:
        if not ended.any():
            return {}
        observations = np.full(self.num_envs, None, object)
        for index in np.flatnonzero(ended):
            observations[index] = last.features[index].copy()
        return {
            "final_obs": observations,
            "_final_obs": ended.copy(),
            "final_info": self._batched(last, ended),
            "_final_info": ended.copy(),
        }


def _spaces(env: ServeEnv) -> tuple[Box, MultiDiscrete]:
    low, high = map(np.array, feature_bounds(env))
    return Box(low, high, dtype=np.float32), MultiDiscrete(grid_sizes(env))


def _mode(mode: str | AutoresetMode) -> AutoresetMode:
    for known in _AUTORESET_MODES:
        if mode in (known, known.value):
            return known
    allowed = ", ".join(known.value for known in _AUTORESET_MODES)
    checks.refuse("autoreset_mode", mode, f"one of {allowed}")


def _episode(seed: int) -> int:
    """Index of the episode of a seed: the seed itself, or a drawn one for seeds beyond the last
    episode, which gymnasium allows."""
    return seed if seed <= MAX_SEED else _drawn(np_random(seed)[0])


def _drawn(generator: np.random.Generator) -> int:
    return int(generator.integers(MAX_SEED + 1))


def _refuse_options(options: Mapping[str, Any] | None) -> None:
    if options:
        raise InputError(f"reset got options {', '.join(map(str, options))}; it takes none")


def _on_host(seen: Seen) -> Any:
    """NumPy arrays of the caller's own: those of the device are read-only."""
    return jax.tree.map(np.array, jax.device_get(seen))


def _plain(seen: Any) -> dict[str, Any]:
    return {name: float(value) for name, value in seen.numbers.items()}


def _pick(chosen: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)


@jax.jit
def _where(chosen: jax.Array, new: Any, old: Any) -> Any:
    """Leaves [num_envs, ...] of ``new`` where chosen."""

    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(pick, new, old)


for _task in task_names():
    gymnasium.register(
        id=f"jaxserve/{_task}-v0",
        entry_point=f"{__name__}:ServeGymEnv",
        vector_entry_point=f"{__name__}:ServeVectorEnv",
        kwargs={"task": _task},
    )
