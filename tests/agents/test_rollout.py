"""Rollouts are the environment's own episodes, stepped by the policy."""

from __future__ import annotations

import jax
import numpy as np

import jaxserve
from jaxserve.agents import rollout as rollout_module
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import RandomPolicy, StaticPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS, make_action
from tests.compiled_env import reset, step
from tests.sizes import EPISODES

ENV = jaxserve.make("bursty_workload")
KEYS = episode_keys(EPISODES, "validation")


def test_shapes_and_end() -> None:
    """[E, T] leaves; only the last window is truncated, none terminates."""
    found = rollout(ENV, HeuristicPolicy(), KEYS)
    horizon = int(ENV.horizon)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(found)} == {(EPISODES, horizon)}
    truncated = np.asarray(found.timesteps.truncated)
    assert truncated[:, -1].all() and not truncated[:, :-1].any()
    assert not np.asarray(found.timesteps.terminated).any()


def test_is_what_a_loop_would_do() -> None:
    """Stepping policy and environment in turn gives the same knobs and the same rewards."""
    policy, episode = HeuristicPolicy(), 3
    found = rollout(ENV, policy, KEYS)
    act = jax.jit(policy.act)
    state, timestep = reset(ENV, KEYS[episode])
    memory = policy.init(ENV)
    for window in range(12):
        action, memory = act(ENV, memory, timestep.observation, jax.random.key(0))
        state, timestep = step(ENV, state, action)
        for knob in KNOBS:
            recorded = getattr(found.actions, knob)[episode, window]
            np.testing.assert_allclose(getattr(action, knob), recorded, rtol=1e-3, err_msg=knob)
        recorded = found.timesteps.reward[episode, window]
        np.testing.assert_allclose(timestep.reward, recorded, rtol=1e-3, atol=1e-4)


def test_traffic_is_the_same_for_every_policy() -> None:
    """Two policies on one key face the same requests."""
    arrivals = [
        np.asarray(rollout(ENV, policy, KEYS).timesteps.metrics.arrivals)
        for policy in (HeuristicPolicy(), RandomPolicy())
    ]
    np.testing.assert_array_equal(*arrivals)


def test_locked_knobs_are_reported_at_their_locked_value() -> None:
    """Actions are those that acted, not those that were asked for."""
    asked = StaticPolicy(make_action(quantization_tier=2, batch_cap=77))
    actions = rollout(ENV, asked, KEYS).actions
    for knob, active in zip(KNOBS, np.asarray(ENV.knob_active), strict=True):
        source = asked.action if active else ENV.locked
        assert (np.asarray(getattr(actions, knob)) == np.asarray(getattr(source, knob))).all()


def test_one_program_serves_all_tasks() -> None:
    """Neither a policy's numbers nor the task and its hardware compile it anew."""
    rollout(ENV, StaticPolicy(make_action()), KEYS)
    before = rollout_module._rollout._cache_size()
    rollout(ENV, StaticPolicy(make_action(batch_cap=8)), KEYS)
    rollout(jaxserve.make("static_workload"), StaticPolicy(make_action()), KEYS)
    elsewhere = jaxserve.make("adversarial_multitenant", hardware="l40s-48gb")
    rollout(elsewhere, StaticPolicy(make_action()), KEYS)
    assert rollout_module._rollout._cache_size() == before
