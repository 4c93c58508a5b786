"""Grades: a replay decides, early stops do not, and nothing can be gamed."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy, exploit_policies
from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.grading import BREAKDOWN, Grade, grade_actions, grade_log, replay_actions
from jaxserve.seeds import episode_key
from jaxserve.spaces import DEFAULT_ACTION, KNOBS
from jaxserve.tasks import anchors as anchors_module
from jaxserve.tasks.anchors import Anchors, load_anchors, write_anchors
from jaxserve.tasks.spec import load_task
from jaxserve.types import ServeAction
from tests.compiled_env import reset
from tests.graded_episodes import (
    GOOD,
    GRADED,
    HARD,
    HORIZON,
    SEED,
    environment,
    honest_log,
    knobs,
    random_actions,
    step,
)

RANDOM, BEST_STATIC, ORACLE = 0.1, 0.6, 0.9


@pytest.fixture(scope="module", autouse=True)
def anchors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Round anchors for the three tasks, whatever the packaged ones are."""
    folder: Path = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors_module, "data_dir", lambda: folder)
        for task in GRADED:
            spec = load_task(task)
            values = (RANDOM, BEST_STATIC, ORACLE, DEFAULT_ACTION, {"test": True})
            write_anchors(Anchors(task, spec.version, spec.digest, *values))
        yield


@functools.cache
def good_grade(task: str) -> Grade:
    """A sensible constant setting's grade."""
    return grade_actions(task, SEED, GOOD)


@pytest.mark.parametrize("task", GRADED)
def test_a_grade_is_what_the_episode_was_worth(task: str) -> None:
    """Mean reward, score, goodput and shares agree with the episode and with each other."""
    grade = good_grade(task)
    env = environment(task)
    state, _ = reset(env, episode_key(SEED, "test"))
    rewards, good = [], 0.0
    for action in GOOD:
        state, timestep = step(env, state, jaxserve.validate_action(action))
        rewards.append(float(timestep.reward))
        good += float(timestep.metrics.good.sum())
    assert grade.mean_reward == pytest.approx(np.mean(rewards), rel=1e-4)
    assert grade.goodput_rps == pytest.approx(good / HORIZON, rel=1e-4)
    expected = np.interp(grade.mean_reward, [RANDOM, BEST_STATIC, ORACLE], [0.0, 0.5, 1.0])
    assert grade.score == pytest.approx(expected)
    assert (grade.steps, grade.verified) == (HORIZON, None)
    assert tuple(grade.breakdown) == BREAKDOWN
    assert all(0.0 <= share <= 1.0 for share in grade.breakdown.values())
    assert grade.breakdown["slo"] <= grade.breakdown["ttft"] + 1e-6
    assert grade.breakdown["slo"] <= grade.breakdown["throughput"]
    assert grade.breakdown["stability"] == 1.0
    assert grade.feedback.endswith(".")
    assert "\n" not in grade.feedback
    assert json.loads(json.dumps(dataclasses.asdict(grade)))["score"] == grade.score


def test_requests_that_are_open_at_the_horizon_count_in_no_share() -> None:
    """What is inside its objectives so far has neither met nor missed them; it has failed where
    the episode was stopped, be it one window early."""
    env = environment("static_workload")
    state, _ = reset(env, episode_key(SEED, "test"))
    for action in GOOD:
        state, timestep = step(env, state, jaxserve.validate_action(action))
    last = timestep.metrics
    undecided = float((last.waiting + last.running - last.overdue).sum())
    assert undecided > 1.0
    played = replay_actions("static_workload", SEED, GOOD).metrics
    arrivals, good = played.arrivals.sum(), played.good.sum()
    grade = good_grade("static_workload")
    assert grade.breakdown["slo"] == pytest.approx(good / (arrivals - undecided), rel=1e-4)
    assert f"of {arrivals - undecided:,.0f} requests met" in grade.feedback
    early = grade_actions("static_workload", SEED, GOOD[:-1])
    good = played.good[:-1].sum()
    assert early.breakdown["slo"] == pytest.approx(good / arrivals, rel=1e-4)
    assert early.breakdown["ttft"] == pytest.approx(played.ttft_met[:-1].sum() / arrivals, rel=1e-4)


def test_tasks_go_by_name_and_alias() -> None:
    """The aliases 1, 2 and 3 are the same tasks."""
    assert grade_actions(2, SEED, GOOD) == grade_actions("2", SEED, GOOD)
    assert grade_actions(2, SEED, GOOD) == good_grade("bursty_workload")


def test_actions_may_be_one_action_of_arrays() -> None:
    """What a rollout holds is graded as it is."""
    batch = ServeAction(**{knob: np.full(HORIZON, GOOD[0][knob]) for knob in KNOBS})
    singles = [jaxserve.validate_action(action) for action in GOOD]
    assert grade_actions(HARD, SEED, batch) == good_grade(HARD)
    assert grade_actions(HARD, SEED, singles) == good_grade(HARD)


def test_the_same_actions_get_the_same_grade_bit_by_bit() -> None:
    """Grades are deterministic, and every seed and split is an episode of its own."""
    actions = random_actions(5)
    assert grade_actions(HARD, 5, actions) == grade_actions(HARD, 5, actions)
    rewards = {grade_actions(HARD, seed, actions).mean_reward for seed in range(8)}
    rewards |= {grade_actions(HARD, 5, actions, split).mean_reward for split in ("train", "test")}
    assert len(rewards) == 9


def test_interleaved_sessions_do_not_touch_each_other() -> None:
    """Several graders at once give what each gives alone."""
    jobs = [(task, seed) for seed in range(4) for task in GRADED]

    def grade(job: tuple[str, int]) -> Grade:
        return grade_actions(*job, random_actions(job[1]))

    alone = [grade(job) for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(grade, jobs)) == alone


@pytest.mark.parametrize("task", GRADED)
def test_no_window_played_is_worth_nothing(task: str) -> None:
    """A grade after zero steps is zero in every entry."""
    for grade in (grade_actions(task, SEED, []), grade_log(task, SEED, honest_log(task, SEED)[:1])):
        assert (grade.score, grade.goodput_rps, grade.steps) == (0.0, 0.0, 0)
        assert set(grade.breakdown.values()) == {0.0}
        assert grade.verified is None
        assert "None of the 200 windows" in grade.feedback


def test_windows_that_are_not_played_earn_nothing_and_still_cost() -> None:
    """The mean is over the horizon: an early stop is a deployment that serves nobody."""
    full, half = good_grade(HARD), grade_actions(HARD, SEED, GOOD[:100])
    assert half.steps == 100
    assert half.score < full.score
    assert "only 100 of 200 windows" in half.feedback
    env = environment(HARD)
    state, _ = reset(env, episode_key(SEED, "test"))
    earned = 0.0
    for action in GOOD[:100]:
        state, timestep = step(env, state, jaxserve.validate_action(action))
        earned += float(timestep.reward)
    idle = -float(env.reward.cost_weight)
    assert half.mean_reward == pytest.approx((earned + 100 * idle) / HORIZON, rel=1e-4)
    assert all(half.breakdown[name] <= full.breakdown[name] for name in BREAKDOWN if name != "cost")


def test_stopping_never_beats_random_knobs_where_those_lose() -> None:
    """Where random knobs earn less than an idle deployment, an idle window is worth no more."""
    poor = dataclasses.replace(load_anchors(load_task(HARD)), random=-0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxserve.grading.load_anchors", lambda spec: poor)
        for count in (0, 1, 5):
            grade = grade_actions(HARD, SEED, [knobs(batch_cap=1)] * count)
            assert grade.score == pytest.approx(0.0, abs=0.01)


def test_windows_past_the_horizon_are_ignored() -> None:
    """Stepping after the end changes nothing, not even with actions that are none."""
    extra = [knobs(batch_cap=1)] * 50
    assert grade_actions(HARD, SEED, GOOD + extra) == good_grade(HARD)
    assert grade_actions(HARD, SEED, [*GOOD, {"nonsense": 1}]) == good_grade(HARD)


@pytest.mark.parametrize("task", GRADED)
@pytest.mark.parametrize("name", ["noop", "batch_1", "reject_all"])
def test_serving_hardly_anybody_earns_nothing(task: str, name: str) -> None:
    """Shedding load keeps latencies low and the score at zero: every arrival counts."""
    policy = exploit_policies()[name]
    assert isinstance(policy, StaticPolicy)
    grade = grade_actions(task, SEED, [policy.action] * HORIZON)
    assert grade.score == 0.0
    assert grade.mean_reward < 0.0
    assert grade.breakdown["slo"] < 0.05
    assert grade.breakdown["ttft"] < 0.05


def test_flapping_between_tiers_is_punished_and_shows() -> None:
    """Every switch takes GPUs out of service."""
    flapping = [knobs(batch_cap=64, quantization_tier=window % 2) for window in range(HORIZON)]
    grade = grade_actions(HARD, SEED, flapping)
    assert grade.mean_reward < good_grade(HARD).mean_reward
    assert grade.breakdown["stability"] < 0.2


def test_memory_beyond_the_limit_shows() -> None:
    """The whole KV pool beside a draft model is more than the task allows."""
    hungry = [knobs(batch_cap=512, kv_budget_fraction=1.0, speculation_depth=8)] * HORIZON
    modest = [knobs(batch_cap=64, kv_budget_fraction=0.5)] * HORIZON
    limits = [
        grade_actions("bursty_workload", SEED, actions).breakdown["memory"]
        for actions in (hungry, modest)
    ]
    assert limits[0] < limits[1] == 1.0


WILD = [float("nan"), float("inf"), -1, 1e9, None, "many", []]


@pytest.mark.parametrize("value", WILD, ids=repr)
def test_wild_actions_are_refused_with_their_window(value: Any) -> None:
    """NaN, infinite, out of range or no number: the first bad window is named."""
    actions = [*GOOD[:7], knobs(batch_cap=value), *GOOD[8:]]
    with pytest.raises(InputError, match="window 7: batch_cap is"):
        grade_actions(HARD, SEED, actions)
    with pytest.raises(InputError, match="window 7: batch_cap is"):
        grade_log(HARD, SEED, [{"action": action} for action in actions])


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        ([{"batch_cap": 3}], "window 0: knob 'kv_budget_fraction' is missing"),
        ([GOOD[0], {**GOOD[0], "boost": 1}], "window 1: unknown knob 'boost'"),
        ([GOOD[0], [1, 1, 0, 0, 0, 0]], "window 1: action is a list"),
        ([dict.fromkeys(KNOBS, np.ones(2))], "window 0: the knobs have shape (2,)"),
        (jaxserve.make_action(), "one-dimensional"),
        ("noop", "list of actions"),
        (None, "list of actions"),
        ({"action": 1}, "list of actions"),
    ],
)
def test_what_is_no_list_of_actions_is_refused(actions: Any, named: str) -> None:
    """One sentence for every way to get it wrong."""
    with pytest.raises(InputError) as error:
        grade_actions(HARD, SEED, actions)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task": "warp"}, "warp"),
        ({"task": 4}, "4"),
        ({"task": "trace_replay"}, "no anchors"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"split": "exam"}, "split"),
        ({"config": {"omega": 1}}, "omega"),
        ({"config": {"alpha": -1}}, "alpha"),
        ({"config": [1]}, "config"),
    ],
)
def test_a_wrong_argument_is_named(changes: dict[str, Any], named: str) -> None:
    """Unknown tasks, seeds, splits and weights."""
    arguments = {"task": HARD, "seed": SEED, "actions": GOOD} | changes
    with pytest.raises(InputError) as error:
        grade_actions(**arguments)
    assert named in str(error.value)


def test_only_built_in_tasks_are_graded(tmp_path: Path) -> None:
    """A file that borrows a task's name does not borrow its anchors."""
    path = tmp_path / f"{HARD}.json"
    path.write_bytes((data_dir() / "tasks" / path.name).read_bytes())
    with pytest.raises(InputError, match="only built-in tasks"):
        grade_actions(str(path), SEED, GOOD)
