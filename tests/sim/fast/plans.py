"""Plans of windows, for the stages of a tick."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

import jaxserve
from jaxserve.sim.fast.plan import plan_window
from jaxserve.sim.fast.state import init_sim
from jaxserve.sim.fast.tick_state import WindowPlan
from jaxserve.sim.traffic.workload import Arrivals, TrafficClasses
from jaxserve.types import ServeAction

ENV = jaxserve.make("adversarial_multitenant")
CLASSES: TrafficClasses = ENV.workload.classes
COUNT = len(CLASSES.prompt_tokens)


@jax.jit
def planned(action: ServeAction) -> WindowPlan:
    arrivals = Arrivals(
        counts=jnp.zeros((ENV.ticks, COUNT)),
        rate_rps=jnp.float32(0.0),
        regime=jnp.int32(0),
        acceptance_scale=jnp.float32(1.0),
    )
    state = init_sim(COUNT, jnp.float32(1.0))
    return plan_window(state, action, arrivals, ENV.deployment, CLASSES, ENV.table, ENV.window_s)


def plan(split: bool = False, **knobs: float) -> WindowPlan:
    """A window's plan, with or without GPUs that only prefill."""
    found = planned(jaxserve.make_action(**knobs))
    return dataclasses.replace(
        found, split=jnp.bool_(split), prefill_kv_tokens=found.kv_tokens * split
    )
