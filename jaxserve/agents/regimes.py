"""The hidden regimes of a task's traffic: whether they differ, and the task held in one of them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv


def regimes_alike(env: ServeEnv) -> bool:
    """Whether the traffic never changes: an environment repeats a task's only regime."""
    leaves = map(np.asarray, jax.tree.leaves(env.workload.regimes))
    return all((leaf == leaf[:1]).all() for leaf in leaves)


def regime_env(env: ServeEnv, regime: int) -> ServeEnv:
    """The task held in a single regime."""
    workload = env.workload
    held = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[regime], leaf.shape), workload.regimes)
    return dataclasses.replace(env, workload=dataclasses.replace(workload, regimes=held))
