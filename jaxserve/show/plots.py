"""Picture of an episode: traffic, queues, latency, memory, goodput and knobs over time."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from jaxserve.agents.rollout import Rollout
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.evaluation.held_out import Evaluations, example_rollout
from jaxserve.show.style import BLUE, GREEN, GREY, ORANGE, RED, STYLE
from jaxserve.spaces import KNOB_FIELDS, KNOBS

FORMATS = ("pdf", "png", "svg")

_DRAWN_FIRST = ("best_static", "ppo", "heuristic")
"""Agents that a picture of two shows, where they have played."""

_REGIME_TINTS = ("#E6EEF5", "#FAF1DF", "#E4F1EB", "#F3E9F0")
_AWAY_TINT = "#CBCBCB"
_LEGEND_ROOM = 0.3  # of a panel's height
_IN_FORCE = {"quantization_tier": "tier", "prefill_decode_split": "prefill_gpus"}
_SHORTEST_NAMED_S = 22.0  # a shorter stay has no room for its regime's name


@dataclass(frozen=True)
class EpisodePlot:
    """Episode of an agent, NumPy leaves [T, ...]."""

    title: str
    rollout: Rollout


def first_episode(title: str, rollout: Rollout) -> EpisodePlot:
    """The first episode of stacked ones."""
    return EpisodePlot(title, jax.tree.map(lambda leaf: np.asarray(leaf[0]), rollout))


def draw_episodes(
    env: ServeEnv, episodes: Sequence[EpisodePlot], title: str, regime_names: Sequence[str]
) -> Figure:
    """Episodes of the same seed side by side, on the same axes.

    Args:
      title: of the picture.
      regime_names: of the task, in its order.
    """
    knobs = active_knobs(env)
    heights = [1.5] * len(_PANELS) + [0.62] * len(knobs)
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(1.2 + 6.4 * len(episodes), 1.1 + 1.02 * sum(heights)), layout="constrained"
        )
        axes = figure.subplots(
            len(heights),
            len(episodes),
            sharex=True,
            sharey="row",
            squeeze=False,
            height_ratios=heights,
        )
        for column, episode in zip(axes.T, episodes, strict=True):
            _draw_episode(column, env, episode, knobs, regime_names)
        for axis in axes[:, 1:].flat:
            axis.set_ylabel("")
        for axis, panel in zip(axes[: len(_PANELS), 0], _PANELS, strict=True):
            # After all episodes are drawn: a limit that is set no longer follows what is drawn.
            if panel in (_arrivals, _queues, _goodput):
                axis.set_ylim(bottom=0)
            _make_room(axis)
        figure.align_ylabels(axes[:, 0])
        figure.suptitle(title)
        figure.legend(handles=_key(knobs), loc="outside lower center", ncols=3, frameon=False)
    return figure


def active_knobs(env: ServeEnv) -> list[str]:
    """Knobs that the agent may turn."""
    active = np.asarray(env.knob_active)
    return [knob for knob, turns in zip(KNOBS, active, strict=True) if turns]


def evaluation_picture(evaluated: Evaluations, path: Path) -> bytes:
    """The content of a picture file: the first episode of one or two of the agents.

    Of more, the best static setting is drawn beside the learned controller, or beside the heuristic
    where none is there.

    Raises:
      InputError: as ``picture_format``.
    """
    rank = {agent: place for place, agent in enumerate(_DRAWN_FIRST)}
    two = sorted(evaluated.agents, key=lambda agent: rank.get(agent, len(rank)))[:2]
    drawn = {
        agent.replace("_", " "): example_rollout(evaluated, agent)
        for agent in evaluated.agents
        if agent in two
    }
    setup = evaluated.setup
    title = f"{setup.spec.name}, {evaluated.split} seed 0"
    regimes = [regime.name for regime in setup.spec.regimes]
    return rollout_picture(setup.env, drawn, title, regimes, path)


def rollout_picture(
    env: ServeEnv, rollouts: Mapping[str, Rollout], title: str, regimes: Sequence[str], path: Path
) -> bytes:
    """The content of a picture file: the first episode of each rollout, by what it is called.

    Args:
      env: the environment that was played.
      rollouts: by name of the agent.
      title: of the picture.
      regimes: names of the task's regimes.
      path: its ending decides the format.

    Raises:
      InputError: as ``picture_format``.
    """
    episodes = [first_episode(name, played) for name, played in rollouts.items()]
    buffer = io.BytesIO()
    figure = draw_episodes(env, episodes, title, regimes)
    figure.savefig(buffer, format=picture_format(path), dpi=150)
    return buffer.getvalue()


def picture_format(path: Path) -> str:
    """The format that a file's name asks for.

    Raises:
      InputError: another ending than those of ``FORMATS``.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise InputError(f"picture {path.name!r} must end in .{', .'.join(FORMATS)}")
    return kind


def _draw_episode(
    axes: Sequence[Axes],
    env: ServeEnv,
    episode: EpisodePlot,
    knobs: Sequence[str],
    regime_names: Sequence[str],
) -> None:
    """Draws a column of the picture: panels of the episode, then the knobs."""
    axes[0].set_title(episode.title, fontweight="bold", pad=18)
    for axis, panel in zip(axes, _PANELS, strict=False):
        panel(axis, env, episode.rollout)
        axis.legend(loc="upper right", ncols=3, frameon=False, borderaxespad=0.2)
    for axis, knob in zip(axes[len(_PANELS) :], knobs, strict=True):
        _knob(axis, env, episode.rollout, knob)
    for axis in axes:
        _shade(axis, env, episode.rollout, len(regime_names))
        axis.margins(x=0)
    _name_regimes(axes[0], env, episode.rollout, regime_names)
    axes[-1].set_xlabel("time, s")


def _time(env: ServeEnv, rollout: Rollout) -> NDArray[np.float64]:
    """End of each window, s."""
    return env.window_s * np.arange(1.0, len(rollout.timesteps.reward) + 1.0)


def _line(axis: Axes, env: ServeEnv, rollout: Rollout, values, color: str, label: str, **style):
    axis.plot(_time(env, rollout), values, color=color, label=label, **{"lw": 1.4, **style})


def _arrivals(axis: Axes, env: ServeEnv, rollout: Rollout) -> None:
    rate = rollout.timesteps.observation.request_arrival_rate
    axis.fill_between(_time(env, rollout), rate, step="pre", color=GREY, alpha=0.3, lw=0)
    axis.step(_time(env, rollout), rate, color=GREY, lw=0.9, label="arrivals")
    axis.set_ylabel("arrivals / s")


def _queues(axis: Axes, env: ServeEnv, rollout: Rollout) -> None:
    observation = rollout.timesteps.observation
    _line(axis, env, rollout, observation.active_requests, BLUE, "running")
    _line(axis, env, rollout, observation.queue_depth, ORANGE, "waiting", ls="--")
    axis.set_ylabel("requests")


def _ttft(axis: Axes, env: ServeEnv, rollout: Rollout) -> None:
    observation = rollout.timesteps.observation

    def seconds(milliseconds: Any) -> NDArray[np.float64]:
        """NaN before the first request was answered."""
        return np.where(milliseconds > 0.0, milliseconds, np.nan) / 1000.0

    _line(axis, env, rollout, seconds(observation.p50_ttft_ms), BLUE, "p50")
    _line(axis, env, rollout, seconds(observation.p99_ttft_ms), ORANGE, "p99", ls="--")
    worth = np.asarray(env.reward.value) > 0.0
    for index, limit_s in enumerate(np.unique(np.asarray(env.slo.ttft_s)[worth])):
        axis.axhline(limit_s, color=RED, lw=0.9, ls=":", label="SLO" if index == 0 else None)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel("TTFT, s")


def _memory(axis: Axes, env: ServeEnv, rollout: Rollout) -> None:
    _line(axis, env, rollout, rollout.timesteps.metrics.memory_gib, BLUE, "peak memory")
    limit = float(env.reward.memory_limit_gib)
    axis.axhline(limit, color=RED, lw=0.9, ls=":", label="limit")
    axis.axhline(float(env.deployment.device_gib), color=GREY, lw=0.9, label="device")
    axis.set_ylabel("memory, GiB")


def _goodput(axis: Axes, env: ServeEnv, rollout: Rollout) -> None:
    metrics = rollout.timesteps.metrics
    completed = metrics.completed.sum(-1) / env.window_s
    good = metrics.good.sum(-1) / env.window_s
    time = _time(env, rollout)
    axis.fill_between(time, good, color=GREEN, alpha=0.35, lw=0, label="goodput")
    axis.plot(time, good, color=GREEN, lw=1.0)
    _line(axis, env, rollout, completed, GREY, "completed", ls="--", lw=1.1)
    axis.set_ylabel("completed / s")


_PANELS = (_arrivals, _queues, _ttft, _memory, _goodput)
"""Panels of a column above the knobs."""


def _knob(axis: Axes, env: ServeEnv, rollout: Rollout, knob: str) -> None:
    """Draws a knob as it was set and, where changes take time, the value in force."""
    time, described = _time(env, rollout), KNOB_FIELDS[knob]
    bound = described.bound
    values = np.asarray(getattr(rollout.actions, knob), float)
    axis.step(time, values, color=BLUE, lw=1.3)
    if knob in _IN_FORCE:
        in_force = np.asarray(getattr(rollout.timesteps.metrics, _IN_FORCE[knob]), float)
        axis.step(time, in_force, color=ORANGE, lw=1.1, ls="--")
    axis.set_ylabel(described.label.replace(" ", "\n"), rotation=0, ha="right", va="center")
    if described.names:
        axis.set_yticks(range(len(described.names)), described.names)
        axis.set_ylim(-0.3, len(described.names) - 0.7)
    elif not bound.integer:
        axis.set_ylim(0.0, 1.08 * bound.high)
        axis.set_yticks([0.0, 0.5 * bound.high, bound.high])
    elif described.octaves:
        axis.set_yscale("log", base=2)
        axis.set_ylim(0.8 * bound.low, 1.25 * bound.high)
        marked = [value for value in described.grid if math.log2(value) % 4 == 0]
        axis.set_yticks(marked, [f"{value:g}" for value in marked])
        axis.minorticks_off()
    else:
        high = described.highest(float(np.max(env.deployment.num_gpus)))
        axis.set_ylim(-0.08 * high, 1.08 * max(high, 1.0))
        axis.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))


def _make_room(axis: Axes) -> None:
    """Raises the upper limit (of all axes that share it), so that the legend hides no line."""
    low, high = axis.get_ylim()
    if axis.get_yscale() == "log":
        axis.set_ylim(low, high * (high / low) ** _LEGEND_ROOM)
    else:
        axis.set_ylim(low, high + _LEGEND_ROOM * (high - low))


def _key(knobs: Sequence[str]) -> list[Artist]:
    """Legend of the lines of the knobs and of the grey areas."""
    away: list[Artist] = [Patch(color=_AWAY_TINT, label="GPUs away: switch or restart")]
    if not any(knob in _IN_FORCE for knob in knobs):
        return away
    return [
        Line2D([], [], color=BLUE, lw=1.3, label="knob as set"),
        Line2D([], [], color=ORANGE, lw=1.1, ls="--", label="in force"),
        *away,
    ]


def _shade(axis: Axes, env: ServeEnv, rollout: Rollout, regimes: int) -> None:
    """Regimes in tints, and where GPUs were away in grey."""
    for start, end, regime in _spans(rollout.timesteps.metrics.regime % regimes):
        tint = _REGIME_TINTS[regime % len(_REGIME_TINTS)]
        axis.axvspan(start * env.window_s, end * env.window_s, color=tint, lw=0, zorder=-2)
    away = np.asarray(rollout.timesteps.observation.reconfiguring) > 1e-3
    for start, end, switching in _spans(away):
        if switching:
            axis.axvspan(
                start * env.window_s, end * env.window_s, color=_AWAY_TINT, lw=0, zorder=-1
            )
    axis.set_xlim(0.0, env.window_s * len(away))


def _name_regimes(axis: Axes, env: ServeEnv, rollout: Rollout, names: Sequence[str]) -> None:
    for start, end, regime in _spans(rollout.timesteps.metrics.regime % len(names)):
        if (end - start) * env.window_s >= _SHORTEST_NAMED_S:
            middle = 0.5 * (start + end) * env.window_s
            axis.text(
                middle,
                1.03,
                names[regime].replace("_", " "),
                transform=axis.get_xaxis_transform(),
                ha="center",
                fontsize=7.5,
                color=GREY,
            )


def _spans(values: Any) -> list[tuple[int, int, int]]:
    """Runs of equal values: start, end (exclusive) and value."""
    values = np.asarray(values, int)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    ends = np.concatenate([starts[1:], [len(values)]])
    return [
        (int(start), int(end), int(values[start])) for start, end in zip(starts, ends, strict=True)
    ]
