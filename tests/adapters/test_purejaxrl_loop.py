"""Code in the manner of PureJaxRL drives the gymnax-style adapter as it would drive gymnax.

The learner is a short actor-critic: a log wrapper, ``make_train(config)``, and rollouts by ``scan``
over ``vmap``. It knows nothing of jaxserve but ``make`` and ``OneIndex``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxserve.adapters.gymnax_style import OneIndex, make

CONFIG = {"NUM_ENVS": 64, "NUM_STEPS": 10, "NUM_UPDATES": 12, "LR": 5e-2}


class LogState(NamedTuple):
    """An episode's return so far, and the last one's."""

    env_state: Any
    episode_return: jax.Array
    returned_episode_return: jax.Array


class LogWrapper:
    """Episode returns in ``info``, by delegation, as gymnax's wrapper of that name."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, key: jax.Array, params: Any = None) -> Any:
        """Starts an episode."""
        observation, env_state = self._env.reset(key, params)
        return observation, LogState(env_state, jnp.float32(0.0), jnp.float32(0.0))

    def step(self, key: jax.Array, state: LogState, action: jax.Array, params: Any = None) -> Any:
        """One step."""
        observation, env_state, reward, terminated, truncated, info = self._env.step(
            key, state.env_state, action, params
        )
        done = jnp.logical_or(terminated, truncated)
        total = state.episode_return + reward
        last = jnp.where(done, total, state.returned_episode_return)
        info |= {"returned_episode": done, "returned_episode_returns": last}
        state = LogState(env_state, total * (1 - done), last)
        return observation, state, reward, terminated, truncated, info


def make_train(config: dict[str, Any]) -> Any:
    """One pure function from a key to a learner and its metrics."""
    env, env_params = make("static_workload", overrides={"horizon": 20, "knobs": ["batch_cap"]})
    env = LogWrapper(OneIndex(env))
    adam = optax.adam(config["LR"])

    def network(params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return obs @ params["logits"], obs @ params["value"]

    def train(rng: jax.Array) -> Any:
        features = env.observation_space(env_params).shape
        actions = env.action_space(env_params).n
        params = {"logits": jnp.zeros((*features, actions)), "value": jnp.zeros(features)}
        rng, reset_rng = jax.random.split(rng)
        resets = jax.random.split(reset_rng, config["NUM_ENVS"])
        obsv, env_state = jax.vmap(env.reset, in_axes=(0, None))(resets, env_params)

        def update(runner, _):
            def env_step(runner, _):
                params, env_state, last_obs, rng = runner
                rng, action_rng, step_rng = jax.random.split(rng, 3)
                action = jax.random.categorical(action_rng, network(params, last_obs)[0])
                steps = jax.random.split(step_rng, config["NUM_ENVS"])
                obsv, env_state, reward, terminated, _, info = jax.vmap(
                    env.step, in_axes=(0, 0, 0, None)
                )(steps, env_state, action, env_params)
                # Through a truncation the value of what the episode would have become.
                next_value = jnp.where(
                    terminated, 0.0, network(params, info["final_observation"])[1]
                )
                episodes = {name: info[name] for name in info if name.startswith("returned")}
                transition = (last_obs, action, reward, next_value, episodes)
                return (params, env_state, obsv, rng), transition

            params, moments, *rest = runner
            (_, *rest), batch = jax.lax.scan(env_step, (params, *rest), None, config["NUM_STEPS"])
            obs, action, reward, next_value, episodes = batch

            def loss(params):
                logits, value = network(params, obs)
                advantage = reward + 0.9 * next_value - value
                chosen = jnp.take_along_axis(
                    jax.nn.log_softmax(logits), action[..., None], axis=-1
                )[..., 0]
                actor = -(chosen * jax.lax.stop_gradient(advantage - advantage.mean())).mean()
                return actor + 0.5 * (advantage**2).mean()

            value, grads = jax.value_and_grad(loss)(params)
            changes, moments = adam.update(grads, moments)
            params = optax.apply_updates(params, changes)
            return (params, moments, *rest), {"loss": value, "reward": reward.mean(), **episodes}

        runner = (params, adam.init(params), env_state, obsv, rng)
        return jax.lax.scan(update, runner, None, config["NUM_UPDATES"])

    return train


@pytest.mark.slow
def test_it_learns_under_jit_and_vmap() -> None:
    """Two seeds in one program: episodes end when they should, and reward goes up in both."""
    rngs = jax.random.split(jax.random.PRNGKey(0), 2)
    _, metric = jax.jit(jax.vmap(make_train(CONFIG)))(rngs)
    assert np.isfinite(metric["loss"]).all()
    # 120 steps of 64 environments with episodes of 20 steps.
    ended = np.asarray(metric["returned_episode"])
    np.testing.assert_array_equal(ended.sum(axis=(1, 2)), 6)
    reward = np.asarray(metric["reward"])
    assert (reward[:, -3:].mean(axis=1) > reward[:, :3].mean(axis=1) + 0.05).all(), reward
    # A return is the sum of its twenty rewards.
    final = np.asarray(metric["returned_episode_returns"])[:, -1, -1].mean(axis=1)
    np.testing.assert_allclose(final / 20, reward[:, -2:].mean(axis=1), rtol=1e-3)
