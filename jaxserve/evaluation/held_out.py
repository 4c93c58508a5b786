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
from jaxserve.agents.panel import TaskSetup, build_agent
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress, StageProgress, stage_progress
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.evaluation.episode_statistics import (
    EpisodeStatistics,
    Interval,
    WorstHour,
    episode_statistics,
    interval,
    intervals,
    statistics_of,
    worst_class,
    worst_hour,
)
from jaxserve.seeds import episode_keys
from jaxserve.tasks.anchors import Anchors, anchors_score
from jaxserve.tasks.traffic import stream_classes

MAX_EPISODES = 100_000
_JSON_VERSION = 2
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
        """Every statistic over all episodes together and its 95 % interval; and the score of the
        mean reward, which is not the mean of the episodes' scores, because these are clipped one by
        one."""
        found = intervals(self.statistics)
        if self.anchors is None:
            return found
        reward = found["objective"]
        ends = (reward.mean, reward.low, reward.high)
        return {"score": Interval(*(anchors_score(self.anchors, end) for end in ends))} | found

    def worst_hour(self) -> WorstHour:
        """See ``jaxserve.evaluation.episode_statistics.worst_hour``."""
        return worst_hour(self.statistics.sums)


@dataclass(frozen=True)
class Evaluations:
    """Several agents on one task, on the same episodes."""

    setup: TaskSetup
    split: str
    episodes: int
    agents: Mapping[str, Evaluation]
    """by name, in the order asked for."""

    def worst_class(self, agent: str) -> tuple[str, float] | None:
        """Name and SLO attainment, 0..1, of the stream that fares worst with an agent; None where
        no request's fate is known."""
        return worst_class(self.agents[agent].statistics.sums, stream_classes(self.setup.spec))


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
    policies = [build_agent(name, setup, progress) for name in agents]
    found = {}
    for name, policy, player in zip(agents, policies, in_one_program(policies), strict=True):
        steps = stage_progress(f"{setup.spec.name}, {name}", progress)
        played = evaluate(setup, player, episodes, split, steps)
        found[name] = dataclasses.replace(played, policy=policy)
    return Evaluations(setup, split, episodes, found)


def evaluate(
    setup: TaskSetup,
    policy: Policy,
    episodes: int,
    split: str = "test",
    progress: StageProgress | None = None,
) -> Evaluation:
    """Plays ``episodes`` episodes, seeds 0 to ``episodes - 1`` of the split.

    Raises:
      InputError: an unknown split, or a number of episodes out of range.
    """
    check_episodes(episodes)
    size = min(episodes, _CHUNK)
    parts = []
    for first in range(0, episodes, size):
        if progress is not None:
            progress(first, episodes)
        # The last batch is as large as the others, so that one program serves all.
        keys = episode_keys(size, split, first)
        parts.append(episode_statistics(setup.env, rollout(setup.env, policy, keys)).sums)
    sums = jax.tree.map(lambda *columns: np.concatenate(columns)[:episodes], *parts)
    if progress is not None:
        progress(episodes, episodes)
    return Evaluation(policy, statistics_of(sums), setup.anchors)


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
    keys = episode_keys(min(evaluated.episodes, _CHUNK), evaluated.split)
    players = in_one_program([found.policy for found in evaluated.agents.values()])
    player = players[list(evaluated.agents).index(agent)]
    return rollout(evaluated.setup.env, player, keys)


def to_json(evaluations: Sequence[Evaluations]) -> bytes:
    """A JSON text: each statistic over all episodes, its interval and every episode's; the worst
    hour and the worst class; null where there is no value."""
    data = {
        "spec_version": _JSON_VERSION,
        "evaluations": [
            {
                "task": evaluated.setup.spec.name,
                "task_version": evaluated.setup.spec.version,
                "split": evaluated.split,
                "note": evaluated.setup.note,
                "agents": {
                    agent: _statistics_data(found)
                    | {
                        "worst_hour": _worst_hour_data(found.worst_hour()),
                        "worst_class": _worst_class_data(evaluated.worst_class(agent)),
                    }
                    for agent, found in evaluated.agents.items()
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


def _worst_hour_data(found: WorstHour) -> dict[str, Any]:
    data = dict(vars(found))
    return {"span": data.pop("span")} | {name: _plain(value) for name, value in data.items()}


def _worst_class_data(found: tuple[str, float] | None) -> dict[str, Any] | None:
    return None if found is None else {"name": found[0], "slo_attainment": found[1]}


def _interval_data(found: Interval) -> dict[str, Any]:
    return {name: _plain(getattr(found, name)) for name in ("mean", "low", "high")}


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
