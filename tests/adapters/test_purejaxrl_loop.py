"""Code in the manner of PureJaxRL drives the gymnax-style adapter as it would drive gymnax.

The learner below is the usual page: a log wrapper, ``make_train(config)``, rollouts by ``scan``
over ``vmap``, a clipped objective. It knows nothing of jaxserve but ``make`` and ``OneIndex``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from flax.training.train_state import TrainState

from jaxserve.adapters.gymnax_style import OneIndex, make

CONFIG = {"NUM_ENVS": 64, "NUM_STEPS": 10, "NUM_UPDATES": 12, "EPOCHS": 4, "LR": 2e-2}


@struct.dataclass
class LogState:
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
        info["returned_episode"] = done
        info["returned_episode_returns"] = last
        state = LogState(env_state, total * (1 - done), last)
        return observation, state, reward, terminated, truncated, info


class ActorCritic(nn.Module):
    """Logits of one categorical, and a value."""

    action_dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The usual two perceptrons, of one layer each."""
        logits = nn.Dense(self.action_dim)(nn.tanh(nn.Dense(32)(x)))
        value = nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))
        return logits, value[..., 0]


class Transition(NamedTuple):
    """What a rollout keeps."""

    done: jax.Array
    action: jax.Array
    value: jax.Array
    next_value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array
    info: dict[str, jax.Array]


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of chosen categories."""
    logs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logs, action[..., None], axis=-1)[..., 0]


def make_train(config: dict[str, Any]) -> Any:
    """One pure function from a key to a learner and its metrics."""
    env, env_params = make("static_workload", overrides={"horizon": 20, "knobs": ["batch_cap"]})
    env = LogWrapper(OneIndex(env))

    def train(rng: jax.Array) -> Any:
        network = ActorCritic(env.action_space(env_params).n)
        rng, init_rng, reset_rng = jax.random.split(rng, 3)
        params = network.init(init_rng, jnp.zeros(env.observation_space(env_params).shape))
        train_state = TrainState.create(
            apply_fn=network.apply, params=params, tx=optax.adam(config["LR"])
        )
        reset_rngs = jax.random.split(reset_rng, config["NUM_ENVS"])
        obsv, env_state = jax.vmap(env.reset, in_axes=(0, None))(reset_rngs, env_params)

        def update(runner, _):
            def env_step(runner, _):
                train_state, env_state, last_obs, rng = runner
                rng, action_rng, step_rng = jax.random.split(rng, 3)
                logits, value = network.apply(train_state.params, last_obs)
                action = jax.random.categorical(action_rng, logits)
                step_rngs = jax.random.split(step_rng, config["NUM_ENVS"])
                obsv, env_state, reward, terminated, truncated, info = jax.vmap(
                    env.step, in_axes=(0, 0, 0, None)
                )(step_rngs, env_state, action, env_params)
                # Through a truncation the value of what the episode would have become.
                _, next_value = network.apply(train_state.params, info["final_observation"])
                next_value = jnp.where(terminated, 0.0, next_value)
                transition = Transition(
                    jnp.logical_or(terminated, truncated),
                    action,
                    value,
                    next_value,
                    reward,
                    log_prob_of(logits, action),
                    last_obs,
                    {name: info[name] for name in ("returned_episode", "returned_episode_returns")},
                )
                return (train_state, env_state, obsv, rng), transition

            runner, batch = jax.lax.scan(env_step, runner, None, config["NUM_STEPS"])
            train_state, env_state, last_obs, rng = runner

            def backwards(gae, step):
                delta = step.reward + 0.9 * step.next_value - step.value
                gae = delta + 0.9 * 0.9 * (1 - step.done) * gae
                return gae, gae

            _, advantages = jax.lax.scan(
                backwards, jnp.zeros(config["NUM_ENVS"]), batch, reverse=True
            )
            targets = advantages + batch.value

            def loss(params):
                logits, value = network.apply(params, batch.obs)
                ratio = jnp.exp(log_prob_of(logits, batch.action) - batch.log_prob)
                gae = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                actor = -jnp.minimum(ratio * gae, jnp.clip(ratio, 0.8, 1.2) * gae).mean()
                return actor + 0.5 * jnp.mean((value - targets) ** 2)

            def epoch(train_state, _):
                value, grads = jax.value_and_grad(loss)(train_state.params)
                return train_state.apply_gradients(grads=grads), value

            train_state, losses = jax.lax.scan(epoch, train_state, None, config["EPOCHS"])
            metric = {"loss": losses.mean(), "reward": batch.reward.mean(), **batch.info}
            return (train_state, env_state, last_obs, rng), metric

        runner = (train_state, env_state, obsv, rng)
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
