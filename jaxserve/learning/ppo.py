"""Proximal policy optimisation with everything inside JAX.

One update is a pure function of its state: a rollout of all environments, advantages, minibatch
epochs and optimiser steps, compiled as one program. ``vmap`` it over states for seeds, and over
configurations for hyper-parameters, whose numbers are leaves.

    learner = Learner.create(env, PPOConfig())
    state = learner.init(jax.random.key(0))
    state, report = jax.jit(learner.update)(state)

Rollouts divide the horizon, and environments start at different rollouts of an episode. So an
episode ends only where a rollout does. Between rollouts the value of the final observation stands
for what follows; at the horizon nothing does, since the last window's reward has credited the
requests that are on track.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxserve.agents.network import (
    Network,
    NetworkMemory,
    NetworkPolicy,
    Normaliser,
    Step,
    choose,
    entropy,
    log_probability,
    look,
    network_for,
    perceive,
)
from jaxserve.arrays.threefry import fold_in, uniform
from jaxserve.env import EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import action_at
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.returns import RewardScale
from jaxserve.runtime.devices import EVERYWHERE, all_devices, on_each, place, spread
from jaxserve.seeds import random_episode_keys
from jaxserve.types import ServeObservation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that an update needs and changes; a checkpoint of it continues bit by bit."""

    params: Any
    optimiser: Any
    normaliser: Normaliser
    rewards: RewardScale
    env_states: EnvState
    """[N, ...]"""
    observations: ServeObservation
    """[N, ...], the latest."""
    memory: NetworkMemory
    """[N, ...]"""
    key: jax.Array
    """typed key; update u draws from ``fold_in(key, u)``."""
    update: jax.Array
    """int32, updates finished."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """What an update says of itself; float32 scalars."""

    reward: jax.Array
    """mean per window, of the policy that still explores."""
    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array
    """nats, summed over the knobs."""
    kl: jax.Array
    """divergence from the policy that played, nats."""
    explained_variance: jax.Array
    """of the returns by the value, at most 1."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Windows:
    """What a rollout keeps; leaves [T, N, ...]."""

    inputs: jax.Array
    last: jax.Array
    features: jax.Array
    indices: jax.Array
    log_probability: jax.Array
    value: jax.Array
    reward: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
    """PPO on one task, or on as many (of one shape) as environments when ``env`` is stacked."""

    env: ServeEnv
    config: PPOConfig
    network: Network = dataclasses.field(metadata={"static": True})
    horizon: int = dataclasses.field(metadata={"static": True})
    mesh: Mesh = dataclasses.field(metadata={"static": True})
    """devices that the environments are spread over."""

    @classmethod
    def create(cls, env: ServeEnv, config: PPOConfig, mesh: Mesh | None = None) -> Learner:
        """Checks that sizes fit.

        Args:
          mesh: default is all devices of all processes.

        Raises:
          InputError: a size that does not divide another.
        """
        mesh = mesh or all_devices()
        horizon = int(np.max(env.horizon))
        piece = config.environments // mesh.size
        for name, part, whole, size in (
            ("rollout_windows", config.rollout_windows, "the horizon", horizon),
            ("the number of devices", mesh.size, "environments", config.environments),
            ("minibatches", config.minibatches, "the environments per device", piece),
            ("traffic_group", config.traffic_group, "the environments per device", piece),
        ):
            if part < 1 or size % part:
                raise InputError(f"{name} is {part}; it must divide {whole}: {size}")
        first = env if np.ndim(env.horizon) == 0 else jax.tree.map(lambda leaf: leaf[0], env)
        network = network_for(first, width=config.width, recurrent=config.recurrent)
        return cls(env, config, network, horizon, mesh)

    def init(self, key: jax.Array) -> TrainState:
        """A fresh learner with environments at different points of their first episode."""
        config = self.config
        network_key, env_key, key = jax.random.split(key, 3)
        params = self.network.initial_params(network_key)
        env_states, observations, memory = self._fresh(env_key)
        rollouts = self.horizon // config.rollout_windows
        phase = jnp.arange(config.environments) // config.traffic_group % rollouts
        state = TrainState(
            params=params,
            optimiser=self._optimiser().init(params),
            normaliser=Normaliser.create(),
            rewards=RewardScale.create(config.environments),
            env_states=dataclasses.replace(env_states, step=phase * config.rollout_windows),
            observations=observations,
            memory=memory,
            key=key,
            update=jnp.int32(0),
        )
        return place(self.mesh, state, _PLACES)

    def update(self, state: TrainState) -> tuple[TrainState, UpdateReport]:
        """One rollout of every environment, and the epochs over it."""
        config = self.config
        key = jax.random.fold_in(state.key, state.update)
        rollout_key, reset_key, epoch_key = jax.random.split(key, 3)
        rate, entropy_weight, reward_scale = (
            config.scheduled(name, state.update)
            for name in ("learning_rate", "entropy_weight", "reward_scale")
        )
        started = state.memory
        state, windows, final_value = self._rollout(state, rollout_key)
        scale = state.rewards.updated(windows.reward, config.discount)
        rewards = reward_scale * scale(windows.reward)
        advantages, returns = self._advantages(windows, rewards, final_value)
        batch = (windows, advantages, returns, started.hidden[None])
        params, optimiser, parts = self._epochs(state, batch, rate, entropy_weight, epoch_key)
        unexplained = jnp.var(returns - windows.value)
        report = UpdateReport(
            reward=jnp.mean(windows.reward),
            **jax.tree.map(jnp.mean, parts),
            explained_variance=1.0 - unexplained / jnp.maximum(jnp.var(returns), 1e-9),
        )
        state = dataclasses.replace(
            state,
            params=params,
            optimiser=optimiser,
            normaliser=state.normaliser.updated(windows.features),
            rewards=scale,
            update=state.update + 1,
        )
        state = self._restart_finished(state, reset_key)
        return place(self.mesh, state, _PLACES), place(self.mesh, report, EVERYWHERE)

    def policy(self, state: TrainState) -> NetworkPolicy:
        """The policy as it stands, without exploration."""
        return NetworkPolicy(state.params, state.normaliser, self.network)

    @property
    def _env_axis(self) -> int | None:
        return None if jnp.ndim(self.env.horizon) == 0 else 0

    def _on_each(self, function: Callable[..., Any], arguments: int) -> Callable[..., Any]:
        """``vmap`` of a function of ``env`` and so many pieces of environments."""
        env_part = EVERYWHERE if self._env_axis is None else spread()
        mapped = jax.vmap(function, (self._env_axis, *[0] * arguments))
        return on_each(self.mesh, mapped, env_part, *[spread()] * arguments, out=spread())

    def _rollout(self, state: TrainState, key: jax.Array) -> tuple[TrainState, _Windows, jax.Array]:
        env, network, config = self.env, self.network, self.config
        take_in = jax.vmap(perceive, (self._env_axis, None, 0, 0))
        step_env = self._on_each(lambda env, *args: env.step(*args), 2)

        def window(carry, index):
            env_states, observations, memory = carry
            memory, inputs, features = take_in(env, state.normaliser, memory, observations)
            memory, said = look(network, state.params, memory, inputs)
            indices = choose(said, network.sizes, fold_in(key, index))
            env_states, timestep = step_env(env, env_states, action_at(indices))
            kept = _Windows(
                inputs=inputs,
                last=memory.last,
                features=features,
                indices=indices,
                log_probability=log_probability(said, network.sizes, indices),
                value=said.value,
                reward=timestep.reward,
            )
            memory = dataclasses.replace(memory, last=indices)
            return (env_states, timestep.observation, memory), kept

        start = (state.env_states, state.observations, state.memory)
        (env_states, observations, memory), windows = jax.lax.scan(
            window, start, jnp.arange(config.rollout_windows)
        )
        _, inputs, _ = take_in(env, state.normaliser, memory, observations)
        _, said = look(network, state.params, memory, inputs)
        state = dataclasses.replace(
            state, env_states=env_states, observations=observations, memory=memory
        )
        # The last window of an episode has credited the requests that are on track.
        final_value = jnp.where(env_states.step >= self.horizon, 0.0, said.value)
        return state, windows, final_value

    def _advantages(
        self, windows: _Windows, rewards: jax.Array, final_value: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Generalised advantage estimates and the returns they imply, float32[T, N]."""
        config = self.config
        following = jnp.concatenate([windows.value[1:], final_value[None]])
        errors = rewards + config.discount * following - windows.value

        def backwards(later, error):
            advantage = error + config.discount * config.gae_lambda * later
            return advantage, advantage

        _, advantages = jax.lax.scan(backwards, jnp.zeros_like(final_value), errors, reverse=True)
        returns = advantages + windows.value
        if config.traffic_group > 1:
            grouped = advantages.reshape(len(advantages), -1, config.traffic_group)
            grouped = grouped - jnp.mean(grouped, axis=-1, keepdims=True)
            advantages = grouped.reshape(advantages.shape)
        return advantages, returns

    def _epochs(
        self,
        state: TrainState,
        batch: tuple[Any, ...],
        rate: jax.Array,
        entropy_weight: jax.Array,
        key: jax.Array,
    ) -> tuple[Any, Any, dict[str, jax.Array]]:
        """Parameters and optimiser after all minibatches of all epochs, and the parts of each loss.

        Args:
          batch: arguments of ``_loss`` between the parameters and the weight of the entropy, leaves
            [T, N, ...].
        """
        config = self.config
        take = on_each(self.mesh, _one_of_each_block, spread(1), spread(), out=spread(1))

        def minibatch(carry, chosen):
            params, optimiser = carry
            *part, hidden = take(batch, chosen)
            (_, parts), gradient = jax.value_and_grad(self._loss, has_aux=True)(
                params, *part, hidden[0], entropy_weight
            )
            step, optimiser = self._optimiser().update(gradient, optimiser)
            params = jax.tree.map(lambda leaf, move: leaf - rate * move, params, step)
            return (params, optimiser), parts

        def epoch(carry, key):
            # Each block of neighbours gives one environment to every minibatch, so that minibatches
            # are the same on any number of devices and no device asks another for its windows.
            blocks = (config.environments // config.minibatches, config.minibatches)
            order = jnp.argsort(uniform(key, blocks), axis=-1)
            return jax.lax.scan(minibatch, carry, order.T)

        (params, optimiser), parts = jax.lax.scan(
            epoch, (state.params, state.optimiser), jax.random.split(key, config.epochs)
        )
        return params, optimiser, parts

    def _loss(
        self,
        params: Any,
        windows: _Windows,
        advantages: jax.Array,
        returns: jax.Array,
        hidden: jax.Array,
        entropy_weight: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        config, network = self.config, self.network

        def window(hidden: jax.Array, seen: _Windows) -> tuple[jax.Array, Step]:
            memory = NetworkMemory(averages=seen.features, last=seen.last, hidden=hidden)
            memory, said = look(network, params, memory, seen.inputs)
            return memory.hidden, said

        scan = jax.lax.scan if config.recurrent else lambda step, *args: step(*args)
        _, said = scan(window, hidden, windows)
        log_ratio = log_probability(said, network.sizes, windows.indices) - windows.log_probability
        ratio = jnp.exp(log_ratio)
        advantages = (advantages - jnp.mean(advantages)) / (jnp.std(advantages) + 1e-8)
        clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
        policy_loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
        value_loss = jnp.mean((said.value - returns) ** 2)
        spread = jnp.mean(entropy(said))
        loss = policy_loss + config.value_weight * value_loss - entropy_weight * spread
        return loss, dict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=spread,
            kl=jnp.mean(ratio - 1.0 - log_ratio),
        )

    def _restart_finished(self, state: TrainState, key: jax.Array) -> TrainState:
        """Environments at the horizon begin a new episode."""
        done = state.env_states.step >= self.horizon
        fresh = self._fresh(key)
        current = (state.env_states, state.observations, state.memory)

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        env_states, observations, memory = jax.tree.map(pick, fresh, current)
        return dataclasses.replace(
            state, env_states=env_states, observations=observations, memory=memory
        )

    def _fresh(self, key: jax.Array) -> tuple[EnvState, ServeObservation, NetworkMemory]:
        """The start of an episode for every environment."""
        config = self.config
        keys = random_episode_keys(key, config.environments // config.traffic_group)
        keys = jnp.repeat(keys, config.traffic_group, axis=0)

        def start(
            env: ServeEnv, key: jax.Array
        ) -> tuple[EnvState, ServeObservation, NetworkMemory]:
            state, timestep = env.reset(key)
            return state, timestep.observation, self.network.initial_memory(env)

        return self._on_each(start, 1)(self.env, keys)

    def _optimiser(self) -> optax.GradientTransformation:
        # As one vector: a tenth of the operations to compile and to run.
        return optax.flatten(
            optax.chain(
                optax.clip_by_global_norm(self.config.max_gradient), optax.scale_by_adam(eps=1e-5)
            )
        )


_PLACES = TrainState(
    params=EVERYWHERE,
    optimiser=EVERYWHERE,
    normaliser=EVERYWHERE,  # type: ignore[arg-type]
    rewards=RewardScale(EVERYWHERE, EVERYWHERE, spread()),  # type: ignore[arg-type]
    env_states=spread(),  # type: ignore[arg-type]
    observations=spread(),  # type: ignore[arg-type]
    memory=spread(),  # type: ignore[arg-type]
    key=EVERYWHERE,  # type: ignore[arg-type]
    update=EVERYWHERE,  # type: ignore[arg-type]
)


def _one_of_each_block(batch: Any, chosen: jax.Array) -> Any:
    """Leaves [T, N, ...] at the environment ``chosen``, int32[N / M], of each M neighbours."""
    size = jax.tree.leaves(batch)[0].shape[1] // len(chosen)
    index = size * jnp.arange(len(chosen)) + chosen
    return jax.tree.map(lambda leaf: leaf[:, index], batch)
