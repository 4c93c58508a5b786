"""Tables of a comparison, for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.agents.panel import PRIVILEGED_AGENTS
from jaxserve.evaluation.episode_statistics import ratio, ttft_quantiles
from jaxserve.show.text_table import TextTable
from jaxserve.studies.compare.intervals import (
    Estimate,
    Matrix,
    change,
    estimate,
    estimate_of_sums,
    optimality_gap,
    score_scale,
    wins,
)
from jaxserve.studies.compare.results import PlayedEpisodes, TaskComparison

STATIC = "best_static"
LEARNT = "ppo"
_SUMMED_UP = ("default", "best_static", "heuristic", *PRIVILEGED_AGENTS, LEARNT)


def markdown(results: Sequence[TaskComparison], command: str) -> str:
    """The Markdown page; its first table is the summary.

    Args:
      results: comparison of each task.
      command: command that writes the page.
    """
    parts = [
        "# Results\n",
        f"Written by `{command}`; [evaluation.md](evaluation.md) says what the numbers mean.\n",
        summary(results).markdown(),
        f"{_NOTE}\n",
    ]
    for result in results:
        parts.append(f"## {result.task}\n")
        parts.append(f"{_circumstances(result)}\n")
        for table in task_tables(result):
            parts += [f"{table.title}:\n", table.markdown()]
        parts += [
            f"Without {variant.name}: {variant.reason}.\n"
            for variant in result.variants
            if variant.reason
        ]
    return "\n".join(parts)


def command_text(
    task: str, seeds: int, steps: int | None, episodes: int, hardware: str, trace: Path | None
) -> str:
    """The command of a comparison, without its output paths."""
    options = [f"--seeds {seeds}", f"--episodes {episodes}", f"--hardware {hardware}"]
    if steps is not None:
        options.append(f"--steps {steps}")
    if trace is not None:
        options.append(f"--trace {trace.name}")
    return f"jaxserve compare {task} {' '.join(options)}"


def summary(results: Sequence[TaskComparison]) -> TextTable:
    """Scores of all agents on every task and over all tasks."""
    rows = [_summary_row(result.task, [result]) for result in results]
    if len(results) > 1:
        rows.append(_summary_row("all tasks", results))
    header = ("task", *map(label, _SUMMED_UP), "ppo beats best static")
    return TextTable("score (95 % interval)", header, tuple(rows))


def task_tables(result: TaskComparison) -> tuple[TextTable, ...]:
    """Tables of the task itself, its variants and the reference simulator."""
    tables = [_own_table(result)]
    if any(variant.plays for variant in result.variants):
        tables.append(_variant_table(result))
    return (*tables, _reference_table(result))


def label(agent: str) -> str:
    """Displayed name of an agent; a star marks agents that see the simulator's state."""
    return agent.replace("_", " ") + ("*" if agent in PRIVILEGED_AGENTS else "")


def scores(results: Sequence[TaskComparison], agent: str) -> Estimate:
    """Interquartile mean of an agent's scores over the runs on all tasks."""
    return estimate(
        [result.plays[agent].objective for result in results],
        scales=[score_scale(result.anchors) for result in results],
    )


def gain(plays: Mapping[str, PlayedEpisodes], agent: str) -> Matrix:
    """Mean reward above the best static setting in the same episode, float64[R, E]."""
    return plays[agent].objective - plays[STATIC].objective


_NOTE = """\
Interquartile mean over training seeds of the score of the mean reward over the test episodes, and
its 95 % interval: 0 is a random agent, 0.5 the best static setting, 1 the switch-aware oracle. The
last column is the probability that a newly trained policy earns more than the best static setting
in a new episode. Agents with a star are shown the simulator's state, which no operator sees.

Where the oracle gains less than 2 %, a score of 1 stands for 2 % more than the best static setting,
which nobody reached on average: scores above 0.5 then magnify differences that are small in mean
reward."""


def _summary_row(name: str, results: Sequence[TaskComparison]) -> tuple[str, ...]:
    better = [
        wins(result.plays[LEARNT].objective, result.plays[STATIC].objective) for result in results
    ]
    return (
        name,
        *(_text(scores(results, agent), 2) for agent in _SUMMED_UP),
        _text(estimate(better, np.mean), 2),
    )


def _own_table(result: TaskComparison) -> TextTable:
    scale = score_scale(result.anchors)
    rows = []
    for agent, play in result.plays.items():
        better = estimate([wins(play.objective, result.plays[STATIC].objective)], np.mean)
        rows.append(
            (
                label(agent),
                _text(scores([result], agent), 2),
                _text(estimate([play.objective]), 3),
                _text(estimate([gain(result.plays, agent)]), 3, sign=True),
                "-" if agent == STATIC else _text(better, 2),
                _text(optimality_gap([play.objective], [scale]), 2),
                _text(estimate_of_sums([100.0 * play.good, play.decided], ratio), 1),
                _ttft(play, 0.5, 1000.0, 0),
                _ttft(play, 0.99, 1.0, 2),
                _text(estimate([play.changes_per_minute]), 1),
            )
        )
    header = (
        "agent",
        "score",
        "mean reward",
        "gain on best static",
        "beats best static",
        "optimality gap",
        "SLO met, %",
        "TTFT p50, ms",
        "TTFT p99, s",
        "changes / min",
    )
    return TextTable(f"{result.task}, test episodes", header, tuple(rows))


def _ttft(play: PlayedEpisodes, probability: float, factor: float, digits: int) -> str:
    """Cell with a TTFT quantile of the requests of all episodes."""

    def quantile(count: Any, exceeded: Any) -> Any:
        return factor * ttft_quantiles(count, exceeded, probability)

    return _text(estimate_of_sums([play.first_tokens, play.ttft_exceeded], quantile), digits)


def _variant_table(result: TaskComparison) -> TextTable:
    played = [variant for variant in result.variants if variant.plays]
    agents = [agent for agent in played[0].plays if agent != STATIC]
    rows = []
    for agent in agents:
        own = _gain_text(result.plays, agent) if agent in result.plays else "-"
        there = (_gain_text(variant.plays, agent) for variant in played)
        rows.append((label(agent), own, *there))
    rewards = (_text(estimate([variant.plays[STATIC].objective]), 3) for variant in played)
    own = _text(estimate([result.plays[STATIC].objective]), 3)
    rows.append((f"mean reward of {label(STATIC)}", own, *rewards))
    header = ("agent", "the task itself", *(variant.name for variant in played))
    title = f"{result.task}, gain in mean reward on the task's best static setting, replayed there"
    return TextTable(title, header, tuple(rows))


def _reference_table(result: TaskComparison) -> TextTable:
    scale = score_scale(result.anchors)
    rows = []
    for agent, there in result.reference.items():
        here = result.plays[agent].objective[:, : there.shape[1]]
        rows.append(
            (
                label(agent),
                _text(estimate([here], scales=[scale]), 3),
                _text(estimate([there], scales=[scale]), 3),
                _text(change(here, there, scale), 3, sign=True),
                _text(estimate([there - here]), 3, sign=True),
            )
        )
    episodes = next(iter(result.reference.values())).shape[1]
    title = f"{result.task}, score in both simulators, the first {episodes} test episodes"
    header = ("agent", "fast", "reference", "difference", "difference in mean reward")
    return TextTable(title, header, tuple(rows))


def _gain_text(plays: Mapping[str, PlayedEpisodes], agent: str) -> str:
    return _text(estimate([gain(plays, agent)]), 3, sign=True)


def _circumstances(result: TaskComparison) -> str:
    about, anchors = result.about, result.anchors
    return (
        f"{len(about['seeds'])} training seeds of PPO with {about['windows']:,} windows each; "
        f"{about['episodes']} test episodes. Mean rewards that scores are measured by: 0 is "
        f"{anchors.random:.4f}, a random agent; 0.5 is {anchors.best_static:.4f}, the best static "
        f"setting; 1 is {anchors.oracle:.4f}, {anchors.top_text()}."
    )


def _text(found: Estimate, digits: int, sign: bool = False) -> str:
    if math.isnan(found.value):
        return "-"
    plus = "+" if sign else ""
    value, low, high = (
        f"{number:{plus}.{digits}f}" for number in (found.value, found.low, found.high)
    )
    return f"{value} ({low} to {high})"
