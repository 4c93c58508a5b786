"""The learner's network and its memory: inputs, one categorical per knob, a value.

An action is a point of the knob grids, drawn knob by knob. Knobs whose change costs a restart keep
their last value unless the network insists: their logits start with a bonus for it, without which
a fresh policy would restart every window and never see a setting at work. Where replicas are scaled
all knobs do: what a number of replicas is worth shows over minutes, which a batch cap drawn anew in
every window would hide. With a tuned rule the replicas keep their distance from the rule's number.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.rule_advice import Advice, AdvisingRule
from jaxserve.arrays.threefry import uniform
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_index, nearest_indices
from jaxserve.spaces import KNOBS, RESTART_KNOBS
from jaxserve.types import ServeAction, ServeObservation

AVERAGING_WINDOWS = (3.0, 12.0)
"""Time constants of the running means that the network sees beside the latest observation."""
_VIEWS = 1 + len(AVERAGING_WINDOWS)
_LAST_KNOBS = sum(len(KNOB_GRIDS[knob]) for knob in RESTART_KNOBS)
_RESTARTED = tuple(KNOBS.index(knob) for knob in RESTART_KNOBS)
_REPLICAS = KNOBS.index("replicas")
_HOLD = {"kv_budget_fraction": 2.0}
"""Knobs that are held harder than others by a factor: a KV budget shows only where the pool fills,
and its head is flat elsewhere. On 64 validation episodes of bursty_workload and of
adversarial_multitenant it left 5.5 and 0.1 changes of the budget in place of 14.3 and 1.6, for
-0.0003 (-0.0012 to 0.0000) and +0.0001 (-0.0001 to +0.0004) of reward a window."""


def input_width(features: int, advised: int = 0) -> int:
    """Length of the network's input.

    Args:
      features: features of an observation.
      advised: numbers of replicas to choose from, where a rule gives advice.
    """
    return _VIEWS * features + _LAST_KNOBS + 2 * advised


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
    kept: jax.Array
    """int32[7], grid indices of the action that keeps everything: the last one, with replicas as
    far from the rule's number as in the window before."""
    hidden: jax.Array
    """float32[H], state of the recurrent cell; without one an unused number, because checkpoints
    take no empty arrays."""
    advice: Advice | None = None
    """the rule's; None without one."""


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
    """bonus of the value that keeps a knob, in nats."""
    rule: AdvisingRule | None = None
    """rule whose number of replicas the policy starts from."""

    @nn.compact
    def __call__(
        self, hidden: jax.Array, inputs: jax.Array, kept: jax.Array
    ) -> tuple[jax.Array, Outputs]:
        """Applies the network to a window.

        Args:
          hidden: float32[..., H], state of the recurrent cell.
          inputs: float32[..., I], of ``input_width``.
          kept: int32[..., 7], grid indices of the action that keeps everything.
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
                logit + self.stickiness * jax.nn.one_hot(kept[..., i], logit.shape[-1])
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
        kept = jnp.zeros(len(self.sizes), jnp.int32)
        advised = self.sizes[_REPLICAS] if self.rule else 0
        inputs = jnp.zeros(input_width(len(self.features), advised))
        return self.init(key, self._initial_hidden(), inputs, kept)["params"]

    @nn.nowrap
    def initial_memory(self, env: ServeEnv) -> NetworkMemory:
        """Memory at the start of an episode."""
        last = nearest_indices(env.locked)
        return NetworkMemory(
            averages=jnp.zeros((len(AVERAGING_WINDOWS), len(self.features))),
            last=last,
            kept=last,
            hidden=self._initial_hidden(),
            advice=self.rule.first(env) if self.rule else None,
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


def network_for(env: ServeEnv, **fields: Any) -> Network:
    """The network whose heads fit a task; ``fields`` as in ``Network``."""
    sizes = tuple(int(size) for size in grid_sizes(env))
    return Network(sizes=sizes, features=env.feature_names, **fields)


def forward(
    network: Network, params: Any, memory: NetworkMemory, inputs: jax.Array
) -> tuple[NetworkMemory, Outputs]:
    """Forward pass on inputs float32[..., I]: the memory after it, and the outputs."""
    applied: Any = network.apply({"params": params}, memory.hidden, inputs, memory.kept)
    hidden, outputs = applied
    return dataclasses.replace(memory, hidden=hidden), outputs


def encode_observation(
    network: Network,
    env: ServeEnv,
    normaliser: Normaliser,
    memory: NetworkMemory,
    observation: ServeObservation,
) -> tuple[NetworkMemory, jax.Array, jax.Array]:
    """Encodes an observation as the network's input.

    Args:
      network: its rule, if it has one, is asked.
      env: its scales turn the observation into features.
      normaliser: running mean and variance of the features.
      memory: memory before the observation.
      observation: scalars of the latest window.

    Returns:
      the memory with the observation in its running means and the rule's advice, the network's
      input float32[I], and the features before normalisation, float32[D].
    """
    features = env.observe(observation)
    seen = normaliser(features)
    weights = 1.0 / jnp.asarray(AVERAGING_WINDOWS)[:, None]
    averages = memory.averages + weights * (seen - memory.averages)
    running = [
        jax.nn.one_hot(memory.last[KNOBS.index(knob)], len(KNOB_GRIDS[knob]))
        for knob in RESTART_KNOBS
    ]
    kept, advice = memory.last, memory.advice
    if network.rule is not None and advice is not None:
        before, advice = advice, network.rule.next(env, advice, observation)
        kept, advised = _moved(network.sizes[_REPLICAS], memory.last, before, advice)
        running += [advised, jax.nn.one_hot(kept[_REPLICAS], len(advised))]
    inputs = jnp.concatenate([seen, averages.ravel(), *running])
    memory = dataclasses.replace(memory, averages=averages, kept=kept, advice=advice)
    return memory, inputs, features


def _moved(
    size: int, last: jax.Array, before: Advice, advice: Advice
) -> tuple[jax.Array, jax.Array]:
    """The action that keeps everything, int32[7], and the advice one-hot, float32[size].

    Args:
      size: numbers of replicas to choose from, the first one for all of them.
      last: int32[7], grid indices of the last action.
      before: the rule's advice for the last action.
      advice: its advice for the next one.
    """
    numbers = jnp.asarray(KNOB_GRIDS["replicas"][:size])
    taken = jnp.where(last[_REPLICAS] == 0, numbers[-1], numbers[last[_REPLICAS]])

    def place(replicas: jax.Array) -> jax.Array:
        return nearest_index("replicas", jnp.clip(replicas, 1, numbers[-1]))

    kept = last.at[_REPLICAS].set(place(advice.wanted + taken - before.wanted))
    return kept, jax.nn.one_hot(place(advice.wanted), size)


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
    outputs: Outputs, sizes: tuple[int, ...], kept: jax.Array, nats: float
) -> jax.Array:
    """The value that keeps every knob, or the most likely one where that is likelier by ``nats``.

    Args:
      outputs: logits of the knobs.
      sizes: grid points of each knob.
      kept: int32[..., 7], grid indices of the action that keeps everything.
      nats: bonus of its values, twice for the KV budget.

    Returns:
      int32[..., 7], grid indices; 0 for locked knobs.
    """
    knobs = [i for i, size in enumerate(sizes) if size > 1]
    held = [
        values + nats * _HOLD.get(KNOBS[i], 1.0) * jax.nn.one_hot(kept[..., i], values.shape[-1])
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
        network = self.network
        memory, inputs, _ = encode_observation(network, env, self.normaliser, memory, observation)
        memory, outputs = forward(network, self.params, memory, inputs)
        sizes = network.sizes
        if self.greedy:
            indices = sticky_action(outputs, sizes, memory.kept, self.hold_nats)
        else:
            indices = sample_action(outputs, sizes, key)
        return action_at(indices), dataclasses.replace(memory, last=indices)
