"""Pictures of a comparison: learning curves, score bars, policy maps, an episode."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from jaxserve.agents.panel import best_static_policy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.datafiles import write_atomic
from jaxserve.seeds import episode_keys
from jaxserve.show.plots import active_knobs, draw_episodes, first_episode
from jaxserve.show.style import BLUE, GREEN, GREY, ORANGE, RED, STYLE
from jaxserve.spaces import KNOB_FIELDS
from jaxserve.studies.compare.intervals import Estimate, Matrix, estimate
from jaxserve.studies.compare.protocol import Case, in_company
from jaxserve.studies.compare.result_tables import label, scores
from jaxserve.studies.compare.results import TaskComparison
from jaxserve.studies.compare.trained import Curve, Trained, learning_curve
from jaxserve.tasks.anchors import Anchors
from jaxserve.types import ServeAction

EPISODES = 32
"""Test episodes of a policy map."""
_POINTS = 100  # most points of a learning curve
_LOADS = 8  # columns of a policy map
_FEWEST = 5  # least windows of a cell


def write_task_pictures(case: Case, policies: Trained) -> None:
    """Writes ``learning.png``, ``policy_map.png`` and ``episode.png`` into the task's directory.

    They show the policy that did best on validation episodes.
    """
    setup = case.setup
    keys = episode_keys(EPISODES, "test")
    players = in_company([policies.chosen, best_static_policy(setup)])
    learnt, static = (rollout(setup.env, player, keys) for player in players)
    regimes = [regime.name for regime in setup.spec.regimes]
    episodes = [first_episode("best static", static), first_episode("ppo", learnt)]
    title = f"{setup.spec.name}, test seed 0"
    figures = {
        "learning": draw_learning(setup.spec.name, learning_curve(case.run), case.anchors),
        "policy_map": draw_policy_map(setup, learnt, regimes),
        "episode": draw_episodes(setup.env, episodes, title, regimes),
    }
    for name, figure in figures.items():
        write_atomic(case.directory / f"{name}.png", png(figure))


def write_scores(results: Sequence[TaskComparison], out: Path) -> None:
    """Writes ``scores.png`` into the directory of all tasks."""
    write_atomic(out / "scores.png", png(draw_scores(results)))


def png(figure: Figure) -> bytes:
    """Content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def draw_learning(task: str, curve: Curve, anchors: Anchors) -> Figure:
    """Reward over windows: interquartile mean of training seeds with its 95 % interval."""
    windows, reward = _thinned(curve)
    found = [estimate([column[:, None]]) for column in reward.T]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axis = figure.subplots()
        low, high = ([getattr(each, side) for each in found] for side in ("low", "high"))
        axis.fill_between(windows, low, high, color=BLUE, alpha=0.25, lw=0)
        axis.plot(windows, [each.value for each in found], color=BLUE, label="ppo, exploring")
        for name, value, color in (
            ("oracle", anchors.oracle, GREEN),
            ("best static", anchors.best_static, ORANGE),
            ("random", anchors.random, GREY),
        ):
            axis.axhline(value, color=color, lw=1.0, ls="--", label=name)
        axis.set_title(f"{task}, {len(reward)} seeds")
        axis.set_xlabel("windows played by each seed")
        axis.set_ylabel("mean reward of a window")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.margins(x=0.02)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_scores(results: Sequence[TaskComparison]) -> Figure:
    """Scores of all agents with intervals: a panel for each task and one for all tasks."""
    panels = [(result.task, [result]) for result in results]
    if len(results) > 1:
        panels.append(("all tasks", list(results)))
    agents = list(results[0].plays)
    with mpl.rc_context(STYLE):
        rows = -(-len(panels) // 3)
        figure = Figure(
            figsize=(0.8 + 3.0 * min(len(panels), 3), 0.5 + 2.6 * rows), layout="constrained"
        )
        axes = figure.subplots(rows, min(len(panels), 3), sharex=True, sharey=True, squeeze=False)
        for axis, (name, part) in zip(axes.flat, panels, strict=False):
            _bars(axis, name, {agent: scores(part, agent) for agent in agents})
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        figure.supxlabel("score: 0 random, 0.5 best static, 1 oracle", fontsize=8.5)
    return figure


def draw_policy_map(setup: TaskSetup, played: Rollout, regimes: Sequence[str]) -> Figure:
    """Mean of every active knob by regime and by arrivals of the window before."""
    knobs = active_knobs(setup.env)
    load = np.asarray(played.timesteps.observation.request_arrival_rate)[:, :-1]
    regime = np.asarray(played.timesteps.metrics.regime)[:, 1:] % len(regimes)
    edges = np.unique(np.round(np.quantile(load, np.linspace(0.0, 1.0, _LOADS + 1))))
    edges = edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1.0])
    column = np.clip(np.searchsorted(edges, load, side="right") - 1, 0, len(edges) - 2)
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(6.4, 0.9 + len(knobs) * (0.45 + 0.28 * len(regimes))), layout="constrained"
        )
        axes = figure.subplots(len(knobs), 1, sharex=True, squeeze=False)[:, 0]
        for axis, knob in zip(axes, knobs, strict=True):
            chosen = _chosen(played.actions, knob)
            cells = _cell_means(chosen, regime, column, len(regimes), len(edges) - 1)
            _cells(axis, knob, cells, regimes)
        names = [f"{low:g}-{high:g}" for low, high in itertools.pairwise(edges)]
        axes[-1].set_xticks(range(len(names)), names)
        axes[-1].set_xlabel("arrivals in the window before, per second")
        figure.suptitle(f"{setup.spec.name}: what ppo chooses where")
    return figure


def _thinned(curve: Curve) -> tuple[NDArray[np.float64], Matrix]:
    """At most ``_POINTS`` points of a curve, each the mean of equally many updates."""
    size = -(-len(curve.windows) // _POINTS)
    count = len(curve.windows) // size
    reward = curve.reward[:, : count * size].reshape(len(curve.reward), count, size)
    return curve.windows[: count * size].reshape(count, size)[:, -1], reward.mean(axis=2)


def _bars(axis: Axes, title: str, found: Mapping[str, Estimate]) -> None:
    for row, (agent, each) in enumerate(found.items()):
        color = BLUE if agent == "ppo" else GREY
        axis.barh(row, each.value, color=color, alpha=0.75)
        axis.plot([each.low, each.high], [row, row], color="black", lw=1.2)
    axis.axvline(0.5, color=RED, lw=0.9, ls=":")
    axis.set_yticks(range(len(found)), [label(agent) for agent in found])
    axis.set_xlim(0.0, 1.0)
    axis.set_ylim(-0.6, len(found) - 0.4)
    axis.set_title(title)


def _chosen(actions: ServeAction, knob: str) -> NDArray[np.float64]:
    """Values of a knob, float[E, T - 1]; batch caps in octaves, whose mean is meaningful."""
    values = np.asarray(getattr(actions, knob), np.float64)[:, 1:]
    return np.log2(values) if KNOB_FIELDS[knob].octaves else values


def _cell_means(
    values: NDArray[np.float64],
    row: NDArray[np.int64],
    column: NDArray[np.int64],
    rows: int,
    columns: int,
) -> NDArray[np.float64]:
    """Means by cell, float64[rows, columns]; NaN with few values."""
    cell = (row * columns + column).ravel()
    count = np.bincount(cell, minlength=rows * columns)
    total = np.bincount(cell, values.ravel(), minlength=rows * columns)
    means = np.where(count >= _FEWEST, total / np.maximum(count, 1), np.nan)
    return means.reshape(rows, columns)


def _cells(axis: Axes, knob: str, cells: NDArray[np.float64], regimes: Sequence[str]) -> None:
    known = cells[np.isfinite(cells)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    axis.imshow(cells, aspect="auto", cmap="Blues", vmin=low, vmax=max(high, low + 1e-6))
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            dark = value > low + 0.6 * max(high - low, 1e-6)
            color = "white" if dark else "black"
            axis.text(
                column, row, _value(knob, value), ha="center", va="center", fontsize=7, color=color
            )
    axis.set_yticks(range(len(regimes)), [name.replace("_", " ") for name in regimes])
    axis.set_title(KNOB_FIELDS[knob].label, fontsize=8.5, loc="left")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def _value(knob: str, value: float) -> str:
    described, whole = KNOB_FIELDS[knob], round(value)
    if described.octaves:
        return f"{2.0**value:.0f}"
    if described.names and abs(value - whole) < 0.005:
        return described.names[whole]
    return f"{value:.1f}" if described.bound.integer else f"{value:.2f}"
