"""The six-value interface: auto-reset at the horizon, and the observation that ended the episode."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxserve
from jaxserve.adapters.gymnax_style import GymnaxEnv
from jaxserve.seeds import episode_key

ENV = GymnaxEnv(jaxserve.make("bursty_workload", overrides={"horizon": 5}))


def test_an_episode_and_its_successor() -> None:
    """Five windows as the environment plays them, then a new episode from the step's key."""
    step = jax.jit(ENV.step)
    observation, state = ENV.reset(episode_key(0))
    assert observation.shape == ENV.observation_shape
    action = jnp.array([9, 10, 2, 0, 0, 0])
    for window in range(5):
        observation, state, reward, terminated, truncated, info = step(
            episode_key(window + 1), state, action
        )
        assert np.isfinite(reward) and not terminated
        assert bool(truncated) == (window == 4)
    fresh, _ = ENV.reset(episode_key(5))
    np.testing.assert_array_equal(observation, fresh)
    assert not np.array_equal(info["final_observation"], observation)
    assert int(state.step) == 0


def test_many_at_once() -> None:
    """The interface keeps working under vmap and scan, with no recompilation between steps."""
    keys = jax.random.split(jax.random.key(0), 8)
    _, states = jax.vmap(ENV.reset)(keys)
    actions = jnp.zeros((8, 6), jnp.int32)

    def one(states, _):
        observation, states, reward, _, truncated, _ = jax.vmap(ENV.step)(keys, states, actions)
        return states, (observation, reward, truncated)

    _, (observations, rewards, truncated) = jax.lax.scan(one, states, None, length=12)
    assert np.isfinite(observations).all() and np.isfinite(rewards).all()
    np.testing.assert_array_equal(np.asarray(truncated).sum(axis=0), 2)
