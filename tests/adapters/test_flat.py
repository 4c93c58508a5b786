"""Flat arrays in and out: bounds that hold, numbers that add up, bad actions named."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.adapters.flat import advance, checked_indices, feature_bounds, start
from jaxserve.env import FEATURE_NAMES
from jaxserve.errors import InputError
from jaxserve.grids import action_at, grid_sizes
from jaxserve.seeds import episode_key
from jaxserve.spaces import OBSERVATION_BOUNDS
from jaxserve.tasks.spec import task_names
from jaxserve.types import ServeObservation
from tests import compiled_env

ENV = jaxserve.make("adversarial_multitenant")
SIZES = grid_sizes(ENV)
observe, step = jax.jit(ENV.observe), jax.jit(advance)
UNIT = st.floats(0.0, 1.0, width=32)


@given(st.fixed_dictionaries(dict.fromkeys(OBSERVATION_BOUNDS, UNIT)))
def test_features_of_any_observation_are_inside(shares: dict[str, float]) -> None:
    """Bounds of the fields carry over to the features, wherever between them the fields lie."""
    fields = {
        name: jnp.float32(bound.low + shares[name] * (bound.high - bound.low))
        for name, bound in OBSERVATION_BOUNDS.items()
    }
    fields["priority_distribution"] = jnp.full(3, fields["priority_distribution"])
    # The two fields that grow with the episode, at the most they can be in one.
    fields["step_index"] = jnp.float32(shares["step_index"]) * ENV.horizon
    fields["cost_so_far"] = shares["cost_so_far"] * ENV.reward.usd_scale * ENV.horizon
    features = np.asarray(observe(ServeObservation(**fields)))
    low, high = feature_bounds(ENV)
    assert (features >= low).all() and (features <= high).all()


@pytest.mark.parametrize("task", task_names())
def test_bounds_are_small_and_finite(task: str) -> None:
    """Every feature has a range, and none is so wide that it means nothing."""
    env = jaxserve.make(task)
    low, high = feature_bounds(env)
    assert low.dtype == high.dtype == np.float32
    assert low.shape == high.shape == (len(env.feature_names),)
    assert (low < high).all() and (low > -1.01).all() and (high < 30.0).all()


def test_a_window_at_full_power_costs_its_share() -> None:
    """The share of an episode's cost stays below 1 under overload with every GPU at work."""
    env = dataclasses.replace(ENV, horizon=jnp.int32(4))
    state, seen = jax.jit(start)(env, episode_key(0))
    for _ in range(4):
        state, seen = step(env, state, jnp.asarray(SIZES - 1))
    cost = float(seen.features[FEATURE_NAMES.index("cost_share")])
    assert 0.5 < cost <= 1.0
    assert bool(seen.truncated) and not bool(seen.terminated)


def test_numbers_are_those_of_the_window() -> None:
    """Counts are sums over the classes, and the parts of the reward add up to it."""
    indices = jnp.array([9, 10, 2, 0, 1, 1, 0])
    state, _ = compiled_env.reset(ENV, episode_key(3))
    _, seen = step(ENV, state, indices)
    _, timestep = compiled_env.step(ENV, state, action_at(indices))
    numbers = {name: float(value) for name, value in seen.numbers.items()}
    assert numbers["arrivals"] == pytest.approx(float(timestep.metrics.arrivals.sum()), rel=1e-5)
    assert numbers["p99_ttft_ms"] == pytest.approx(float(timestep.observation.p99_ttft_ms), 1e-3)
    parts = [value for name, value in numbers.items() if name.startswith("reward_")]
    assert sum(parts) == pytest.approx(float(seen.reward), abs=1e-5)
    assert "regime" not in numbers, "what no agent may observe"


BAD_ACTIONS: list[tuple[Any, str]] = [
    ([16, 0, 0, 0, 0, 0, 0], r"^batch_cap is 16; it must be an index from 0 to 15$"),
    ([0, 11, 0, 0, 0, 0, 0], r"^kv_budget_fraction is 11; it must be an index from 0 to 10$"),
    ([0, 0, -1, 0, 0, 0, 0], r"^speculation_depth is -1; it must be an index from 0 to 8$"),
    ([0, 0, 0, 3, 0, 0, 0], r"^quantization_tier is 3; it must be an index from 0 to 2$"),
    ([0, 0, 0, 0, 4, 0, 0], r"^prefill_decode_split is 4; it must be an index from 0 to 3$"),
    ([0, 0, 0, 0, 0, 2, 0], r"^priority_routing is 2; it must be an index from 0 to 1$"),
    ([0.5] * 7, r"^action is float64 of shape \(7,\); it must be whole numbers of shape \(7,\),"),
    ([float("nan")] * 7, r"^action is float64 of shape \(7,\); it must be whole numbers"),
    ([True] * 7, r"^action is bool of shape \(7,\); it must be whole numbers"),
    (["3"] * 7, r"^action is <U1 of shape \(7,\); it must be whole numbers"),
    ([10**30] * 7, r"^action is object of shape \(7,\); it must be whole numbers"),
    ([0, 0], r"^action is int64 of shape \(2,\); it must be whole numbers"),
    ([[0] * 7], r"^action is int64 of shape \(1, 7\); it must be whole numbers"),
    ([[0], [0, 0]], r"^action is object of shape \(\); it must be whole numbers"),
    (None, r"^action is object of shape \(\); it must be whole numbers"),
    (3, r"^action is int64 of shape \(\); it must be whole numbers"),
]


@pytest.mark.parametrize(("action", "message"), BAD_ACTIONS)
def test_bad_actions_are_named(action: Any, message: str) -> None:
    """Out of range, fractional, of the wrong shape or no numbers: knob, value and range."""
    with pytest.raises(InputError, match=message):
        checked_indices(action, SIZES)


def test_a_bad_action_of_many_is_named() -> None:
    """The environment as well, and that a task locks the knob."""
    sizes = grid_sizes(jaxserve.make("static_workload"))
    actions = np.zeros((3, 7), int)
    assert checked_indices(actions, sizes, 3).shape == (3, 7)
    actions[2, 3] = 1
    with pytest.raises(InputError, match="quantization_tier of environment 2 is 1; it must be 0, "):
        checked_indices(actions, sizes, 3)
    with pytest.raises(InputError, match=r"shape \(4, 7\)"):
        checked_indices(actions, sizes, 4)
