"""Agents on held-out episodes: the same seeds for each, statistics with intervals for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.panel import Setting
from jaxserve.agents.policy import Policy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.statistics import (
    EpisodeStatistics,
    Interval,
    episode_statistics,
    interval,
    intervals,
)
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.tasks.anchors import anchors_score

_CHUNK = 32  # episodes per compiled batch
MAX_EPISODES = 100_000


@dataclass(frozen=True)
class Evaluation:
    """One agent on one task."""

    task: str
    agent: str
    statistics: EpisodeStatistics
    score: NDArray[np.float64] | None
    """float64[E], each episode's score; None without anchors."""

    def summary(self) -> dict[str, Interval]:
        """Mean and 95 % interval of every statistic, and of the score where there is one."""
        scored = {} if self.score is None else {"score": interval(self.score)}
        return {**scored, **intervals(self.statistics)}


def evaluate(
    setting: Setting,
    policy: Policy,
    episodes: int,
    split: str = "test",
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Plays ``episodes`` episodes, seeds 0 to ``episodes - 1`` of the split.

    Args:
      progress: called with the number of episodes that were finished since the last call.

    Raises:
      InputError: an unknown split, or a number of episodes out of range.
    """
    if not 1 <= episodes <= MAX_EPISODES:
        raise InputError(f"episodes is {episodes}; it must be from 1 to {MAX_EPISODES}")
    size = min(episodes, _CHUNK)
    parts = []
    for first in range(0, episodes, size):
        # The last batch is as large as the others, so that one program serves all.
        keys = episode_keys(size, split, first)
        parts.append(episode_statistics(setting.env, rollout(setting.env, policy, keys).timesteps))
        if progress is not None:
            progress(min(size, episodes - first))
    statistics = jax.tree.map(lambda *columns: np.concatenate(columns)[:episodes], *parts)
    score = None
    if setting.anchors is not None:
        anchors = setting.anchors
        score = np.array([anchors_score(anchors, mean) for mean in statistics.objective.tolist()])
    return Evaluation(setting.env.name, policy.name, statistics, score)


def example_rollout(setting: Setting, policy: Policy, episodes: int, split: str) -> Rollout:
    """The first episodes that ``evaluate`` plays, window by window, by the same compiled program."""
    return rollout(setting.env, policy, episode_keys(min(episodes, _CHUNK), split))


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Plain data: each statistic's mean, interval and episodes; null where there is no value."""
    columns = {} if evaluation.score is None else {"score": evaluation.score}
    columns |= vars(evaluation.statistics)
    return {
        "task": evaluation.task,
        "agent": evaluation.agent,
        "statistics": {
            name: {
                "mean": _plain(found.mean),
                "low": _plain(found.low),
                "high": _plain(found.high),
                "episodes": [_plain(value) for value in columns[name].tolist()],
            }
            for name, found in evaluation.summary().items()
        },
    }


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
