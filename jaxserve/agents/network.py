"""The learner's network and its memory: what it sees, one categorical per knob, a value.

An action is a point of the knob grids, drawn knob by knob. Knobs whose change costs a restart keep
their last value unless the network insists: their logits start with a bonus for it, without which
a fresh policy would restart every window and never see a setting at work.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.grids import KNOB_GRIDS, action_at, grid_sizes
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.spaces import KNOBS
from jaxserve.types import ServeAction, ServeObservation

AVERAGING_WINDOWS = (3.0, 12.0)
"""Time constants of the running means that the network sees beside the latest observation."""
_STICKY_KNOBS = ("quantization_tier", "prefill_decode_split")
_VIEWS = 1 + len(AVERAGING_WINDOWS)
INPUTS = _VIEWS * len(FEATURE_NAMES) + sum(len(KNOB_GRIDS[knob]) for knob in _STICKY_KNOBS)
"""Length of the network's input."""


@flax.struct.dataclass
class Normaliser:
    """Running mean and variance of the features."""

    mean: jax.Array
    """float32[D]"""
    variance: jax.Array
    """float32[D]"""
    count: jax.Array
    """float32, samples so far."""

    @classmethod
    def create(cls) -> Normaliser:
        """Leaves features as they are."""
        width = len(FEATURE_NAMES)
        return cls(jnp.zeros(width), jnp.ones(width), jnp.float32(1.0))

    def __call__(self, features: jax.Array) -> jax.Array:
        """Features with about zero mean and unit variance, clipped to -5..5."""
        return jnp.clip((features - self.mean) * jax.lax.rsqrt(self.variance + 1e-6), -5.0, 5.0)

    def updated(self, features: jax.Array) -> Normaliser:
        """With the samples float32[..., D] merged in (Chan, Golub and LeVeque 1983)."""
        samples = features.reshape(-1, features.shape[-1])
        count = jnp.float32(len(samples))
        total = self.count + count
        shift = jnp.mean(samples, axis=0) - self.mean
        squares = self.variance * self.count + jnp.var(samples, axis=0) * count
        return Normaliser(
            mean=self.mean + shift * count / total,
            variance=(squares + shift**2 * self.count * count / total) / total,
            count=total,
        )


@flax.struct.dataclass
class Memory:
    """What a policy carries from window to window."""

    averages: jax.Array
    """float32[len(AVERAGING_WINDOWS), D], running means of the normalised features."""
    last: jax.Array
    """int32[6], grid indices of the last action."""
    hidden: jax.Array
    """float32[H], state of the recurrent cell; without one an unused number, because checkpoints
    take no empty arrays."""


class Step(NamedTuple):
    """What the network says about a window."""

    logits: tuple[jax.Array, ...]
    """one float32[..., N] for each knob that the task leaves to the agent."""
    value: jax.Array
    """float32[...], discounted reward to come, scaled."""


class Network(nn.Module):
    """Separate perceptrons for the policy and the value, behind an optional recurrent cell."""

    sizes: tuple[int, ...]
    """grid points of each of the six knobs; 1 for those that the task locks."""
    width: int = 64
    recurrent: bool = False
    stickiness: float = 5.0
    """bonus of the last value of a knob whose change costs a restart, in nats."""

    @nn.compact
    def __call__(
        self, hidden: jax.Array, inputs: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, Step]:
        """One window. Args: float32[..., H], float32[..., INPUTS], int32[..., 6]."""
        if self.recurrent:
            hidden, remembered = nn.GRUCell(self.width)(hidden, inputs)
            inputs = jnp.concatenate([inputs, remembered], axis=-1)
        value = self._perceptron(inputs, 1, 1.0)[..., 0]
        knobs = [i for i, size in enumerate(self.sizes) if size > 1]
        widths = [self.sizes[i] for i in knobs]
        joined = self._perceptron(inputs, sum(widths), 0.01)
        logits = jnp.split(joined, np.cumsum(widths)[:-1], axis=-1)
        sticky = [KNOBS.index(knob) for knob in _STICKY_KNOBS]
        return hidden, Step(
            tuple(
                logit + self.stickiness * jax.nn.one_hot(last[..., i], logit.shape[-1])
                if i in sticky
                else logit
                for i, logit in zip(knobs, logits, strict=True)
            ),
            value,
        )

    def _perceptron(self, inputs: jax.Array, outputs: int, scale: float) -> jax.Array:
        orthogonal = nn.initializers.orthogonal
        for _ in range(2):
            inputs = nn.tanh(nn.Dense(self.width, kernel_init=orthogonal(2.0**0.5))(inputs))
        return nn.Dense(outputs, kernel_init=orthogonal(scale))(inputs)

    def initial_memory(self, env: ServeEnv) -> Memory:
        """Memory at the start of an episode."""
        return Memory(
            averages=jnp.zeros((len(AVERAGING_WINDOWS), len(FEATURE_NAMES))),
            last=jnp.stack([_nearest(env.locked, knob) for knob in KNOBS]),
            hidden=jnp.zeros(self.width if self.recurrent else 1),
        )


def network_for(env: ServeEnv, **settings: int | float | bool) -> Network:
    """The network whose heads fit a task; ``settings`` as in ``Network``."""
    return Network(sizes=tuple(int(size) for size in grid_sizes(env)), **settings)  # type: ignore


def look(network: Network, params: Any, memory: Memory, inputs: jax.Array) -> tuple[Memory, Step]:
    """What the network says about inputs float32[..., INPUTS], and the memory after it."""
    said: Any = network.apply({"params": params}, memory.hidden, inputs, memory.last)
    hidden, step = said
    return dataclasses.replace(memory, hidden=hidden), step


def perceive(
    env: ServeEnv, normaliser: Normaliser, memory: Memory, observation: ServeObservation
) -> tuple[Memory, jax.Array, jax.Array]:
    """Takes an observation in.

    Returns:
      the memory with it, the network's input float32[INPUTS], and the plain features float32[D].
    """
    features = env.observe(observation)
    seen = normaliser(features)
    weights = 1.0 / jnp.asarray(AVERAGING_WINDOWS)[:, None]
    averages = memory.averages + weights * (seen - memory.averages)
    running = [
        jax.nn.one_hot(memory.last[KNOBS.index(knob)], len(KNOB_GRIDS[knob]))
        for knob in _STICKY_KNOBS
    ]
    inputs = jnp.concatenate([seen, averages.ravel(), *running])
    return dataclasses.replace(memory, averages=averages), inputs, features


def log_probability(step: Step, sizes: tuple[int, ...], indices: jax.Array) -> jax.Array:
    """float32[...]: log-probability of actions int32[..., 6], summed over the knobs."""
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    return sum(
        jnp.take_along_axis(jax.nn.log_softmax(logits), indices[..., i, None], axis=-1)[..., 0]
        for i, logits in zip(knobs, step.logits, strict=True)
    )  # type: ignore[return-value]


def entropy(step: Step) -> jax.Array:
    """float32[...]: entropy of the action, summed over the knobs, nats."""
    logs = [jax.nn.log_softmax(logits) for logits in step.logits]
    return sum(-jnp.sum(jnp.exp(log) * log, axis=-1) for log in logs)  # type: ignore[return-value]


def choose(step: Step, sizes: tuple[int, ...], key: jax.Array, greedy: bool = False) -> jax.Array:
    """int32[..., 6]: drawn grid indices, or the most likely ones; 0 for locked knobs."""
    shape = step.value.shape
    chosen = [jnp.zeros(shape, jnp.int32)] * len(sizes)
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    for i, logits in zip(knobs, step.logits, strict=True):
        if not greedy:
            noise = jax.random.gumbel(jax.random.fold_in(key, i), logits.shape)
            logits = logits + noise
        chosen[i] = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jnp.stack(chosen, axis=-1)


def _nearest(action: ServeAction, knob: str) -> jax.Array:
    grid = jnp.asarray(KNOB_GRIDS[knob], jnp.float32)
    return jnp.argmin(jnp.abs(grid - getattr(action, knob))).astype(jnp.int32)


@flax.struct.dataclass
class NetworkPolicy:
    """A trained network as a ``Policy``."""

    params: Any
    normaliser: Normaliser
    network: Network = flax.struct.field(pytree_node=False)
    greedy: bool = flax.struct.field(pytree_node=False, default=True)
    name: str = flax.struct.field(pytree_node=False, default="ppo")

    def init(self, env: ServeEnv) -> Memory:
        """Nothing seen yet, knobs at the task's own values."""
        return self.network.initial_memory(env)

    def act(
        self, env: ServeEnv, memory: Memory, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Memory]:
        """The most likely value of every knob; or a draw, if not ``greedy``."""
        memory, inputs, _ = perceive(env, self.normaliser, memory, observation)
        memory, step = look(self.network, self.params, memory, inputs)
        indices = choose(step, self.network.sizes, key, self.greedy)
        return action_at(indices), dataclasses.replace(memory, last=indices)
