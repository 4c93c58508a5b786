"""The learner's network and its memory: inputs, one categorical per knob, a value.

An action is a point of the knob grids, drawn knob by knob. Knobs whose change costs a restart keep
their last value unless the network insists: their logits start with a bonus for it, without which
a fresh policy would restart every window and never see a setting at work. Where replicas are scaled
all knobs do: what a number of replicas is worth shows over minutes, which a batch cap drawn anew in
every window would hide.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.threefry import uniform
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_indices
from jaxserve.spaces import KNOBS, RESTART_KNOBS
from jaxserve.types import ServeAction, ServeObservation

AVERAGING_WINDOWS = (3.0, 12.0)
"""Time constants of the running means that the network sees beside the latest observation."""
_VIEWS = 1 + len(AVERAGING_WINDOWS)
_LAST_KNOBS = sum(len(KNOB_GRIDS[knob]) for knob in RESTART_KNOBS)
_RESTARTED = tuple(KNOBS.index(knob) for knob in RESTART_KNOBS)
_REPLICAS = KNOBS.index("replicas")


def input_width(features: int) -> int:
    """Length of the network's input for observations of so many features."""
    return _VIEWS * features + _LAST_KNOBS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Normaliser:
    """Running mean and variance of the features."""

    mean: jax.Array
    """float32[D]"""
    variance: jax.Array
    """float32[D]"""
    count: jax.Array
    """float32, samples so far."""

    @classmethod
    def create(cls, width: int = len(FEATURE_NAMES)) -> Normaliser:
        """A normaliser that leaves ``width`` features as they are."""
        return cls(jnp.zeros(width), jnp.ones(width), jnp.float32(1.0))

    def __call__(self, features: jax.Array) -> jax.Array:
        """Features with about zero mean and unit variance, clipped to -5..5."""
        return jnp.clip((features - self.mean) * jax.lax.rsqrt(self.variance + 1e-6), -5.0, 5.0)

    def updated(self, features: jax.Array) -> Normaliser:
        """The normaliser with samples float32[..., D] merged in (Chan, Golub and LeVeque 1983)."""
        axes = tuple(range(features.ndim - 1))
        count = jnp.float32(np.prod(features.shape[:-1]))
        total = self.count + count
        shift = jnp.mean(features, axes) - self.mean
        squares = self.variance * self.count + jnp.var(features, axes) * count
        return Normaliser(
            mean=self.mean + shift * count / total,
            variance=(squares + shift**2 * self.count * count / total) / total,
            count=total,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NetworkMemory:
    """Memory of a policy from window to window."""

    averages: jax.Array
    """float32[len(AVERAGING_WINDOWS), D], running means of the normalised features."""
    last: jax.Array
    """int32[7], grid indices of the last action."""
    hidden: jax.Array
    """float32[H], state of the recurrent cell; without one an unused number, because checkpoints
    take no empty arrays."""


class Outputs(NamedTuple):
    """Outputs of the network for a window."""

    logits: tuple[jax.Array, ...]
    """logits of each knob that the task leaves to the agent, float32[..., N] each."""
    value: jax.Array
    """float32[...], discounted reward to come, scaled."""


class Network(nn.Module):
    """Separate perceptrons for the policy and the value, behind an optional recurrent cell."""

    sizes: tuple[int, ...]
    """grid points of each knob; 1 for knobs that the task locks."""
    features: tuple[str, ...] = FEATURE_NAMES
    """names of the features of an observation."""
    width: int = 64
    recurrent: bool = False
    stickiness: float = 5.0
    """bonus of the last value of a knob that is kept, in nats."""

    @nn.compact
    def __call__(
        self, hidden: jax.Array, inputs: jax.Array, last: jax.Array
    ) -> tuple[jax.Array, Outputs]:
        """Applies the network to a window.

        Args:
          hidden: float32[..., H], state of the recurrent cell.
          inputs: float32[..., I], of ``input_width``.
          last: int32[..., 7], grid indices of the last action.
        """
        if self.recurrent:
            cell = nn.GRUCell(self.width, recurrent_kernel_init=_orthogonal(1.0))
            hidden, remembered = cell(hidden, inputs)
            inputs = jnp.concatenate([inputs, remembered], axis=-1)
        value = self._perceptron(inputs, 1, 1.0)[..., 0]
        knobs = [i for i, size in enumerate(self.sizes) if size > 1]
        widths = [self.sizes[i] for i in knobs]
        joined = self._perceptron(inputs, sum(widths), 0.01)
        logits = jnp.split(joined, np.cumsum(widths)[:-1], axis=-1)
        sticky = knobs if _REPLICAS in knobs else _RESTARTED
        return hidden, Outputs(
            tuple(
                logit + self.stickiness * jax.nn.one_hot(last[..., i], logit.shape[-1])
                if i in sticky
                else logit
                for i, logit in zip(knobs, logits, strict=True)
            ),
            value,
        )

    def _perceptron(self, inputs: jax.Array, outputs: int, scale: float) -> jax.Array:
        for _ in range(2):
            inputs = nn.tanh(nn.Dense(self.width, kernel_init=_orthogonal(2.0**0.5))(inputs))
        return nn.Dense(outputs, kernel_init=_orthogonal(scale))(inputs)

    @nn.nowrap
    def initial_params(self, key: jax.Array) -> Any:
        """Fresh parameters; ``key`` is consumed."""
        last = jnp.zeros(len(self.sizes), jnp.int32)
        inputs = jnp.zeros(input_width(len(self.features)))
        return self.init(key, self._initial_hidden(), inputs, last)["params"]

    @nn.nowrap
    def initial_memory(self, env: ServeEnv) -> NetworkMemory:
        """Memory at the start of an episode."""
        return NetworkMemory(
            averages=jnp.zeros((len(AVERAGING_WINDOWS), len(self.features))),
            last=nearest_indices(env.locked),
            hidden=self._initial_hidden(),
        )

    @nn.nowrap
    def _initial_hidden(self) -> jax.Array:
        return jnp.zeros(self.width if self.recurrent else 1)


def _orthogonal(scale: float) -> nn.initializers.Initializer:
    """Random matrices with orthogonal rows or columns: polar factors of Gaussian ones.

    By matrix products (Newton-Schulz): with few cores, the batches of QR factorisations that the
    initialiser of the library makes for several seeds wait for one another for ever in jaxlib 0.10.
    """

    def initialise(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        gaussian = jax.random.normal(key, shape, dtype)

        def closer(_: int, matrix: jax.Array) -> jax.Array:
            return 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)

        # Small singular values grow by half in each round, from about 1e-5 at worst.
        return scale * jax.lax.fori_loop(0, 40, closer, gaussian / jnp.linalg.norm(gaussian))

    return initialise


def network_for(env: ServeEnv, **fields: int | float | bool) -> Network:
    """The network whose heads fit a task; ``fields`` as in ``Network``."""
    sizes = tuple(int(size) for size in grid_sizes(env))
    return Network(sizes=sizes, features=env.feature_names, **fields)  # type: ignore


def forward(
    network: Network, params: Any, memory: NetworkMemory, inputs: jax.Array
) -> tuple[NetworkMemory, Outputs]:
    """Forward pass on inputs float32[..., I]: the memory after it, and the outputs."""
    applied: Any = network.apply({"params": params}, memory.hidden, inputs, memory.last)
    hidden, outputs = applied
    return dataclasses.replace(memory, hidden=hidden), outputs


def encode_observation(
    env: ServeEnv, normaliser: Normaliser, memory: NetworkMemory, observation: ServeObservation
) -> tuple[NetworkMemory, jax.Array, jax.Array]:
    """Encodes an observation as the network's input.

    Args:
      env: its scales turn the observation into features.
      normaliser: running mean and variance of the features.
      memory: memory before the observation.
      observation: scalars of the latest window.

    Returns:
      the memory with the observation in its running means, the network's input float32[I], and
      the features before normalisation, float32[D].
    """
    features = env.observe(observation)
    seen = normaliser(features)
    weights = 1.0 / jnp.asarray(AVERAGING_WINDOWS)[:, None]
    averages = memory.averages + weights * (seen - memory.averages)
    running = [
        jax.nn.one_hot(memory.last[KNOBS.index(knob)], len(KNOB_GRIDS[knob]))
        for knob in RESTART_KNOBS
    ]
    inputs = jnp.concatenate([seen, averages.ravel(), *running])
    return dataclasses.replace(memory, averages=averages), inputs, features


def log_probability(outputs: Outputs, sizes: tuple[int, ...], indices: jax.Array) -> jax.Array:
    """float32[...]: log-probability of actions ``indices`` int32[..., 7], summed over the knobs."""
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    return sum(
        jnp.take_along_axis(jax.nn.log_softmax(logits), indices[..., i, None], axis=-1)[..., 0]
        for i, logits in zip(knobs, outputs.logits, strict=True)
    )  # type: ignore[return-value]


def entropy(outputs: Outputs) -> jax.Array:
    """float32[...]: entropy of the action, summed over the knobs, nats."""
    logs = [jax.nn.log_softmax(logits) for logits in outputs.logits]
    return sum(-jnp.sum(jnp.exp(log) * log, axis=-1) for log in logs)  # type: ignore[return-value]


def sample_action(outputs: Outputs, sizes: tuple[int, ...], key: jax.Array) -> jax.Array:
    """int32[..., 7]: grid indices drawn from the policy, 0 for locked knobs; consumes ``key``."""
    ends = np.cumsum([values.shape[-1] for values in outputs.logits])
    # The most likely value after adding Gumbel noise is a draw (Gumbel 1954).
    draws = jnp.maximum(
        uniform(key, (*outputs.value.shape, int(ends[-1]))), jnp.finfo(jnp.float32).tiny
    )
    noise = jnp.split(-jnp.log(-jnp.log(draws)), ends[:-1], axis=-1)
    noisy = [values + extra for values, extra in zip(outputs.logits, noise, strict=True)]
    return _highest(outputs._replace(logits=tuple(noisy)), sizes)


def sticky_action(
    outputs: Outputs, sizes: tuple[int, ...], last: jax.Array, nats: float
) -> jax.Array:
    """The last value of every knob, or the most likely one where that is likelier by ``nats``.

    Args:
      outputs: logits of the knobs.
      sizes: grid points of each knob.
      last: int32[..., 7], grid indices of the last action.
      nats: bonus of the last value.

    Returns:
      int32[..., 7], grid indices; 0 for locked knobs.
    """
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    held = [
        values + nats * jax.nn.one_hot(last[..., i], values.shape[-1])
        for i, values in zip(knobs, outputs.logits, strict=True)
    ]
    return _highest(outputs._replace(logits=tuple(held)), sizes)


def _highest(outputs: Outputs, sizes: tuple[int, ...]) -> jax.Array:
    """int32[..., 7]: grid indices of the highest logits; 0 for locked knobs."""
    chosen = [jnp.zeros(outputs.value.shape, jnp.int32)] * len(sizes)
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    for i, values in zip(knobs, outputs.logits, strict=True):
        chosen[i] = jnp.argmax(values, axis=-1).astype(jnp.int32)
    return jnp.stack(chosen, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A trained network as a ``Policy``."""

    params: Any
    normaliser: Normaliser
    network: Network = dataclasses.field(metadata={"static": True})
    greedy: bool = dataclasses.field(default=True, metadata={"static": True})
    hold_nats: float = dataclasses.field(default=0.75, metadata={"static": True})
    """nats by which another value must be likelier than a knob's last one to replace it, if
    ``greedy``. On 64 validation episodes of bursty_workload and of adversarial_multitenant 0.75
    left 30 and 16 of 172 and 128 changes of knobs in an episode, for +0.0005 (-0.0006 to +0.0016)
    and -0.0008 (-0.0016 to 0.0000) of reward a window; 1.0 left 23 and 13, and lost 0.0013 (0.0005
    to 0.0022) of the latter."""

    def init(self, env: ServeEnv) -> NetworkMemory:
        """Memory of an episode's start: empty means, knobs at the task's own values."""
        return self.network.initial_memory(env)

    def act(
        self, env: ServeEnv, memory: NetworkMemory, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, NetworkMemory]:
        """Knobs of the next window: the last values or clearly likelier ones if ``greedy``, else a
        draw from the policy."""
        memory, inputs, _ = encode_observation(env, self.normaliser, memory, observation)
        memory, outputs = forward(self.network, self.params, memory, inputs)
        sizes = self.network.sizes
        if self.greedy:
            indices = sticky_action(outputs, sizes, memory.last, self.hold_nats)
        else:
            indices = sample_action(outputs, sizes, key)
        return action_at(indices), dataclasses.replace(memory, last=indices)
