"""Whole episodes of a policy: ``vmap`` over episodes, ``scan`` over windows, compiled once."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.policy import Policy, PrivilegedPolicy
from jaxserve.env import EnvState, ServeEnv
from jaxserve.seeds import policy_key
from jaxserve.types import ServeAction, ServeObservation, TimeStep, WindowMetrics


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rollout:
    """Episodes, one after the other in the first axis. Without the reset TimeSteps."""

    timesteps: TimeStep
    """leaves [E, T, ...]."""
    actions: ServeAction
    """[E, T], the knobs as they acted: clipped, locked ones at their locked value. A new tier or
    split takes over when its switch is done: ``timesteps.metrics`` has those in force."""


def rollout(env: ServeEnv, policy: Policy, keys: jax.Array) -> Rollout:
    """Runs one episode per key to the horizon.

    Args:
      policy: a frozen dataclass that is a pytree.
      keys: typed PRNG keys [E]; each is the only source of randomness of its episode, and two
        policies on the same key face the same requests.
    """
    return _rollout(env, policy, keys, int(np.max(env.horizon)))


def windows_of(env: ServeEnv, action: ServeAction, key: jax.Array, windows: int) -> WindowMetrics:
    """Windows of one episode whose knobs never change, beyond the horizon as well; callers compile
    it.

    Returns:
      leaves [windows, ...].
    """

    def window(state: EnvState, _: None) -> tuple[EnvState, WindowMetrics]:
        state, timestep = env.step(state, action)
        return state, timestep.metrics

    return jax.lax.scan(window, env.reset(key)[0], None, length=windows)[1]


@functools.partial(jax.jit, static_argnames="horizon")
def _rollout(env: ServeEnv, policy: Policy, keys: jax.Array, horizon: int) -> Rollout:
    def start(key: jax.Array) -> tuple[EnvState, ServeObservation]:
        state, timestep = env.reset(key)
        return state, timestep.observation

    def episode(key: jax.Array, state: EnvState, observation: ServeObservation) -> Rollout:
        def window(carry, index):
            state, memory, observation = carry
            dice = policy_key(key, index)
            if isinstance(policy, PrivilegedPolicy):
                action, memory = policy.act_on_state(env, memory, state, dice)
            else:
                action, memory = policy.act(env, memory, observation, dice)
            action = env.effective_action(action)
            state, timestep = env.step(state, action)
            return (state, memory, timestep.observation), Rollout(timestep, action)

        carry = (state, policy.init(env), observation)
        return jax.lax.scan(window, carry, jnp.arange(horizon))[1]

    # With states that a vmap returned, all of whose leaves have the batch axis, the loop is traced
    # once. What a policy remembers may be the same for all episodes, and stays so.
    return jax.vmap(episode)(keys, *jax.vmap(start)(keys))
