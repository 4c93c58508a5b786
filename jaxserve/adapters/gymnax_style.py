"""Episodes one after the other, in the interface of gymnax 1.0: six values from ``step``.

    env, params = make("bursty_workload")
    observation, state = env.reset(key, params)
    observation, state, reward, terminated, truncated, info = env.step(key, state, action, params)

``params`` is the ``ServeEnv`` itself: a pytree, so that deployments can be stacked and mapped over
like states. Code that knows one kind of action space only gets it from a wrapper: ``OneIndex``
(Discrete) or ``OneBox`` (Box).
"""

from __future__ import annotations

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.adapters.flat import Seen, advance, feature_bounds, start
from jaxserve.adapters.gymnax_spaces import MultiDiscrete, box, discrete
from jaxserve.env import EnvState, ServeEnv
from jaxserve.grids import grid_sizes
from jaxserve.registry import make as make_serve_env
from jaxserve.tasks.spec import TaskSpec, load_task

_LOGGED = ("arrivals", "good", "cost_usd")

Stepped = tuple[jax.Array, EnvState, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]
"""observation, state, reward, terminated, truncated, info."""


def make(task: str | int | TaskSpec, **options: Any) -> tuple[GymnaxEnv, ServeEnv]:
    """An environment and its parameters; ``options`` as ``jaxserve.make`` takes them.

    Raises:
      InputError: anything unknown, unreadable or out of range.
    """
    spec = task if isinstance(task, TaskSpec) else load_task(task)
    env = GymnaxEnv(make_serve_env(spec, **options), spec.name)
    return env, env.default_params


class GymnaxEnv:
    """A ``ServeEnv`` as code written for gymnax expects it.

    An action is int32[7], an index into the grid of each of ``jaxserve.KNOBS``. As everywhere
    inside jit, an index outside its grid means the nearest inside.
    """

    def __init__(self, env: ServeEnv, name: str) -> None:
        """Args: the deployment, and the name of its task."""
        self.default_params = env
        self.name = name
        self._sizes = grid_sizes(env)
        # Learners ask for spaces while they are traced, when nothing can be computed.
        self._bounds = tuple(map(np.asarray, feature_bounds(env)))

    @property
    def num_actions(self) -> int:
        """Number of entries of an action, as gymnax counts them for arrays."""
        return len(self._sizes)

    def action_space(self, params: ServeEnv | None = None) -> Any:
        """Grid points of each knob; 1 for those that the task locks."""
        del params
        return MultiDiscrete(self._sizes)

    def observation_space(self, params: ServeEnv | None = None) -> Any:
        """Bounds of the features."""
        if params is None or params is self.default_params:
            low, high = self._bounds
        else:
            low, high = feature_bounds(params)
        return box(low, high, low.shape)

    @functools.partial(jax.jit, static_argnames="self")
    def reset(self, key: jax.Array, params: ServeEnv | None = None) -> tuple[jax.Array, EnvState]:
        """Starts an episode.

        Args:
          key: PRNG key, typed or of the old kind; the episode's only source of randomness.
        """
        state, seen = self._start(key, params)
        return seen.features, state

    @functools.partial(jax.jit, static_argnames="self")
    def step(
        self, key: jax.Array, state: EnvState, action: jax.Array, params: ServeEnv | None = None
    ) -> Stepped:
        """Plays a window, and starts the next episode where this one ended.

        Args:
          key: PRNG key, typed or of the old kind; the next episode's only source of randomness.
          action: int32[7].

        Returns:
          observation, state, reward, terminated, truncated, info. After the last window of an
          episode observation and state are the next one's, and ``info["final_observation"]`` is
          what the window led to, from which learners bootstrap: the horizon is a truncation.
        """
        indices = jnp.clip(jnp.asarray(action, jnp.int32), 0, self._sizes - 1)
        stepped, seen = advance(self._params(params), state, indices)
        fresh_state, fresh = self._start(key, params)
        done = seen.terminated | seen.truncated
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh_state, stepped)
        observation = jnp.where(done, fresh.features, seen.features)
        info = {name: seen.numbers[name] for name in _LOGGED} | {
            "terminated": seen.terminated,
            "truncated": seen.truncated,
            "final_observation": seen.features,
        }
        return observation, state, seen.reward, seen.terminated, seen.truncated, info

    def _params(self, params: ServeEnv | None) -> ServeEnv:
        return self.default_params if params is None else params

    def _start(self, key: jax.Array, params: ServeEnv | None) -> tuple[EnvState, Seen]:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        return start(self._params(params), key)


class _ActionWrapper(abc.ABC):
    """Another action space for the same environment."""

    def __init__(self, env: GymnaxEnv) -> None:
        self._env = env
        self._sizes: np.ndarray = env.action_space().nvec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @functools.partial(jax.jit, static_argnames="self")
    def step(
        self, key: jax.Array, state: EnvState, action: jax.Array, params: ServeEnv | None = None
    ) -> Stepped:
        """Plays a window as ``GymnaxEnv.step`` does."""
        return self._env.step(key, state, self._indices(jnp.asarray(action)), params)

    @abc.abstractmethod
    def _indices(self, action: jax.Array) -> jax.Array:
        """Grid indices of the knobs, int32[7], from an action of the other space."""


class OneIndex(_ActionWrapper):
    """Action as one number for all knobs together, for code with a single categorical head.

    The last knob varies fastest. Tasks with many knobs have tens of thousands of combinations;
    heads of their own, or ``OneBox``, learn those better.
    """

    @property
    def num_actions(self) -> int:
        """Combinations of grid points."""
        return int(np.prod(self._sizes))

    def action_space(self, params: ServeEnv | None = None) -> Any:
        """Space of all combinations of grid points."""
        del params
        return discrete(self.num_actions)

    def _indices(self, action: jax.Array) -> jax.Array:
        inside = jnp.clip(action, 0, self.num_actions - 1)
        return jnp.stack(jnp.unravel_index(inside, tuple(self._sizes)), axis=-1)


class OneBox(_ActionWrapper):
    """A real number for each knob that the task leaves open, for code with a Gaussian head.

    -1 is the lowest grid point of the knob and 1 its highest, each with an equal part of the range;
    numbers outside mean the nearest inside, and NaN the lowest.
    """

    @property
    def num_actions(self) -> int:
        """Knobs that the task leaves open."""
        return int(np.sum(self._sizes > 1))

    def action_space(self, params: ServeEnv | None = None) -> Any:
        """-1 to 1 for each open knob, in the order of ``jaxserve.KNOBS``."""
        del params
        return box(-1.0, 1.0, (self.num_actions,))

    def _indices(self, action: jax.Array) -> jax.Array:
        knobs = np.flatnonzero(self._sizes > 1)
        share = jnp.clip(jnp.nan_to_num(action, nan=-1.0) + 1.0, 0.0, 2.0) / 2.0
        chosen = jnp.minimum((share * self._sizes[knobs]).astype(jnp.int32), self._sizes[knobs] - 1)
        return jnp.zeros(len(self._sizes), jnp.int32).at[knobs].set(chosen)
