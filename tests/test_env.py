"""The environment's contract: shapes, bounds, what is conserved, what is refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.errors import InputError
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.sim.traffic.workload import draw_arrivals
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS, OBSERVATION_BOUNDS
from jaxserve.tasks.spec import load_task, task_names
from jaxserve.types import ServeAction, TimeStep
from tests.env_episodes import (
    GRADED,
    HORIZON,
    WINDOWS,
    assert_identical,
    constant_actions,
    environment,
    leaves,
    play_alone,
    random_actions,
    reset,
    step,
)
from tests.sizes import each_task


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def requests(env: ServeEnv, key: jax.Array) -> jax.Array:
    """Arrivals of an episode, float32[T, K, F]."""

    def window(state, index):
        state, arrivals = draw_arrivals(env.workload, state, index, env.ticks, env.window_s)
        return state, arrivals.counts

    return jax.lax.scan(window, env.reset(key)[0].workload, np.arange(HORIZON))[1]


def assert_in_bounds(timestep: TimeStep) -> None:
    """Every leaf finite, every observation inside its bound."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(timestep):
        assert np.isfinite(np.asarray(leaf)).all(), jax.tree_util.keystr(path)
    for name, bound in OBSERVATION_BOUNDS.items():
        entry = np.asarray(getattr(timestep.observation, name))
        assert entry.dtype == np.float32
        assert np.all((entry >= bound.low) & (entry <= bound.high)), name


@pytest.mark.parametrize("task", each_task())
def test_random_actions_keep_the_contract(task: str) -> None:
    """Finite and in bounds in every window; never terminated; truncated exactly at the horizon."""
    env = environment(task)
    _, timesteps = play_alone(env, episode_key(1), random_actions(1))
    assert_in_bounds(timesteps)
    assert not np.asarray(timesteps.terminated).any()
    ends = np.arange(1, WINDOWS + 1) >= HORIZON
    np.testing.assert_array_equal(timesteps.truncated, ends)
    np.testing.assert_array_equal(timesteps.observation.step_index, np.arange(1, WINDOWS + 1))
    _, first = reset(env, episode_key(1))
    assert_in_bounds(first)
    assert float(first.reward) == 0.0
    assert not bool(first.truncated)


@pytest.mark.parametrize("task", GRADED)
def test_ten_times_the_load_stays_in_bounds(task: str) -> None:
    """Overload fills queues, not observations with infinities."""
    env = environment(task, rate_scale=10.0)
    _, timesteps = play_alone(env, episode_key(2), random_actions(2))
    assert_in_bounds(timesteps)
    assert np.asarray(timesteps.metrics.rejected).sum() > 0.0


def test_requests_are_conserved() -> None:
    """What arrived is completed, rejected, lost, waiting or running, whatever the knobs do."""
    for task in GRADED:
        _, timesteps = play_alone(environment(task), episode_key(3), random_actions(3))
        metrics = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timesteps.metrics)
        out = (metrics.completed + metrics.rejected + metrics.lost).cumsum(axis=0)
        inside = metrics.waiting + metrics.running
        arrived = metrics.arrivals.cumsum(axis=0)
        np.testing.assert_allclose(out + inside, arrived, rtol=1e-3, atol=0.05)


def test_reward_is_the_sum_of_its_parts_and_goodput_is_bounded() -> None:
    """Nothing earns more than what arrived is worth."""
    for task in GRADED:
        env = environment(task)
        _, timesteps = play_alone(env, episode_key(4), random_actions(4))
        parts = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timesteps.parts)
        total = parts.throughput + parts.latency + parts.slo + parts.cost + parts.memory
        np.testing.assert_allclose(timesteps.reward, total, atol=1e-5)
        value = np.asarray(timesteps.metrics.arrivals, np.float64) @ np.asarray(env.reward.value)
        offered = value.sum() / float(env.reward.expected_value)
        assert 0.0 <= (parts.throughput + parts.slo).sum() <= offered * (1.0 + 1e-4)


def test_states_keep_their_types_and_programs_are_compiled_once() -> None:
    """Reset and step agree in structure, shape, dtype and weakness, across tasks and seeds."""
    signatures = set()
    for task in GRADED:
        env = environment(task)
        state, timestep = reset(env, episode_key(0))
        for _ in range(3):
            signatures.add(str((jax.tree.structure((state, timestep)), types((state, timestep)))))
            state, timestep = step(env, state, jaxserve.make_action())
        step(env, state, jaxserve.make_action(batch_cap=64, quantization_tier=1))
    assert len(signatures) == 1


def types(tree: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype and weakness of every leaf."""
    return [
        (leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False))
        for leaf in jax.tree.leaves(tree)
    ]


def test_changed_copies() -> None:
    """Of what policies and wrappers take apart, as a method."""
    env = jaxserve.make("static_workload")
    state, timestep = env.reset(jax.random.key(0))
    assert int(env.locked.replace(batch_cap=jnp.int32(7)).batch_cap) == 7
    assert int(state.replace(step=jnp.int32(3)).step) == 3
    assert float(timestep.replace(reward=jnp.float32(0.5)).reward) == 0.5
    assert env.replace(horizon=jnp.int32(9)).horizon == 9 != env.horizon


def test_an_environments_state_is_small() -> None:
    """Thousands of episodes fit: below 16 KB each."""
    for task in task_names():
        state, _ = reset(environment(task), episode_key(0))
        assert sum(leaf.nbytes for _, leaf in leaves(state)) < 16 * 1024


def test_fifty_seeds_are_fifty_workloads() -> None:
    """No two seeds of a split, nor the same seed of two splits, bring the same requests."""
    for task in GRADED:
        traffic = [
            np.asarray(requests(environment(task), episode_keys(50, split)))
            for split in ("train", "validation", "test")
        ]
        assert len({episode.tobytes() for split in traffic for episode in split}) == 150


def test_traffic_does_not_depend_on_actions() -> None:
    """Two policies on one key face the same requests."""
    env = environment("adversarial_multitenant")
    runs = [play_alone(env, episode_key(7), random_actions(s))[1] for s in (7, 8)]
    np.testing.assert_array_equal(runs[0].metrics.arrivals, runs[1].metrics.arrivals)
    np.testing.assert_array_equal(runs[0].metrics.regime, runs[1].metrics.regime)
    assert not np.array_equal(runs[0].reward, runs[1].reward)


def test_a_window_past_the_end_is_an_ordinary_window() -> None:
    """Stepping on after truncation continues the traffic; it neither fails nor starts anew."""
    env = environment("bursty_workload")
    _, timesteps = play_alone(env, episode_key(11), constant_actions())
    late = jax.tree.map(lambda leaf: leaf[HORIZON:], timesteps.metrics)
    assert np.asarray(late.arrivals).sum() > 0.0
    assert np.asarray(late.completed).sum() > 0.0


def test_knobs_outside_their_range_act_as_the_nearest_bound() -> None:
    """What acts in a step is always an action inside the bounds, of the right types."""
    env = environment("adversarial_multitenant")
    effective = jax.jit(ServeEnv.effective_action)
    for value, edge in ((np.inf, "high"), (1e9, "high"), (-np.inf, "low"), (np.nan, "low")):
        wild = ServeAction(**dict.fromkeys(KNOBS, jnp.float32(value)))
        edges = {knob: getattr(bound, edge) for knob, bound in ACTION_BOUNDS.items()}
        tame = jaxserve.make_action(**edges | {"replicas": 0})
        assert_identical(effective(env, wild), tame)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (None, "action is a NoneType; it must be a ServeAction"),
        (DEFAULT_ACTION, "action is a dict; it must be a ServeAction"),
        (ServeAction(**DEFAULT_ACTION | {"batch_cap": "8"}), "batch_cap is '8'; it must be a num"),
        (
            ServeAction(**DEFAULT_ACTION | {"batch_cap": None}),
            "batch_cap is None; it must be a num",
        ),
        (
            ServeAction(**DEFAULT_ACTION | {"quantization_tier": np.zeros(3)}),
            r"quantization_tier has shape \(3,\); an action is one number for each knob",
        ),
    ],
)
def test_what_is_not_one_action_is_refused(action: Any, message: str) -> None:
    """Wrong types and shapes are one sentence, in a program and out of one."""
    env = environment("static_workload")
    state, _ = env.reset(episode_key(0))
    with pytest.raises(InputError, match=message):
        env.step(state, action)
    with pytest.raises(InputError, match=message):
        jax.jit(lambda state: env.step(state, action))(state)


def test_what_is_not_one_key_is_refused() -> None:
    """Numbers, keys of the old kind and batches of keys are one sentence."""
    keys: list[Any] = [None, 3, jax.random.PRNGKey(0), jax.random.split(jax.random.key(0))]
    for key in keys:
        with pytest.raises(InputError, match=r"key is [\s\S]*; it must be one typed key"):
            environment("static_workload").reset(key)


def test_limits_of_a_task_hold() -> None:
    """Whatever is asked for, an active knob stays inside; a locked one is at its value anyway."""
    limits = {
        "batch_cap": (4, 24),
        "kv_budget_fraction": (0.5, 0.75),
        "speculation_depth": (1, 2),
    }
    spec = load_task("static_workload")
    asked = random_actions(seed=5)
    acts = jax.vmap(jaxserve.make(dataclasses.replace(spec, limits=limits)).effective_action)(asked)
    for knob in ("batch_cap", "kv_budget_fraction"):
        value = getattr(asked, knob)
        low, high = np.asarray(limits[knob], value.dtype)
        np.testing.assert_array_equal(getattr(acts, knob), np.clip(value, low, high))
    assert set(np.asarray(acts.speculation_depth)) == {DEFAULT_ACTION["speculation_depth"]}
    free = jax.vmap(jaxserve.make(spec).effective_action)(asked)
    np.testing.assert_array_equal(free.batch_cap, asked.batch_cap)


def test_locked_knobs_do_nothing() -> None:
    """A task's inactive knobs keep their locked value, whatever the agent sets."""
    env = environment("static_workload")
    turned = jaxserve.make_action(
        speculation_depth=8, quantization_tier=2, prefill_decode_split=3, priority_routing=1
    )
    effective = env.effective_action(turned)
    assert {knob: float(getattr(effective, knob)) for knob in KNOBS} == DEFAULT_ACTION


def test_features_are_named_finite_and_small() -> None:
    """What a network sees is one float32 per name, of the order of one."""
    for task in GRADED:
        env = environment(task, rate_scale=10.0)
        _, timesteps = play_alone(env, episode_key(2), random_actions(2))
        features = np.asarray(jax.vmap(env.observe)(timesteps.observation))
        assert features.shape == (WINDOWS, len(FEATURE_NAMES))
        assert features.dtype == np.float32
        assert np.abs(features).max() <= 3.0
        assert env.observe(reset(env, episode_key(0))[1].observation).shape == (len(FEATURE_NAMES),)
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)


def test_the_median_itl_is_not_moved_by_a_few_long_iterations() -> None:
    """While prefill is rare the median is that of plain steps; networks see the mean."""
    env = environment("bursty_workload")
    calm = jax.tree.map(lambda value: jnp.full(WINDOWS, value), jaxserve.make_action(batch_cap=64))
    _, timesteps = play_alone(env, episode_key(0), calm)
    seen, metrics = timesteps.observation, timesteps.metrics
    np.testing.assert_allclose(seen.mean_itl_ms, 1000.0 * metrics.itl_s, rtol=1e-6)
    np.testing.assert_allclose(seen.p50_itl_ms, 1000.0 * metrics.p50_itl_s, rtol=1e-6)
    median, mean = np.asarray(seen.p50_itl_ms), np.asarray(seen.mean_itl_ms)
    assert np.median(median) < 0.9 * np.median(mean)
    features = jax.vmap(env.observe)
    moved = dataclasses.replace(seen, p50_itl_ms=2.0 * seen.p50_itl_ms)
    np.testing.assert_array_equal(features(moved), features(seen))


def test_randomised_hardware_differs_by_episode_and_is_off_by_default() -> None:
    """Each episode draws its own slowness, inside the width that was asked for."""
    keys = episode_keys(64)
    scale = jax.vmap(lambda env, key: env.reset(key)[0].sim.time_scale, (None, 0))
    np.testing.assert_array_equal(scale(environment("bursty_workload"), keys), 1.0)
    env = jaxserve.make("bursty_workload", overrides={"randomisation": 0.15})
    drawn = np.asarray(scale(env, keys))
    assert len(np.unique(drawn)) > 60
    assert np.exp(-0.15) <= drawn.min() < 0.9 < 1.1 < drawn.max() <= np.exp(0.15)
