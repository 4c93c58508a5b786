"""Logs that clients wrote: a replay decides, and says whether their figures are true."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.grading import grade_actions, grade_log
from tests.graded_episodes import (
    GOOD,
    GRADED,
    HARD,
    SEED,
    honest_log,
    random_actions,
)


@pytest.mark.parametrize("task", GRADED)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_honest_log_is_verified(task: str, seed: int) -> None:
    """Played window by window, in another program: the figures are those of the replay."""
    log = honest_log(task, seed)
    grade = grade_log(task, seed, log)
    assert grade.verified is True
    by_actions = grade_actions(task, seed, [entry["action"] for entry in log[1:]])
    assert dataclasses.replace(grade, verified=None) == by_actions


def forged(path: tuple[str, ...], value: Any) -> list[Any]:
    """An honest log with one figure of one window changed."""
    log = copy.deepcopy(honest_log(HARD, 1))
    target = log[51]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value(target[path[-1]])
    return log


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("reward",), lambda x: x + 0.05),
        (("metrics", "throughput"), lambda x: 2.0 * x + 0.1),
        (("metrics", "slo"), lambda x: x + 0.1),
        (("observation", "queue_depth"), lambda x: x + 5.0),
        (("observation", "slo_compliance_rate"), lambda x: 0.5 * x + 0.2),
        (("observation", "step_index"), lambda x: x + 1.0),
        (("observation", "cost_so_far"), lambda x: 0.99 * x),
        (("observation", "gpu_memory_used_gb"), lambda x: 0.99 * x),
        (("observation", "priority_distribution"), lambda x: [1.0, 0.0, 0.0]),
    ],
)
def test_a_forged_figure_is_found_and_changes_nothing(path: tuple[str, ...], value: Any) -> None:
    """The grade is the replay's; only ``verified`` tells that the log lied."""
    honest = grade_log(HARD, 1, honest_log(HARD, 1))
    grade = grade_log(HARD, 1, forged(path, value))
    assert grade.verified is False
    assert dataclasses.replace(grade, verified=True) == honest


def test_a_log_of_another_seed_or_order_is_not_verified() -> None:
    """Figures belong to their seed and their window."""
    log = honest_log(HARD, 1)
    assert grade_log(HARD, 2, log).verified is False
    assert grade_log(HARD, 1, [*log[:50], *log[52:]]).verified is False
    assert grade_log(HARD, 1, log, split="train").verified is False


def test_forged_scores_and_unknown_names_are_ignored() -> None:
    """A client may write what it likes beside the figures."""
    log = [{**entry, "score": 1.0, "info": {"reward": 99}} for entry in honest_log(HARD, 1)]
    for entry in log[1:]:
        entry["metrics"] = {**entry["metrics"], "score": 1.0, "goodput": 1e9}
    assert grade_log(HARD, 1, log) == grade_log(HARD, 1, honest_log(HARD, 1))


def test_a_log_without_figures_is_neither_true_nor_false() -> None:
    """Actions alone are enough for a grade."""
    actions = random_actions(1)
    grade = grade_log(HARD, 1, [{"action": action} for action in actions])
    assert grade == grade_actions(HARD, 1, actions)
    assert grade.verified is None


def test_a_truncated_log_is_a_short_episode() -> None:
    """What is there is true, and what is missing earns nothing."""
    log = honest_log(HARD, 1)
    short = grade_log(HARD, 1, log[:61])
    assert (short.steps, short.verified) == (60, True)
    assert short.goodput_rps < grade_log(HARD, 1, log).goodput_rps


def test_weights_change_a_logs_rewards_and_not_its_grade() -> None:
    """The grade follows the task's own objective; the log is compared under its own weights."""
    config = {"alpha": 0.5, "beta": 0.2, "gamma": 0.5, "delta": 4.0}
    log = honest_log(HARD, 1, tuple(config.items()))
    plain = grade_log(HARD, 1, honest_log(HARD, 1))
    assert grade_log(HARD, 1, log, config=config) == plain
    assert grade_log(HARD, 1, log).verified is False
    actions = [entry["action"] for entry in log[1:]]
    assert grade_actions(HARD, 1, actions, config=config) == grade_actions(HARD, 1, actions)


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (None, "episode_log is None; it must be a list"),
        ("[]", "episode_log is '[]'; it must be a list"),
        ({"action": {}}, "episode_log is {'action': {}}; it must be a list"),
        ([[]], "episode_log[0]"),
        ([{"action": GOOD[0]}, 5], "episode_log[1]"),
        ([{"action": GOOD[0]}, {"reward": 1.0}], "episode_log[1]: action is missing"),
        ([{"action": GOOD[0], "reward": "high"}], "reward is 'high'"),
        ([{"action": GOOD[0], "reward": float("nan")}], "reward is nan"),
        ([{"action": GOOD[0], "reward": [0.1, 0.2]}], "shape of reward is (2,); it must be ()"),
        ([{"action": GOOD[0], "observation": [1]}], "episode_log[0]: observation"),
        ([{"action": GOOD[0], "observation": {"queue_depth": None}}], "queue_depth is None"),
        ([{"action": GOOD[0], "metrics": {"slo": {}}}], "slo is {}"),
        ([{"action": GOOD[0], "metrics": 3}], "episode_log[0]: metrics"),
        (
            [{"action": GOOD[0], "observation": {"priority_distribution": 0.3}}],
            "shape of priority_distribution is (); it must be (3,)",
        ),
    ],
)
def test_a_malformed_log_is_refused(log: Any, named: str) -> None:
    """One sentence that says where and what."""
    with pytest.raises(InputError) as error:
        grade_log(HARD, SEED, log)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
