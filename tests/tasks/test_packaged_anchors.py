"""The packaged anchors rank a panel of policies as they should, and no exploit beats them."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest

import jaxserve
from jaxserve.agents.choice import in_one_program
from jaxserve.agents.open_loop import RandomPolicy, StaticPolicy, exploit_policies
from jaxserve.agents.rollout import rollout
from jaxserve.grading import grade_actions
from jaxserve.seeds import episode_keys
from jaxserve.tasks.anchors import Anchors, anchors_score, load_anchors
from jaxserve.tasks.spec import load_task

pytestmark = pytest.mark.slow
GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")
EPISODES = 24


@functools.cache
def panel_rewards(task: str) -> dict[str, np.ndarray]:
    """float32[EPISODES], mean reward of each policy on the first test seeds."""
    spec = load_task(task)
    env = jaxserve.make(spec)
    keys = episode_keys(EPISODES, "test")
    anchors = load_anchors(spec)
    policies = exploit_policies() | {
        "default": StaticPolicy(jaxserve.make_action(**spec.locked)),
        "best_static": StaticPolicy(jaxserve.make_action(**anchors.best_static_action)),
        "random": RandomPolicy(),
    }
    players = zip(policies, in_one_program(list(policies.values())), strict=True)
    return {
        name: np.asarray(rollout(env, player, keys).timesteps.reward).mean(axis=1)
        for name, player in players
    }


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
