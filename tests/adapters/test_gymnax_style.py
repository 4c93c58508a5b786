"""The six-value interface: restarts, the observation that ended an episode, action spaces."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve import ServeEnv
from jaxserve.adapters.gymnax_spaces import MultiDiscrete
from jaxserve.adapters.gymnax_style import GymnaxEnv, OneBox, OneIndex, make
from jaxserve.errors import InputError
from jaxserve.grids import grid_sizes
from jaxserve.seeds import episode_key
from tests.compiled_env import reset, step

ENV, PARAMS = make("bursty_workload", overrides={"horizon": 5})
ACTION = jnp.array([9, 10, 2, 0, 0, 0, 0])
SIZES = [16, 11, 9, 1, 1, 1, 1]


@pytest.mark.slow
def test_an_episode_and_its_successor() -> None:
    """Five windows as the environment plays them, then a new episode from the step's key."""
    observation, state = ENV.reset(episode_key(0), PARAMS)
    assert ENV.observation_space(PARAMS).contains(observation)
    expected, _ = reset(PARAMS, episode_key(0))
    action = jaxserve.make_action(batch_cap=64, speculation_depth=2)
    for window in range(5):
        before = observation
        observation, state, reward, terminated, truncated, info = ENV.step(
            episode_key(window + 1), state, ACTION, PARAMS
        )
        expected, timestep = step(PARAMS, expected, action)
        features = PARAMS.observe(timestep.observation)
        assert float(reward) == pytest.approx(float(timestep.reward), rel=1e-4, abs=1e-5)
        np.testing.assert_allclose(info["final_observation"], features, rtol=1e-4, atol=1e-4)
        assert float(info["arrivals"]) == pytest.approx(float(timestep.metrics.arrivals.sum()))
        assert not terminated and not info["terminated"]
        assert bool(truncated) == bool(info["truncated"]) == (window == 4)
        assert not np.array_equal(before, observation)
    fresh, fresh_state = ENV.reset(episode_key(5), PARAMS)
    np.testing.assert_array_equal(observation, fresh)
    assert not np.array_equal(info["final_observation"], observation)
    chex.assert_trees_all_equal(jax.tree.map(_plain, state), jax.tree.map(_plain, fresh_state))


def test_old_keys_are_keys() -> None:
    """``jax.random.PRNGKey``, which most such code uses, gives the episodes of ``key``."""
    _, state = ENV.reset(jax.random.PRNGKey(3), PARAMS)
    _, typed = ENV.reset(jax.random.key(3), PARAMS)
    chex.assert_trees_all_equal(jax.tree.map(_plain, state), jax.tree.map(_plain, typed))
    old = ENV.step(jax.random.PRNGKey(0), state, ACTION, PARAMS)
    new = ENV.step(jax.random.key(0), typed, ACTION, PARAMS)
    np.testing.assert_array_equal(old[0], new[0])


@pytest.mark.slow
def test_parameters_may_be_left_out() -> None:
    """``reset(key)`` and ``step(key, state, action)`` play the environment's own."""
    observation, state = ENV.reset(jax.random.key(3))
    expected, _ = ENV.reset(jax.random.key(3), PARAMS)
    np.testing.assert_allclose(observation, expected, rtol=1e-5)
    got = ENV.step(jax.random.key(0), state, ACTION)
    wanted = ENV.step(jax.random.key(0), state, ACTION, PARAMS)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)
    assert ENV.observation_space().shape == observation.shape


def test_spaces_are_there_while_tracing() -> None:
    """Learners ask for them inside the function that they jit, of parameters traced or not."""

    def width(params: ServeEnv) -> jax.Array:
        shape = ENV.observation_space(params).shape
        return jnp.zeros(shape)[0] + float(ENV.observation_space(PARAMS).high[0])

    assert float(jax.jit(width)(PARAMS)) > 1.0


@pytest.mark.slow
def test_parameters_can_be_stacked() -> None:
    """The same program plays other parameters, one set or a batch of them."""
    overrides = [{"horizon": 5, "rate_scale": scale} for scale in (0.5, 1.0, 2.0)]
    stacked = jaxserve.stack([jaxserve.make("bursty_workload", overrides=o) for o in overrides])
    keys = jax.random.split(jax.random.key(0), 3)
    reset, step = jax.vmap(ENV.reset), jax.vmap(ENV.step, in_axes=(0, 0, None, 0))
    _, states = reset(keys, stacked)
    arrivals = np.zeros(3)
    for _ in range(4):
        _, states, _, _, _, info = step(keys, states, ACTION, stacked)
        arrivals += np.asarray(info["arrivals"])
    assert arrivals[0] < arrivals[1] < arrivals[2]


def test_spaces_are_those_of_the_task() -> None:
    """Grid sizes, and what the wrappers make of them."""
    one_index, one_box = OneIndex(ENV), OneBox(ENV)
    assert ENV.action_space(PARAMS).nvec.tolist() == SIZES and ENV.num_actions == 7
    assert one_index.action_space(PARAMS).n == one_index.num_actions == 16 * 11 * 9
    assert one_box.action_space(PARAMS).shape == (one_box.num_actions,) == (3,)
    assert one_box.name == one_index.name == ENV.name == "bursty_workload"
    assert one_index.default_params is PARAMS


class Echo:
    """Stands in for an environment: a step returns the indices that reach it."""

    def action_space(self) -> MultiDiscrete:
        """That of the task."""
        return MultiDiscrete(np.array(SIZES))

    def step(self, key: Any, state: Any, action: jax.Array, params: Any) -> jax.Array:
        """The action as it comes."""
        return action


ONE_INDEX: Any = OneIndex(Echo())  # type: ignore[arg-type]
ONE_BOX: Any = OneBox(Echo())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "indices"),
    [
        (0, [0, 0, 0]),
        (5, [0, 0, 5]),
        ((9 * 11 + 10) * 9 + 2, [9, 10, 2]),
        (16 * 11 * 9 - 1, [15, 10, 8]),
        (-3, [0, 0, 0]),
        (9999, [15, 10, 8]),
    ],
)
def test_one_index_counts_through_the_grid(number: int, indices: list[int]) -> None:
    """The last knob fastest; numbers outside mean the nearest inside."""
    assert ONE_INDEX.step(None, None, number).tolist() == [*indices, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("numbers", "indices"),
    [
        ([-1.0, -1.0, -1.0], [0, 0, 0]),
        ([1.0, 1.0, 1.0], [15, 10, 8]),
        ([0.0, 0.0, 0.0], [8, 5, 4]),
        ([-9.0, 9.0, np.nan], [0, 10, 0]),
        ([-0.87, -0.9, 0.99], [1, 0, 8]),
        ([np.inf, -np.inf, 0.2], [15, 0, 5]),
    ],
)
def test_one_box_spans_the_grid(numbers: list[float], indices: list[int]) -> None:
    """Equal parts of -1..1 for each grid point; numbers outside mean the nearest inside."""
    assert ONE_BOX.step(None, None, numbers).tolist() == [*indices, 0, 0, 0, 0]


def test_indices_outside_the_grid_are_clipped() -> None:
    """Inside jit nothing can be refused: the nearest grid point counts, as in ``ServeEnv``."""
    _, state = ENV.reset(episode_key(0), PARAMS)
    wild, inside = (
        ENV.step(episode_key(1), state, jnp.array(action), PARAMS)[0]
        for action in ([99, -5, 2, 7, 7, 7, 0], [15, 0, 2, 0, 0, 0, 0])
    )
    np.testing.assert_array_equal(wild, inside)


def test_bad_tasks_are_named() -> None:
    """``make`` refuses what ``jaxserve.make`` refuses."""
    with pytest.raises(InputError, match="task is 'nope'"):
        make("nope")
    assert GymnaxEnv(PARAMS, "mine").action_space().nvec.tolist() == grid_sizes(PARAMS).tolist()


def _plain(leaf: jax.Array) -> np.ndarray:
    typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)
