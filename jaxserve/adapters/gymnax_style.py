"""Episodes one after the other, in a gymnax-1.0-style interface of six values.

    env = GymnaxEnv(jaxserve.make("bursty_workload"))
    observation, state = env.reset(key)
    observation, state, reward, terminated, truncated, info = env.step(key, state, action)

An action is int32[6], indices of the knob grids; the observation is the feature vector. At the
horizon ``step`` starts the next episode by itself, and ``info["final_observation"]`` has the last
observation of the one that ended, from which learners bootstrap.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxserve.agents.grids import action_at, grid_sizes
from jaxserve.env import FEATURE_NAMES, EnvState, ServeEnv


@flax.struct.dataclass
class GymnaxEnv:
    """A ``ServeEnv`` as code written for gymnax or PureJaxRL expects it."""

    env: ServeEnv

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.env.name

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return (len(FEATURE_NAMES),)

    @property
    def action_sizes(self) -> tuple[int, ...]:
        """Number of values of each knob; 1 for those that the task locks."""
        return tuple(int(size) for size in grid_sizes(self.env))

    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, EnvState]:
        """Starts an episode; ``params`` is there for gymnax and unused."""
        del params
        state, timestep = self.env.reset(key)
        return self.env.observe(timestep.observation), state

    def step(
        self, key: jax.Array, state: EnvState, action: jax.Array, params: Any = None
    ) -> tuple[jax.Array, EnvState, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """One window, and the start of the next episode where this one ended.

        Args:
          key: typed key; the next episode's only source of randomness.
          action: int32[6], grid indices in the order of ``jaxserve.KNOBS``.

        Returns:
          observation, state, reward, terminated, truncated, info.
        """
        del params
        next_state, timestep = self.env.step(state, action_at(action))
        final = self.env.observe(timestep.observation)
        done = timestep.terminated | timestep.truncated
        fresh, fresh_state = self.reset(key)
        next_state = jax.tree.map(
            lambda new, old: jnp.where(done, new, old), fresh_state, next_state
        )
        observation = jnp.where(done, fresh, final)
        info = {"final_observation": final, "goodput": jnp.sum(timestep.metrics.good)}
        ends = (timestep.terminated, timestep.truncated)
        return observation, next_state, timestep.reward, *ends, info
