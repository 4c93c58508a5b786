"""The picture of an episode: every panel is there, and shows what happened."""

from __future__ import annotations

import dataclasses
import functools
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxserve.agents.task_setup import load_setup
from jaxserve.errors import InputError
from jaxserve.evaluation.held_out import Evaluations, evaluate_all, example_rollout
from jaxserve.show import plots
from jaxserve.show.plots import draw_episodes, evaluation_picture, first_episode, picture_format
from tests.sizes import EPISODES

MEDIUM, HARD = "bursty_workload", "adversarial_multitenant"


SHOWN = ("default", "heuristic")


@functools.cache
def compared(task: str, agents: tuple[str, ...] = SHOWN) -> Evaluations:
    """Some agents on a task."""
    return evaluate_all(load_setup(task), agents, EPISODES)


def drawn(task: str, *agents: str) -> Figure:
    """The first episode of some of them."""
    found = compared(task)
    episodes = [first_episode(name, example_rollout(found, name)) for name in agents]
    regimes = [regime.name for regime in found.setup.spec.regimes]
    return draw_episodes(found.setup.env, episodes, "a title", regimes)


@pytest.mark.slow
def test_one_panel_per_active_knob() -> None:
    """Five panels of what happened, then the knobs that the agent may turn, for each agent."""
    env = load_setup(HARD).env
    assert len(drawn(HARD, "heuristic").axes) == 5 + 6
    assert len(drawn(MEDIUM, "heuristic").axes) == 5 + 3
    two = drawn(HARD, *SHOWN)
    assert len(two.axes) == 2 * (5 + 6)
    assert [axis.get_title() for axis in two.axes[:2]] == ["default", "heuristic"]
    assert {axis.get_xlim() for axis in two.axes} == {(0.0, float(env.horizon))}


@pytest.mark.slow
def test_lines_are_the_episode() -> None:
    """Queue, memory and knobs are drawn as they were, the objectives where they are."""
    found = compared(HARD)
    rollout = example_rollout(found, "heuristic")
    axes = drawn(HARD, "heuristic").axes
    lines = {line.get_label(): line for axis in axes[:5] for line in axis.get_lines()}
    observation, metrics = rollout.timesteps.observation, rollout.timesteps.metrics
    np.testing.assert_allclose(lines["waiting"].get_ydata(), observation.queue_depth[0])
    np.testing.assert_allclose(lines["peak memory"].get_ydata(), metrics.memory_gib[0])
    completed = np.asarray(metrics.completed)[0].sum(-1)
    np.testing.assert_allclose(lines["completed"].get_ydata(), completed)
    np.testing.assert_allclose(
        axes[7].get_lines()[0].get_ydata(), rollout.actions.speculation_depth[0]
    )
    np.testing.assert_allclose(axes[8].get_lines()[1].get_ydata(), metrics.tier[0])
    limit = float(found.setup.env.reward.memory_limit_gib)
    np.testing.assert_allclose(lines["limit"].get_ydata(), limit)


@pytest.mark.slow
def test_legends_hide_no_line() -> None:
    """Every curve ends below the strip that the legend takes."""
    figure = drawn(HARD, "heuristic")
    for axis in figure.axes[:5]:
        to_axis = axis.transData + axis.transAxes.inverted()
        for line in axis.get_lines():
            if len(line.get_xdata()) > 2:
                heights = to_axis.transform(np.asarray(line.get_xydata()))[:, 1]
                assert np.nanmax(heights) < 0.85, line.get_label()


@pytest.mark.slow
def test_labels_do_not_overlap() -> None:
    """No text of an axis runs into another's."""
    figure = drawn(HARD, *SHOWN)
    figure.savefig(io.BytesIO(), format="png")
    for axis in figure.axes[::2]:
        labels = [tick for tick in axis.get_yticklabels() if tick.get_text()]
        boxes = [label.get_window_extent() for label in labels if label.get_visible()]
        title = axis.yaxis.label.get_window_extent()
        assert not any(title.overlaps(box) for box in boxes)
    names = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for a in names for b in names if a is not b)


@pytest.mark.slow
def test_nothing_happened_yet() -> None:
    """Before the first token there is no latency to draw."""
    found = compared("trace_replay", ("noop",))
    episode = first_episode("noop", example_rollout(found, "noop"))
    figure = draw_episodes(found.setup.env, [episode], "quiet", ["recorded"])
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "shown"),
    [
        (("random", "default", "best_static", "heuristic", "ppo"), ["best static", "ppo"]),
        (("ppo", "best_static"), ["ppo", "best static"]),
        (("random", "default", "best_static", "heuristic"), ["best static", "heuristic"]),
        (("default", "heuristic", "ppo"), ["heuristic", "ppo"]),
        (("default", "noop", "random"), ["default", "noop"]),
        (("heuristic", "default"), ["heuristic", "default"]),
        (("default",), ["default"]),
    ],
)
def test_two_agents_are_shown(
    agents: tuple[str, ...], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best static setting beside ppo, or beside the heuristic where nobody learned; without
    them the first two."""
    titles = []

    def draw(env, episodes, title, regime_names):
        titles.extend(episode.title for episode in episodes)
        return Figure(figsize=(1, 1))

    static = compared(MEDIUM)
    found = dataclasses.replace(static, agents=dict.fromkeys(agents, static.agents["default"]))
    monkeypatch.setattr(plots, "draw_episodes", draw)
    assert evaluation_picture(found, Path("x.png")).startswith(b"\x89PNG")
    assert titles == shown


@pytest.mark.slow
def test_formats() -> None:
    """The ending chooses the format; another one is refused."""
    for kind in ("png", "SVG", "pdf"):
        assert picture_format(Path(f"x.{kind}")) == kind.lower()
    with pytest.raises(InputError, match=r"picture 'x.jpg' must end in .pdf, .png, .svg"):
        picture_format(Path("x.jpg"))
    found = compared(MEDIUM)
    assert b"<svg" in evaluation_picture(found, Path("x.svg"))
