"""Objective of searches: a task's mean reward per window, over many episodes on all devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.runtime.devices import EVERYWHERE, all_devices, on_each, spread
from jaxserve.types import ServeAction

_CHUNK = 512  # episodes per compiled batch


def mean_reward(
    env: ServeEnv, key: jax.Array, horizon: int, action: Callable[[jax.Array], ServeAction]
) -> jax.Array:
    """float32: mean reward of an episode under ``action``, a function of the window's number."""
    state, _ = env.reset(key)

    def step(carry, _):
        state, total = carry
        state, timestep = env.step(state, action(state.step))
        return (state, total + timestep.reward), None

    (_, total), _ = jax.lax.scan(step, (state, jnp.float32(0.0)), None, length=horizon)
    return total / horizon


def on_all_devices(episode: Callable[..., jax.Array], env: ServeEnv, *batched: Any) -> jax.Array:
    """float32[N]: episodes of one environment, an equal share of them on each device."""
    mapped = jax.vmap(episode, (None, *[0] * len(batched)))
    pieces = [spread()] * len(batched)
    return on_each(all_devices(), mapped, EVERYWHERE, *pieces, out=spread())(env, *batched)


def in_chunks(run: Callable[..., jax.Array], *batched: Any) -> np.ndarray:
    """float32[N]: rewards that ``run`` computes of N episodes, the length of the ``batched``
    leaves.

    They run in batches of one size, so that one compiled program serves every search.
    """
    count = len(jax.tree.leaves(batched)[0])
    padded = -(-count // _CHUNK) * _CHUNK
    rows = np.arange(padded) % count
    values = []
    for chosen in np.split(rows, padded // _CHUNK):
        values.append(np.asarray(run(*jax.tree.map(functools.partial(_take, chosen), batched))))
    return np.concatenate(values)[:count]


def horizon_of(env: ServeEnv) -> int:
    """Windows of an episode of ``env``."""
    return int(np.max(env.horizon))


def _take(rows: np.ndarray, leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[rows]
