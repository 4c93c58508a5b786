"""Agents on held-out episodes: the same seeds for each, statistics with intervals for all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.agents.choice import in_one_program
from jaxserve.agents.panel import TaskSetup, build_agent, find_best_static, static_policy
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress, StageProgress, stage_progress
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.search import StaticSearch
from jaxserve.evaluation.episode_statistics import (
    EpisodeStatistics,
    Interval,
    episode_statistics,
    interval,
    intervals,
)
from jaxserve.tasks.anchors import Anchors, anchors_score

MAX_EPISODES = 100_000
_JSON_VERSION = 1
_CHUNK = 32  # episodes per compiled batch


@dataclass(frozen=True)
class Evaluation:
    """One policy on one task."""

    policy: Policy
    statistics: EpisodeStatistics
    anchors: Anchors | None
    """None where scores mean nothing."""

    @property
    def scores(self) -> NDArray[np.float64] | None:
        """float64[E], each episode's score by itself, which is clipped; None without anchors."""
        if self.anchors is None:
            return None
        rewards = self.statistics.objective.tolist()
        return np.array([anchors_score(self.anchors, reward) for reward in rewards])

    def summary(self) -> dict[str, Interval]:
        """Mean and 95 % interval of every statistic; and the score of the mean reward, which is not
        the mean of the episodes' scores, because these are clipped one by one."""
        found = intervals(self.statistics)
        if self.anchors is None:
            return found
        reward = found["objective"]
        ends = (reward.mean, reward.low, reward.high)
        return {"score": Interval(*(anchors_score(self.anchors, end) for end in ends))} | found


@dataclass(frozen=True)
class Evaluations:
    """Several agents on one task, on the same episodes."""

    setup: TaskSetup
    split: str
    episodes: int
    """episodes that each agent played."""
    agents: Mapping[str, Evaluation]
    """by name, in the order asked for."""
    search: StaticSearch | None = None
    """the search for the best static setting; None where anchors hold it, or nobody asked."""


def evaluate_all(
    setup: TaskSetup,
    agents: Sequence[str],
    episodes: int,
    split: str = "test",
    progress: Progress | None = None,
) -> Evaluations:
    """Evaluates agents by name, see ``jaxserve.agents.panel``.

    Raises:
      InputError: as ``evaluate``; also an unknown name.
    """
    search = None
    if "best_static" in agents and setup.anchors is None:
        search = find_best_static(setup, progress)
    policies = [
        static_policy(search)
        if search is not None and name == "best_static"
        else build_agent(name, setup, progress)
        for name in agents
    ]
    found = {}
    for name, policy, player in zip(agents, policies, in_one_program(policies), strict=True):
        steps = stage_progress(f"{setup.spec.name}, {name}", progress)
        played = evaluate(setup, player, episodes, split, steps)
        found[name] = dataclasses.replace(played, policy=policy)
    played = max(len(each.statistics.objective) for each in found.values())
    return Evaluations(setup, split, played, found, search)


def evaluate(
    setup: TaskSetup,
    policy: Policy,
    episodes: int,
    split: str = "test",
    progress: StageProgress | None = None,
) -> Evaluation:
    """Plays ``episodes`` episodes of the split; fewer where a recording has fewer that do not
    overlap, see ``TaskSetup.episodes``.

    Raises:
      InputError: an unknown split, or a number of episodes out of range.
    """
    check_episodes(episodes)
    env, keys = setup.episodes(split, episodes)
    count = len(keys)
    size = min(count, _CHUNK)
    parts = []
    for first in range(0, count, size):
        if progress is not None:
            progress(first, count)
        # The last batch is as large as the others, so that one program serves all.
        batch = keys[np.arange(first, first + size) % count]
        parts.append(episode_statistics(env, rollout(env, policy, batch).timesteps))
    statistics = jax.tree.map(lambda *columns: np.concatenate(columns)[:count], *parts)
    if progress is not None:
        progress(count, count)
    return Evaluation(policy, statistics, setup.anchors)


def gains(evaluated: Evaluations) -> dict[str, Interval]:
    """Mean reward of each agent above that of best_static in the same episodes.

    Returns:
      by agent, without best_static itself; nothing where it has not played.
    """
    rewards = {agent: found.statistics.objective for agent, found in evaluated.agents.items()}
    static = rewards.pop("best_static", None)
    if static is None:
        return {}
    return {agent: interval(reward - static) for agent, reward in rewards.items()}


def check_episodes(episodes: int) -> None:
    """Raises InputError unless ``episodes`` is from 1 to ``MAX_EPISODES``."""
    checks.whole("episodes", episodes, 1, MAX_EPISODES)


def example_rollout(evaluated: Evaluations, agent: str) -> Rollout:
    """Episodes of an agent from seed 0 on, window by window."""
    # As many episodes as in a batch of ``evaluate``, whose compiled program plays them.
    env, keys = evaluated.setup.episodes(evaluated.split, evaluated.episodes)
    players = in_one_program([found.policy for found in evaluated.agents.values()])
    player = players[list(evaluated.agents).index(agent)]
    return rollout(env, player, keys[:_CHUNK])


def to_json(evaluations: Sequence[Evaluations]) -> bytes:
    """A JSON text: each statistic's mean, interval and episodes; null where there is no value."""
    data = {
        "spec_version": _JSON_VERSION,
        "evaluations": [
            {
                "task": evaluated.setup.spec.name,
                "task_version": evaluated.setup.spec.version,
                "split": evaluated.split,
                "note": evaluated.setup.note,
                "agents": {
                    agent: _statistics_data(found) for agent, found in evaluated.agents.items()
                },
                "gain_over_best_static": {
                    agent: _interval_data(found) for agent, found in gains(evaluated).items()
                },
            }
            for evaluated in evaluations
        ],
    }
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def _statistics_data(evaluation: Evaluation) -> dict[str, Any]:
    columns = vars(evaluation.statistics)
    scores = evaluation.scores
    if scores is not None:
        columns = columns | {"score": scores}
    return {
        name: _interval_data(found) | {"episodes": [_plain(value) for value in columns[name]]}
        for name, found in evaluation.summary().items()
    }


def _interval_data(found: Interval) -> dict[str, Any]:
    return {name: _plain(getattr(found, name)) for name in ("mean", "low", "high")}


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
