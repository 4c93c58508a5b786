"""A task's traffic in arrays: the mean that rewards are measured by is that of the draws."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.sim.traffic.workload import draw_arrivals, init_workload
from jaxserve.tasks.spec import load_task

WINDOWS = 4000


@functools.partial(jax.jit, static_argnames="ticks")
@functools.partial(jax.vmap, in_axes=(None, 0, None, None))
def mean_rate_rps(
    env: jaxserve.ServeEnv, key: jax.Array, ticks: int, window_s: jax.Array
) -> jax.Array:
    """Requests per second of an episode of WINDOWS windows."""

    def window(state, index):
        state, arrivals = draw_arrivals(env.workload, state, index, ticks, window_s)
        return state, arrivals.rate_rps

    start = init_workload(env.workload, key)
    return jnp.mean(jax.lax.scan(window, start, jnp.arange(WINDOWS))[1])


@pytest.mark.parametrize("window_s", [1.0, 5.0, 10.0, 30.0])
def test_expected_traffic_is_that_of_the_draws_for_any_window(window_s: float) -> None:
    """Bursts that would start or stop more than once in a window do so once."""
    spec = load_task("bursty_workload")
    regime = dataclasses.replace(
        spec.regimes[0],
        dwell_s=(1e5, 1e5),
        burst_start_per_s=0.05,
        burst_stop_per_s=0.2,
        cycle_amplitude=0.0,
    )
    env = jaxserve.make(dataclasses.replace(spec, regimes=(regime,), window_s=window_s))
    keys = jax.random.split(jax.random.key(0), 64)
    env = dataclasses.replace(env, window_s=0.0)  # one program for all
    found = np.asarray(mean_rate_rps(env, keys, 1, jnp.float32(window_s))).mean()
    assert found == pytest.approx(float(env.reward.expected_requests_per_s), rel=0.02)
