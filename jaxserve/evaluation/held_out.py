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
from jaxserve.agents.panel import build_agent, find_best_static, static_policy
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress, StageProgress, stage_progress
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.search import StaticSearch
from jaxserve.agents.task_setup import TaskSetup
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
from jaxserve.sim.fast.latency import longest_ttft_s
from jaxserve.tasks.anchors import Anchors, anchors_score

MAX_EPISODES = 100_000
_JSON_VERSION = 2
_CHUNK = 32  # episodes per compiled batch


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of a policy on a task."""

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
        """Every statistic over all episodes together and its 95 % interval, and the score of the
        mean reward. That is not the mean of the episodes' scores, which are clipped one by one."""
        found = intervals(self.statistics)
        if self.anchors is None:
            return found
        reward = found["objective"]
        ends = (reward.mean, reward.low, reward.high)
        return {"score": Interval(*(anchors_score(self.anchors, end) for end in ends))} | found

    def worst_hour(self) -> WorstHour:
        """Worst hour, see ``jaxserve.evaluation.episode_statistics.worst_hour``."""
        return worst_hour(self.statistics.sums)


@dataclass(frozen=True)
class Evaluations:
    """Several agents on one task, on the same episodes."""

    setup: TaskSetup
    split: str
    episodes: int
    """episodes that each agent played."""
    agents: Mapping[str, Evaluation]
    """evaluations by agent, in the order asked for."""
    search: StaticSearch | None = None
    """the search for the best static setting; None where anchors hold it, or no agent needs it."""
    in_doubt: tuple[Mapping[str, NDArray[np.float64]], ...] = ()
    """mean rewards float64[E] by agent, on hardware slower and faster by the doubt of the latency
    table; empty where nothing is in doubt, or no gain is asked for."""

    @property
    def longest_ttft_s(self) -> float:
        """Longest TTFT that is resolved, s; a longer figure says only that it is longer."""
        env = self.setup.env
        return longest_ttft_s(env.window_s / env.ticks)

    def worst_class(self, agent: str) -> tuple[str, float] | None:
        """Name and SLO attainment, 0..1, of the stream that fares worst with an agent; None where
        no request's fate is known."""
        return worst_class(self.agents[agent].statistics.sums, self.setup.kinds)


def evaluate_all(
    setup: TaskSetup,
    agents: Sequence[str],
    episodes: int,
    split: str = "test",
    progress: Progress | None = None,
) -> Evaluations:
    """Evaluates agents by name, see ``jaxserve.agents.panel``.

    Args:
      setup: the task.
      agents: names, see ``jaxserve.agents.panel.agent_names``.
      episodes: episodes that each agent plays, at most.
      split: ``train``, ``validation`` or ``test``.
      progress: told about searches and episodes.

    Raises:
      InputError: as ``evaluate``; also an unknown name.
    """
    searches = "best_static" in agents and setup.anchors is None
    # An agent that cannot play is refused before the search, which takes a while.
    built = {
        name: build_agent(name, setup, progress)
        for name in agents
        if not (searches and name == "best_static")
    }
    search = find_best_static(setup, progress) if searches else None
    if search is not None:
        built["best_static"] = static_policy(search)
    policies = [built[name] for name in agents]
    players = in_one_program(policies)

    def played(setup: TaskSetup, stage: str = "") -> dict[str, Evaluation]:
        found = {}
        for name, policy, player in zip(agents, policies, players, strict=True):
            steps = stage_progress(f"{setup.spec.name}, {name}{stage}", progress)
            evaluation = evaluate(setup, player, episodes, split, steps)
            found[name] = dataclasses.replace(evaluation, policy=policy)
        return found

    found, in_doubt = played(setup), []
    if setup.doubt and "best_static" in agents and len(agents) > 1:
        for stage, scale in (
            (", slower", 1.0 + setup.doubt),
            (", faster", 1.0 / (1.0 + setup.doubt)),
        ):
            env = setup.env.replace(time_scale=scale * setup.env.time_scale)
            there = played(dataclasses.replace(setup, env=env), stage)
            in_doubt.append({name: each.statistics.objective for name, each in there.items()})
    count = max(len(each.statistics.objective) for each in found.values())
    return Evaluations(setup, split, count, found, search, tuple(in_doubt))


def evaluate(
    setup: TaskSetup,
    policy: Policy,
    episodes: int,
    split: str = "test",
    progress: StageProgress | None = None,
) -> Evaluation:
    """Plays ``episodes`` episodes of the split; fewer where a recording has fewer that do not
    overlap, see ``TaskSetup.episodes``.

    Args:
      setup: the task.
      policy: a frozen dataclass that is a pytree.
      episodes: episodes to play, at most.
      split: ``train``, ``validation`` or ``test``.
      progress: told about episodes.

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
        parts.append(episode_statistics(env, rollout(env, policy, batch)).sums)
    sums = jax.tree.map(lambda *columns: np.concatenate(columns)[:count], *parts)
    if progress is not None:
        progress(count, count)
    return Evaluation(policy, statistics_of(sums), setup.anchors)


def gains(evaluated: Evaluations) -> dict[str, Interval]:
    """Mean reward of each agent above that of best_static in the same episodes. The interval
    contains those on slower and faster hardware, where the latency table is in doubt.

    Returns:
      by agent, without best_static itself; nothing where it has not played.
    """
    rewards = {agent: found.statistics.objective for agent, found in evaluated.agents.items()}
    if "best_static" not in rewards:
        return {}
    found = {}
    for agent in rewards.keys() - {"best_static"}:
        own, *others = (
            interval(each[agent] - each["best_static"]) for each in (rewards, *evaluated.in_doubt)
        )
        found[agent] = Interval(
            own.mean,
            min(own.low, *(each.low for each in others)) if others else own.low,
            max(own.high, *(each.high for each in others)) if others else own.high,
        )
    return {agent: found[agent] for agent in rewards if agent in found}


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
    """A JSON text: each statistic over all episodes, its interval and every episode's; the worst
    hour and the worst class; null where there is no value. Beyond ``longest_ttft_s`` a TTFT is a
    lower bound."""
    data = {
        "spec_version": _JSON_VERSION,
        "evaluations": [
            {
                "task": evaluated.setup.spec.name,
                "task_version": evaluated.setup.spec.version,
                "split": evaluated.split,
                "note": evaluated.setup.note,
                "trace": evaluated.setup.trace and evaluated.setup.trace.facts,
                "longest_ttft_s": evaluated.longest_ttft_s,
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
