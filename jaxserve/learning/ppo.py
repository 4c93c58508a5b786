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
from functools import partial
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
    Outputs,
    encode_observation,
    entropy,
    forward,
    log_probability,
    network_for,
    sample_action,
)
from jaxserve.agents.rule_advice import AdvisingRule
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
    """State of a training run between updates; a checkpoint of it continues bit by bit."""

    params: Any
    optimiser: Any
    normaliser: Normaliser
    rewards: RewardScale
    env_states: EnvState
    """[N, ...], one for each environment."""
    observations: ServeObservation
    """[N, ...], latest observations."""
    memory: NetworkMemory
    """[N, ...], the policy's memory in each environment."""
    key: jax.Array
    """typed key; update u draws from ``fold_in(key, u)``."""
    update: jax.Array
    """int32, updates finished."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """Diagnostics of an update; float32 scalars."""

    reward: jax.Array
    """mean reward per window of the exploring policy."""
    policy_loss: jax.Array
    """mean clipped surrogate loss."""
    value_loss: jax.Array
    """mean squared error of the value."""
    entropy: jax.Array
    """mean entropy of the policy, summed over the knobs, nats."""
    kl: jax.Array
    """divergence from the policy that played, nats."""
    explained_variance: jax.Array
    """share of the returns' variance that the value explains, at most 1."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Trajectory:
    """Windows of a rollout; leaves [T, N, ...]."""

    inputs: jax.Array
    """float32[T, N, I], inputs of the network."""
    kept: jax.Array
    """int32[T, N, 7], grid indices of the action that keeps everything."""
    features: jax.Array
    """float32[T, N, D], features before normalisation."""
    indices: jax.Array
    """int32[T, N, 7], grid indices of the action."""
    log_probability: jax.Array
    """float32[T, N], of the action under the policy that played."""
    value: jax.Array
    """float32[T, N], estimated return."""
    reward: jax.Array
    """float32[T, N]."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
    """PPO on one task, or on as many (of one shape) as environments when ``env`` is stacked."""

    env: ServeEnv
    config: PPOConfig
    network: Network = dataclasses.field(metadata={"static": True})
    horizon: int = dataclasses.field(metadata={"static": True})
    mesh: Mesh = dataclasses.field(metadata={"static": True})
    """devices over which the environments are spread."""

    @classmethod
    def create(
        cls,
        env: ServeEnv,
        config: PPOConfig,
        mesh: Mesh | None = None,
        rule: AdvisingRule | None = None,
    ) -> Learner:
        """A learner whose sizes divide each other.

        Args:
          env: a task, or stacked tasks with one environment each.
          config: hyper-parameters.
          mesh: default is all devices of all processes.
          rule: rule whose number of replicas the policy starts from, for a fleet.

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
        network = network_for(first, width=config.width, recurrent=config.recurrent, rule=rule)
        return cls(env, config, network, horizon, mesh)

    def init(self, key: jax.Array) -> TrainState:
        """State before the first update, with environments at different points of an episode."""
        config = self.config
        network_key, env_key, key = jax.random.split(key, 3)
        params = self.network.initial_params(network_key)
        env_states, observations, memory = self._reset(env_key)
        rollouts = self.horizon // config.rollout_windows
        phase = jnp.arange(config.environments) // config.traffic_group % rollouts
        state = TrainState(
            params=params,
            optimiser=self._optimiser().init(params),
            normaliser=Normaliser.create(len(self.network.features)),
            rewards=RewardScale.create(config.environments),
            env_states=dataclasses.replace(env_states, step=phase * config.rollout_windows),
            observations=observations,
            memory=memory,
            key=key,
            update=jnp.int32(0),
        )
        return place(self.mesh, state, _PLACES)

    def update(self, state: TrainState) -> tuple[TrainState, UpdateReport]:
        """Plays a rollout of every environment and trains on it for several epochs."""
        config = self.config
        key = jax.random.fold_in(state.key, state.update)
        rollout_key, reset_key, epoch_key = jax.random.split(key, 3)
        learning_rate, entropy_weight, reward_scale = (
            config.scheduled(name, state.update)
            for name in ("learning_rate", "entropy_weight", "reward_scale")
        )
        started = state.memory
        state, trajectory, final_value = self._rollout(state, rollout_key)
        scale = state.rewards.updated(trajectory.reward, config.discount)
        rewards = reward_scale * scale(trajectory.reward)
        advantages, returns = self._advantages(trajectory, rewards, final_value)
        batch = (trajectory, advantages, returns, started.hidden[None])
        weights = (learning_rate, entropy_weight)
        params, optimiser, parts = self._epochs(state, batch, *weights, epoch_key)
        unexplained = jnp.var(returns - trajectory.value)
        report = UpdateReport(
            reward=jnp.mean(trajectory.reward),
            **jax.tree.map(jnp.mean, parts),
            explained_variance=1.0 - unexplained / jnp.maximum(jnp.var(returns), 1e-9),
        )
        state = dataclasses.replace(
            state,
            params=params,
            optimiser=optimiser,
            normaliser=state.normaliser.updated(trajectory.features),
            rewards=scale,
            update=state.update + 1,
        )
        state = self._restart_finished(state, reset_key)
        return place(self.mesh, state, _PLACES), place(self.mesh, report, EVERYWHERE)

    def policy(self, state: TrainState) -> NetworkPolicy:
        """The policy of a state, without exploration."""
        return NetworkPolicy(state.params, state.normaliser, self.network)

    @property
    def _env_axis(self) -> int | None:
        return None if jnp.ndim(self.env.horizon) == 0 else 0

    def _on_each(self, function: Callable[..., Any], arguments: int) -> Callable[..., Any]:
        """``vmap`` over environments of a function of ``env`` and so many more ``arguments``."""
        env_part = EVERYWHERE if self._env_axis is None else spread()
        mapped = jax.vmap(function, (self._env_axis, *[0] * arguments))
        return on_each(self.mesh, mapped, env_part, *[spread()] * arguments, out=spread())

    def _rollout(
        self, state: TrainState, key: jax.Array
    ) -> tuple[TrainState, _Trajectory, jax.Array]:
        """Plays ``rollout_windows`` windows with the exploring policy.

        Returns:
          the state after them, their trajectory, and float32[N], the value of what follows.
        """
        env, network, config = self.env, self.network, self.config
        encode = jax.vmap(partial(encode_observation, network), (self._env_axis, None, 0, 0))
        step_env = self._on_each(lambda env, *args: env.step(*args), 2)

        def window(carry, index):
            env_states, observations, memory = carry
            memory, inputs, features = encode(env, state.normaliser, memory, observations)
            memory, outputs = forward(network, state.params, memory, inputs)
            indices = sample_action(outputs, network.sizes, fold_in(key, index))
            env_states, timestep = step_env(env, env_states, action_at(indices))
            played = _Trajectory(
                inputs=inputs,
                kept=memory.kept,
                features=features,
                indices=indices,
                log_probability=log_probability(outputs, network.sizes, indices),
                value=outputs.value,
                reward=timestep.reward,
            )
            memory = dataclasses.replace(memory, last=indices)
            return (env_states, timestep.observation, memory), played

        start = (state.env_states, state.observations, state.memory)
        (env_states, observations, memory), trajectory = jax.lax.scan(
            window, start, jnp.arange(config.rollout_windows)
        )
        _, inputs, _ = encode(env, state.normaliser, memory, observations)
        _, outputs = forward(network, state.params, memory, inputs)
        state = dataclasses.replace(
            state, env_states=env_states, observations=observations, memory=memory
        )
        # The last window of an episode has credited the requests that are on track.
        final_value = jnp.where(env_states.step >= self.horizon, 0.0, outputs.value)
        return state, trajectory, final_value

    def _advantages(
        self, trajectory: _Trajectory, rewards: jax.Array, final_value: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Generalised advantage estimates (Schulman et al. 2016) and the returns they imply,
        float32[T, N]."""
        config = self.config
        next_values = jnp.concatenate([trajectory.value[1:], final_value[None]])
        deltas = rewards + config.discount * next_values - trajectory.value

        def backwards(next_advantage, delta):
            advantage = delta + config.discount * config.gae_lambda * next_advantage
            return advantage, advantage

        _, advantages = jax.lax.scan(backwards, jnp.zeros_like(final_value), deltas, reverse=True)
        returns = advantages + trajectory.value
        if config.traffic_group > 1:
            grouped = advantages.reshape(len(advantages), -1, config.traffic_group)
            grouped = grouped - jnp.mean(grouped, axis=-1, keepdims=True)
            advantages = grouped.reshape(advantages.shape)
        return advantages, returns

    def _epochs(
        self,
        state: TrainState,
        batch: tuple[Any, ...],
        learning_rate: jax.Array,
        entropy_weight: jax.Array,
        key: jax.Array,
    ) -> tuple[Any, Any, dict[str, jax.Array]]:
        """Parameters and optimiser after all minibatches of all epochs, and the parts of each loss.

        Args:
          state: parameters and optimiser before.
          batch: arguments of ``_loss`` between the parameters and the weight of the entropy, leaves
            [T, N, ...].
          learning_rate: float32.
          entropy_weight: float32, per nat.
          key: order of the environments; consumed.
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
            params = jax.tree.map(lambda leaf, move: leaf - learning_rate * move, params, step)
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
        trajectory: _Trajectory,
        advantages: jax.Array,
        returns: jax.Array,
        hidden: jax.Array,
        entropy_weight: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The clipped loss of PPO (Schulman et al. 2017) of a minibatch, and its parts.

        Args:
          params: of the network.
          trajectory: windows of the minibatch's environments, leaves [T, M, ...].
          advantages: float32[T, M].
          returns: float32[T, M], targets of the value.
          hidden: float32[M, H], state of the recurrent cell before the rollout.
          entropy_weight: float32, per nat.
        """
        config, network = self.config, self.network

        def window(hidden: jax.Array, played: _Trajectory) -> tuple[jax.Array, Outputs]:
            memory = NetworkMemory(played.features, played.kept, played.kept, hidden)
            memory, outputs = forward(network, params, memory, played.inputs)
            return memory.hidden, outputs

        scan = jax.lax.scan if config.recurrent else lambda step, *args: step(*args)
        _, outputs = scan(window, hidden, trajectory)
        log_probabilities = log_probability(outputs, network.sizes, trajectory.indices)
        log_ratio = log_probabilities - trajectory.log_probability
        ratio = jnp.exp(log_ratio)
        advantages = (advantages - jnp.mean(advantages)) / (jnp.std(advantages) + 1e-8)
        clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
        policy_loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
        value_loss = jnp.mean((outputs.value - returns) ** 2)
        mean_entropy = jnp.mean(entropy(outputs))
        loss = policy_loss + config.value_weight * value_loss - entropy_weight * mean_entropy
        return loss, dict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=mean_entropy,
            kl=jnp.mean(ratio - 1.0 - log_ratio),
        )

    def _restart_finished(self, state: TrainState, key: jax.Array) -> TrainState:
        """The state in which environments at the horizon begin a new episode."""
        done = state.env_states.step >= self.horizon
        fresh = self._reset(key)
        current = (state.env_states, state.observations, state.memory)

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        env_states, observations, memory = jax.tree.map(pick, fresh, current)
        return dataclasses.replace(
            state, env_states=env_states, observations=observations, memory=memory
        )

    def _reset(self, key: jax.Array) -> tuple[EnvState, ServeObservation, NetworkMemory]:
        """States, observations and memories at the start of an episode of every environment."""
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
        # Flattened to one vector: a tenth of the operations to compile and to run.
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
    """Leaves [T, N / M, ...]: of every M neighbouring environments the one at ``chosen``,
    int32[N / M]."""
    size = jax.tree.leaves(batch)[0].shape[1] // len(chosen)
    index = size * jnp.arange(len(chosen)) + chosen
    return jax.tree.map(lambda leaf: leaf[:, index], batch)
