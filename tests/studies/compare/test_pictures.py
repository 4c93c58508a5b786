"""Pictures of a comparison show what was found."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxserve.agents.regime_oracle import RegimeOracle
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.grids import KNOB_GRIDS, nearest_indices
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS, make_action
from jaxserve.studies.compare.pictures import draw_learning, draw_policy_map, draw_scores, png
from jaxserve.studies.compare.results import PlayedEpisodes, TaskComparison
from jaxserve.studies.compare.trained import Curve
from tests.search_results import anchors_of
from tests.sizes import EPISODES

TASK = "bursty_workload"
ANCHORS = anchors_of(TASK, 0.2, 0.6, 0.8)


@functools.cache
def setup() -> TaskSetup:
    """The medium task."""
    return load_setup(TASK)


@functools.cache
def played() -> Rollout:
    """Episodes of a policy whose batch cap is another in each regime, bursts or not."""
    settings = np.tile(nearest_indices(make_action(speculation_depth=3)), (4, 2, 1))
    settings[..., KNOBS.index("batch_cap")] = np.arange(5, 9)[:, None]
    policy = RegimeOracle(jnp.asarray(settings, jnp.int32))
    return rollout(setup().env, policy, episode_keys(EPISODES, "test"))


def test_curves_are_interquartile_means() -> None:
    """Of five seeds the middle three, with the anchors as lines; long runs are thinned."""
    rewards = np.outer([0.1, 0.2, 0.3, 0.4, 5.0], np.ones(250))
    curve = Curve(np.arange(1, 251) * 1000.0, rewards)
    axis = draw_learning(TASK, curve, ANCHORS).axes[0]
    lines = {str(line.get_label()): line for line in axis.get_lines()}
    learnt = lines["ppo, exploring"]
    assert 50 <= len(learnt.get_xdata()) <= 100 and max(learnt.get_xdata()) == 249_000.0
    np.testing.assert_allclose(learnt.get_ydata(), 0.3)
    for name, value in (("oracle", 0.8), ("best static", 0.6), ("random", 0.2)):
        assert set(lines[name].get_ydata()) == {value}


@pytest.mark.parametrize(("tasks", "panels"), [(1, 1), (2, 3), (6, 7)])
def test_bars_are_scores(tasks: int, panels: int) -> None:
    """A bar for each agent in a panel for each task, and one for all of several."""
    plays = {
        name: PlayedEpisodes(np.full((2, 3), mean), *[np.ones((2, 3))] * 5)
        for name, mean in (("best_static", 0.6), ("ppo", 0.7))
    }
    results = [TaskComparison({"task": f"task {i}"}, ANCHORS, plays, (), {}) for i in range(tasks)]
    figure = draw_scores(results)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert len(shown) == panels
    for axis in shown:
        widths = [bar.get_width() for bar in axis.patches]
        assert widths == pytest.approx([0.5, 0.75])
    assert shown[-1].get_title() == ("task 0" if tasks == 1 else "all tasks")


def map_texts(figure: Figure, panel: int) -> dict[tuple[int, int], str]:
    """What is written in the cells."""
    return {
        (round(text.get_position()[1]), round(text.get_position()[0])): text.get_text()
        for text in figure.axes[panel].texts
    }


@pytest.mark.slow
def test_the_map_shows_what_was_chosen_where() -> None:
    """One panel for each active knob; rows are regimes, whose batch caps are as the policy's."""
    names = ["one", "two", "three", "four"]
    figure = draw_policy_map(setup(), played(), names)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["batch cap", "KV budget", "speculation depth"]
    texts = map_texts(figure, 0)
    assert {row for row, _ in texts} == {0, 1, 2, 3} and len(texts) > 12
    for (row, _), text in texts.items():
        assert text == str(KNOB_GRIDS["batch_cap"][5 + row])
    assert set(map_texts(figure, 2).values()) == {"3.0"}
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == names


def test_rare_cells_stay_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of few windows says nothing, so it is not shown."""
    monkeypatch.setattr("jaxserve.studies.compare.pictures._FEWEST", 10**6)
    figure = draw_policy_map(setup(), played(), ["a", "b", "c", "d"])
    assert not map_texts(figure, 0)
    assert png(figure).startswith(b"\x89PNG")
