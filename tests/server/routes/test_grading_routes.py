"""Grades and baselines over HTTP."""

from __future__ import annotations

import httpx
import pytest

from jaxserve.tasks.spec import task_names
from tests.server.routes.episode_calls import post, random_actions


def test_the_log_of_a_session_is_graded_like_the_session(http: httpx.Client) -> None:
    """What is downloaded is what was played, whether stepped alone or together."""
    session_id = post(http, "/reset", task_id=3, seed=4, split="test")["session_id"]
    rewards = []
    for number, action in enumerate(random_actions(2, 20)):
        if number % 3:
            rewards.append(post(http, "/step", session_id=session_id, action=action)["reward"])
        else:
            steps = [{"session_id": session_id, "action": action}]
            rewards.append(post(http, "/step_many", steps=steps)["reward"][0])
    log = http.get("/episode_log", params={"session_id": session_id}).json()
    assert [entry["reward"] for entry in log["episode_log"][1:]] == rewards
    fields = {name: log[name] for name in ("task_id", "seed", "split", "episode_log")}
    by_log = post(http, "/grader", **fields)
    played = {"episode_number": log["episode_number"], "windows_driven": 0}
    assert by_log | played == post(http, "/grader", session_id=session_id)
    assert by_log == post(http, "/grader", **log)
    for changed, said in (
        ({"task_version": 99}, "task_version is 99"),
        ({"config": {"horizon": 5}}, "config has horizon; only reward weights"),
    ):
        refused = http.post("/grader", json=log | changed)
        assert refused.status_code == 422
        assert said in refused.json()["error"]


def test_what_is_not_played_is_worth_nothing(http: httpx.Client) -> None:
    """A session without a window, and no actions at all."""
    session_id = post(http, "/reset", task_id=1, seed=4)["session_id"]
    for body in ({"session_id": session_id}, {"task_id": 1, "seed": 4, "actions": []}):
        grade = post(http, "/grader", **body)
        assert (grade["score"], grade["steps"]) == (0.0, 0)


def test_a_session_is_graded_as_what_it_is(http: httpx.Client) -> None:
    """A task, seed or split beside it must be its own."""
    session_id = post(http, "/reset", task_id=2, seed=4, split="test")["session_id"]
    own = {"task_id": 2, "seed": 4, "split": "test"}
    assert post(http, "/grader", session_id=session_id, **own)["task_id"] == "bursty_workload"
    for name, other in (("task_id", "azure_code"), ("seed", 5), ("split", "train")):
        refused = http.post("/grader", json={"session_id": session_id, name: other})
        assert refused.status_code == 422
        assert f"{name} is {other!r}, but the session's is" in refused.json()["error"]


def test_more_windows_than_an_episode_has_are_refused(http: httpx.Client) -> None:
    """Those beyond would not count, in actions or in a log."""
    for name, entry in (("actions", {}), ("episode_log", {"action": {}})):
        body = {"task_id": 1, "seed": 4, name: [entry] * 201}
        refused = http.post("/grader", json=body)
        said = "201 actions are given; an episode of static_workload has 200 windows"
        assert (refused.status_code, refused.json()["error"]) == (422, said)


@pytest.mark.deep  # tests/server/test_documents.py runs the command, which asks for the same
def test_a_baseline_plays_every_task_and_is_remembered(http: httpx.Client) -> None:
    """The same figures as an agent that drives a session of the same seed."""
    answer = http.get("/baseline", params={"agent": "default", "seed": 3}, timeout=600.0).json()
    assert list(answer["baseline"]) == list(task_names())
    session_id = post(http, "/reset", task_id=2, seed=3, split="test")["session_id"]
    post(http, "/agent", session_id=session_id, agent="default", windows=200)
    grade = post(http, "/grader", session_id=session_id)
    assert answer["baseline"]["bursty_workload"]["score"] == grade["score"]
    assert http.get("/baseline", params={"agent": "default", "seed": 3}).json() == answer
