"""Parts that the adapters share: grid indices in, features and plain numbers out.

An action is int32[7], an index into ``jaxserve.grids.KNOB_GRIDS`` for each of ``jaxserve.KNOBS``
(always 0 for a knob that the task locks); an observation is the vector of ``ServeEnv.observe``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.env import EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import action_at
from jaxserve.spaces import KNOBS, OBSERVATION_FIELDS
from jaxserve.types import ServeObservation, TimeStep

_COUNTS = ("arrivals", "completed", "good", "rejected", "lost", "waiting", "running")
_FIGURES = ("tokens", "preemptions", "memory_gib", "energy_j", "cost_usd", "kv_occupancy")
_IN_FORCE = ("acceptance", "capacity", "oom", "tier", "prefill_gpus")
_FLEET = ("replicas_ready", "replicas_starting", "replicas_rented")
_LATENCIES = tuple(name for name, entry in OBSERVATION_FIELDS.items() if entry.unit == "ms")
_REWARD_PARTS = ("throughput", "latency", "slo", "cost", "memory")
_EPISODE_SHARES = ("episode_progress", "cost_share")
_ROUNDING = 1e-4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """Observation, reward and ends that an agent gets after a window or at the start of an
    episode."""

    features: jax.Array
    """float32[D], see ``ServeEnv.feature_names``."""
    reward: jax.Array
    """float32; 0 at the start."""
    terminated: jax.Array
    """bool, always False."""
    truncated: jax.Array
    """bool, the horizon was reached."""
    numbers: dict[str, jax.Array]
    """float32 scalars: requests by fate (summed over the classes), the window's use and cost, its
    latencies, and the parts of the reward."""


def start(env: ServeEnv, key: jax.Array) -> tuple[EnvState, Seen]:
    """The start of an episode; ``key`` is its only source of randomness."""
    state, timestep = env.reset(key)
    return state, _seen(env, timestep)


def advance(env: ServeEnv, state: EnvState, indices: jax.Array) -> tuple[EnvState, Seen]:
    """Plays a window with the knobs at grid indices int32[7]."""
    state, timestep = env.step(state, action_at(indices))
    return state, _seen(env, timestep)


def feature_bounds(env: ServeEnv) -> tuple[jax.Array, jax.Array]:
    """Lowest and highest features of an episode, float32[D] each.

    Features grow with every field of the observation, so its bounds are theirs. The shares of an
    episode end at 1: time at the horizon, and no window costs more than all GPUs at full power.
    All bounds leave room for rounding, which differs from one compiled program to another.
    """
    low, high = (env.observe(_corner(edge)) for edge in ("low", "high"))
    high = jnp.where(np.isin(env.feature_names, _EPISODE_SHARES), 1.0, high)
    return low - _ROUNDING, high + _ROUNDING


def checked_indices(action: Any, sizes: NDArray[np.int64], count: int | None = None) -> jax.Array:
    """An action from outside as int32[7], or int32[count, 7] for ``count`` environments.

    Args:
      sizes: int[7], grid points of each knob, 1 for those that the task locks.

    Raises:
      InputError: no whole numbers, another shape, or an index outside the grid of its knob.
    """
    shape = (len(KNOBS),) if count is None else (count, len(KNOBS))
    try:
        array = np.asarray(action)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"action is {array.dtype} of shape {array.shape}; it must be whole numbers of shape "
            f"{shape}, an index for each of {', '.join(KNOBS)}"
        )
    outside = np.argwhere((array < 0) | (array >= sizes))
    if len(outside):
        place = tuple(outside[0])
        knob, size = KNOBS[place[-1]], sizes[place[-1]]
        where = "" if count is None else f" of environment {place[0]}"
        allowed = f"an index from 0 to {size - 1}" if size > 1 else "0, because the task locks it"
        raise InputError(f"{knob}{where} is {array[place]}; it must be {allowed}")
    return jnp.asarray(array, jnp.int32)


def _corner(edge: str) -> ServeObservation:
    return ServeObservation(
        **{
            name: jnp.full(entry.shape, getattr(entry.bound, edge), jnp.float32)
            for name, entry in OBSERVATION_FIELDS.items()
        }
    )


def _seen(env: ServeEnv, timestep: TimeStep) -> Seen:
    metrics, observation, parts = timestep.metrics, timestep.observation, timestep.parts
    numbers = {name: jnp.sum(getattr(metrics, name)) for name in _COUNTS}
    numbers |= {name: getattr(metrics, name) for name in (*_FIGURES, *_IN_FORCE, *_FLEET)}
    numbers |= {name: getattr(observation, name) for name in _LATENCIES}
    numbers |= {f"reward_{name}": getattr(parts, name) for name in _REWARD_PARTS}
    return Seen(
        features=env.observe(observation),
        reward=timestep.reward,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        numbers={name: jnp.asarray(value, jnp.float32) for name, value in numbers.items()},
    )
