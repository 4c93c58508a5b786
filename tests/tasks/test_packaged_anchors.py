"""The packaged anchors rank a panel of policies as they should, and no exploit beats them."""

from __future__ import annotations

import functools
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import (
    FlappingPolicy,
    RandomPolicy,
    StaticPolicy,
    exploit_policies,
)
from jaxserve.env import ServeEnv
from jaxserve.grading import grade_actions
from jaxserve.seeds import episode_keys
from jaxserve.tasks.anchors import Anchors, anchors_score, load_anchors
from jaxserve.tasks.spec import load_task
from jaxserve.types import ServeAction

GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")
EPISODES = 24


@functools.cache
def panel_rewards(task: str) -> dict[str, np.ndarray]:
    """float64[EPISODES], mean reward of each policy on the first test seeds."""
    spec = load_task(task)
    env = jaxserve.make(spec)
    keys = episode_keys(EPISODES, "test")
    anchors = load_anchors(spec)
    policies = exploit_policies() | {
        "default": StaticPolicy(jaxserve.make_action(**spec.locked)),
        "best_static": StaticPolicy(jaxserve.make_action(**anchors.best_static_action)),
    }
    actions = {name: scripted(policy, spec.horizon) for name, policy in policies.items()}
    actions["random"] = random_actions(env, spec.horizon)
    crowd = jax.tree.map(lambda *leaf: jnp.concatenate(leaf), *actions.values())
    rewards = mean_rewards(env, jnp.tile(keys, len(actions)), crowd)
    return dict(zip(actions, np.asarray(rewards).reshape(len(actions), EPISODES), strict=True))


def scripted(policy: StaticPolicy | FlappingPolicy, horizon: int) -> ServeAction:
    """Actions [EPISODES, T] of a policy that looks at nothing."""
    if isinstance(policy, StaticPolicy):
        first = second = policy.action
    else:
        first, second = policy.first, policy.second
    even = jnp.arange(horizon) % 2 == 0
    return jax.tree.map(
        lambda a, b: jnp.broadcast_to(jnp.where(even, a, b), (EPISODES, horizon)), first, second
    )


def random_actions(env: ServeEnv, horizon: int) -> ServeAction:
    """Actions [EPISODES, T] of the random agent."""
    _, timestep = env.reset(jax.random.key(0))

    def act(key: jax.Array) -> ServeAction:
        return RandomPolicy().act(env, (), timestep.observation, key)[0]

    keys = jax.random.split(jax.random.key(7), (EPISODES, horizon))
    return jax.jit(jax.vmap(jax.vmap(act)))(keys)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def mean_rewards(env: ServeEnv, key: jax.Array, actions: ServeAction) -> jax.Array:
    """Mean reward per window of an episode."""
    return jnp.mean(jax.lax.scan(env.step, env.reset(key)[0], actions)[1].reward)


@pytest.fixture(params=GRADED)
def task(request: pytest.FixtureRequest) -> str:
    """A graded task."""
    return request.param


def mean_score(anchors: Anchors, rewards: np.ndarray) -> float:
    """Mean of the episodes' scores."""
    return float(np.mean([anchors_score(anchors, float(reward)) for reward in rewards]))


def test_reward_and_score_rank_the_panel_alike(task: str) -> None:
    """No-op < random < default < best static < oracle, by mean reward and by mean score."""
    anchors, rewards = load_anchors(load_task(task)), panel_rewards(task)
    order = ["noop", "random", "default", "best_static"]
    by_reward = {name: float(rewards[name].mean()) for name in order} | {"oracle": anchors.oracle}
    for worse, better in pairwise(by_reward):
        assert by_reward[worse] < by_reward[better], by_reward
    by_score = {name: mean_score(anchors, rewards[name]) for name in order} | {"oracle": 1.0}
    # Random knobs are the zero of the scale, so what is worse cannot score less.
    assert by_score["noop"] <= by_score["random"], by_score
    for worse, better in pairwise([*order[1:], "oracle"]):
        assert by_score[worse] < by_score[better], by_score


def test_anchors_are_what_their_agents_earn(task: str) -> None:
    """The frozen numbers are those of the packaged task, within the spread over episodes."""
    anchors, rewards = load_anchors(load_task(task)), panel_rewards(task)
    for name, frozen in (("random", anchors.random), ("best_static", anchors.best_static)):
        error = rewards[name].std(ddof=1) / np.sqrt(EPISODES)
        assert abs(rewards[name].mean() - frozen) < 4.0 * error + 0.01


def test_no_exploit_beats_the_best_static_setting(task: str) -> None:
    """Reject-all, batch 1, all at maximum, INT4 always, flapping: none is worth a good score."""
    anchors, rewards = load_anchors(load_task(task)), panel_rewards(task)
    best = rewards["best_static"]
    for name in exploit_policies():
        ahead = rewards[name] - best
        error = ahead.std(ddof=1) / np.sqrt(EPISODES)
        assert ahead.mean() <= 3.0 * error + 1e-3, name
    for name in ("noop", "batch_1", "reject_all"):
        assert mean_score(anchors, rewards[name]) < 0.05, name


def test_grades_are_those_of_the_panel(task: str) -> None:
    """The grader's score of the best static setting is the panel's."""
    anchors = load_anchors(load_task(task))
    actions = [dict(anchors.best_static_action)] * load_task(task).horizon
    grade = grade_actions(task, 0, actions)
    reward = panel_rewards(task)["best_static"][0]
    assert grade.mean_reward == pytest.approx(reward, rel=1e-3)
    assert grade.score == pytest.approx(anchors_score(anchors, reward), abs=2e-3)
