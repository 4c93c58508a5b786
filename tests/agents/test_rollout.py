"""Rollouts are the environment's own episodes, stepped by the policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxserve
from jaxserve.agents import rollout as rollout_module
from jaxserve.agents.baselines import RandomPolicy, StaticPolicy
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS, make_action

EPISODES = 16
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


def test_actions_replay_the_episode() -> None:
    """The recorded actions, stepped one by one, give the recorded rewards."""
    found = rollout(ENV, HeuristicPolicy(), KEYS)
    for episode in (0, 3):
        state, _ = ENV.reset(KEYS[episode])
        actions = jax.tree.map(lambda leaf, episode=episode: leaf[episode], found.actions)
        _, timesteps = jax.lax.scan(ENV.step, state, actions)
        np.testing.assert_allclose(
            timesteps.reward, found.timesteps.reward[episode], rtol=1e-4, atol=1e-5
        )


def test_policies_see_the_last_observation() -> None:
    """A policy that copies the step index into a knob sees 0 at reset, then 1, 2, ..."""

    class StepIndex(RandomPolicy):
        def act(self, env, memory, observation, key):
            depth = (observation.step_index % 9).astype(jnp.int32)
            action = make_action()
            return jaxserve.ServeAction(**{**vars(action), "speculation_depth": depth}), memory

    jax.tree_util.register_pytree_node(StepIndex, lambda _: ((), None), lambda *_: StepIndex())
    depth = np.asarray(rollout(ENV, StepIndex(), KEYS[:2]).actions.speculation_depth)
    np.testing.assert_array_equal(depth, np.tile(np.arange(int(ENV.horizon)) % 9, (2, 1)))


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


def test_one_program_serves_all_names() -> None:
    """Neither another policy's name nor another task of the same structure compiles anew."""
    rollout(ENV, StaticPolicy(make_action(), "one"), KEYS)
    before = rollout_module._rollout._cache_size()
    rollout(ENV, StaticPolicy(make_action(batch_cap=8), "two"), KEYS)
    rollout(jaxserve.make("static_workload"), StaticPolicy(make_action(), "one"), KEYS)
    assert rollout_module._rollout._cache_size() == before
