"""Regimes: a held one never ends, and only a task with several counts as changing."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.regimes import regime_env, regimes_alike
from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_keys
from jaxserve.sim.traffic.workload import draw_arrivals, init_workload
from jaxserve.tasks.spec import REGIME_COUNT, load_task, task_names

KEYS = episode_keys(8, "validation")
HARD = "adversarial_multitenant"


@pytest.mark.parametrize("task", task_names())
def test_only_tasks_with_several_regimes_change(task: str) -> None:
    """The regimes of an environment are alike where its task has one, or all are held in one."""
    env = jaxserve.make(task)
    assert regimes_alike(env) == (len(load_task(task).regimes) == 1)
    assert regimes_alike(regime_env(env, 0))


@functools.partial(jax.jit, static_argnames="windows")
@functools.partial(jax.vmap, in_axes=(None, 0, None))
def arrived(env: ServeEnv, key: jax.Array, windows: int) -> jax.Array:
    """Requests of an episode by class, float32[F]."""

    def window(state, index):
        state, arrivals = draw_arrivals(env.workload, state, index, env.ticks, env.window_s)
        return state, arrivals.counts.sum(0)

    start = init_workload(env.workload, key)
    return jax.lax.scan(window, start, jnp.arange(windows))[1].sum(0)


@pytest.mark.parametrize("regime", range(REGIME_COUNT))
def test_a_held_regime_never_ends(regime: int) -> None:
    """All regimes of the walk are the one held; the rest of the task is untouched."""
    env = jaxserve.make(HARD)
    held = regime_env(env, regime)
    for whole, one in zip(
        jax.tree.leaves(env.workload.regimes), jax.tree.leaves(held.workload.regimes), strict=True
    ):
        assert one.shape == whole.shape and one.dtype == whole.dtype
        np.testing.assert_array_equal(one, np.broadcast_to(whole[regime], whole.shape))
    back = dataclasses.replace(held.workload, regimes=env.workload.regimes)
    same = dataclasses.replace(held, workload=back)
    assert jax.tree.structure(same) == jax.tree.structure(env)
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(env), strict=True):
        np.testing.assert_array_equal(one, other)
    counts = np.asarray(arrived(held, KEYS, 400)).sum(axis=0)
    mix = np.asarray(env.workload.regimes.class_mix[regime])
    np.testing.assert_array_equal(counts > 0, mix > 0)
    np.testing.assert_allclose(counts / counts.sum(), mix, atol=0.03)
