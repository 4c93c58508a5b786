"""Evaluations: the same episodes for every agent, scores by the anchors, results as JSON."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from jaxserve.agents.open_loop import StaticPolicy, noop_policy
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.errors import InputError
from jaxserve.evaluation import held_out as evaluation
from jaxserve.evaluation.episode_statistics import STATISTICS, interval
from jaxserve.evaluation.held_out import (
    MAX_EPISODES,
    Evaluations,
    evaluate,
    evaluate_all,
    example_rollout,
    gains,
    to_json,
)
from jaxserve.spaces import make_action
from jaxserve.tasks.anchors import anchors_score
from tests.search_results import anchors_of
from tests.sizes import EPISODES

ANCHORS = anchors_of("bursty_workload", 0.0, 0.6, 0.9, batch_cap=192)


@functools.cache
def setup() -> TaskSetup:
    """The medium task with anchors of our own."""
    return dataclasses.replace(load_setup("bursty_workload"), anchors=ANCHORS, note=None)


@functools.cache
def evaluated() -> Evaluations:
    """Two static agents on test episodes."""
    return evaluate_all(setup(), ("default", "best_static"), EPISODES)


@pytest.mark.slow
def test_every_agent_plays_the_same_episodes() -> None:
    """One entry per agent and episode, in the order asked for."""
    found = evaluated()
    assert list(found.agents) == ["default", "best_static"]
    for item in found.agents.values():
        for name in STATISTICS:
            assert getattr(item.statistics, name).shape == (EPISODES,)


def test_scores_are_those_of_the_anchors() -> None:
    """Each episode's mean reward goes through the anchors, and so does the mean of all, which
    is not the mean of clipped scores; without anchors there is no score."""
    item = evaluated().agents["best_static"]
    expected = [anchors_score(ANCHORS, mean) for mean in item.statistics.objective]
    assert item.scores is not None
    np.testing.assert_allclose(item.scores, expected)
    found = item.summary()
    for end in ("mean", "low", "high"):
        reward = getattr(found["objective"], end)
        assert getattr(found["score"], end) == anchors_score(ANCHORS, reward)
    plain = evaluate(dataclasses.replace(setup(), anchors=None), noop_policy(), EPISODES)
    assert plain.scores is None and "score" not in plain.summary()


def test_gains_are_paired() -> None:
    """An agent's reward above that of the best static setting, episode by episode."""
    default, static = (item.statistics.objective for item in evaluated().agents.values())
    found = gains(evaluated())
    assert list(found) == ["default"]
    assert found["default"].mean == pytest.approx(float(np.mean(default - static)))
    assert found["default"] == interval(default - static)
    alone = dataclasses.replace(evaluated(), agents={"default": evaluated().agents["default"]})
    assert gains(alone) == {}
    (data,) = json.loads(to_json([evaluated()]))["evaluations"]
    assert data["gain_over_best_static"]["default"]["mean"] == found["default"].mean


@pytest.mark.slow
def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes played in batches are those of one batch, the odd last batch included."""
    policy = StaticPolicy(make_action(batch_cap=64))
    monkeypatch.setattr(evaluation, "_CHUNK", EPISODES)
    seen = []
    whole = evaluate(setup(), policy, EPISODES)
    parts = evaluate(setup(), policy, 40, progress=lambda *report: seen.append(report))
    assert len(parts.statistics.objective) == 40
    np.testing.assert_array_equal(parts.statistics.objective[:EPISODES], whole.statistics.objective)
    assert len(np.unique(parts.statistics.objective)) == 40
    assert seen == [(done, 40) for done in (*range(0, 40, EPISODES), 40)]


def test_splits_differ() -> None:
    """Test and validation episodes are not the same."""
    policy = StaticPolicy(make_action(batch_cap=64))
    test, validation = (
        evaluate(setup(), policy, EPISODES, split) for split in ("test", "validation")
    )
    assert not np.isin(test.statistics.objective, validation.statistics.objective).any()


@pytest.mark.parametrize("episodes", [0, -3, MAX_EPISODES + 1])
def test_number_of_episodes(episodes: int) -> None:
    """A number that makes no sense is refused before anything runs."""
    with pytest.raises(
        InputError, match=f"episodes is {episodes}; it must be a whole number from 1 to 100000"
    ):
        evaluate(setup(), noop_policy(), episodes)


def test_example_is_an_evaluated_episode() -> None:
    """What is drawn is what was scored."""
    found = evaluated()
    rewards = np.asarray(example_rollout(found, "best_static").timesteps.reward)
    np.testing.assert_allclose(
        rewards.mean(1), found.agents["best_static"].statistics.objective, rtol=1e-5
    )


def test_json_holds_every_episode() -> None:
    """Plain JSON, with null instead of NaN."""
    first = evaluated().agents["default"]
    hidden = dataclasses.replace(
        first,
        statistics=dataclasses.replace(first.statistics, itl_s=np.full(EPISODES, np.nan)),
    )
    found = dataclasses.replace(evaluated(), agents={"default": hidden})
    data = json.loads(to_json([found]))["evaluations"][0]
    assert (data["task"], data["split"]) == ("bursty_workload", "test")
    default = data["agents"]["default"]
    assert set(default) == {"score", *STATISTICS, "worst_hour", "worst_class"}
    assert default["worst_hour"]["span"] == "episode"  # of less than two hours of traffic
    worst = max(first.statistics.ttft_p99_s)
    assert default["worst_hour"]["ttft_p99_s"] == pytest.approx(worst, rel=1e-5)
    assert default["worst_class"]["name"] in {stream.name for stream in setup().spec.streams}
    assert default["worst_class"]["slo_attainment"] < default["slo_attainment"]["mean"]
    np.testing.assert_allclose(default["objective"]["episodes"], first.statistics.objective)
    assert default["objective"]["low"] <= default["objective"]["mean"]
    assert default["itl_s"] == {
        "mean": None,
        "low": None,
        "high": None,
        "episodes": [None] * EPISODES,
    }


def test_evaluations_repeat() -> None:
    """The same call gives the same numbers."""
    again = evaluate_all(setup(), ("default", "best_static"), EPISODES)
    first, second = (
        jax.tree.leaves([item.statistics for item in found.agents.values()])
        for found in (evaluated(), again)
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
