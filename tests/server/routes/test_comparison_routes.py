"""What explains an episode: its traffic classes, and the agents that had the same traffic."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.routes.episode_calls import post

WINDOWS = 12


def begin(http: httpx.Client, task: str, **more: Any) -> str:
    return post(http, "/reset", task_id=task, seed=7, split="test", **more)["session_id"]


def test_a_yardstick_is_what_the_agent_plays(http: httpx.Client) -> None:
    """Rewards, observations and knobs of a whole episode, the same as by POST /agent."""
    session = begin(http, "static_workload")
    found = http.get("/yardsticks", params={"session_id": session}).json()
    assert set(found["agents"]) == {"best_static", "heuristic"}
    assert found["mean_arrival_rate_rps"] > 0.0
    for agent, columns in found["agents"].items():
        other = begin(http, "static_workload")
        played = post(http, "/agent", session_id=other, agent=agent, windows=WINDOWS)["results"]
        assert len(columns["reward"]) == len(columns["action"]) + 1 == 201
        assert columns["reward"][1 : WINDOWS + 1] == [window["reward"] for window in played]
        assert columns["action"][:WINDOWS] == [window["info"]["action"] for window in played]
        for name, column in columns["observation"].items():
            assert len(column) == 201
            assert column[WINDOWS] == played[-1]["observation"][name]
        for name, column in columns["figures"].items():
            assert column[WINDOWS] == played[-1]["info"]["figures"][name]


@pytest.mark.parametrize("task", ["bursty_workload", "trace_replay"])
def test_classes_add_up_to_the_windows(http: httpx.Client, task: str) -> None:
    """All requests are of some class, in a step's figures as well; the session stays as it is."""
    session = begin(http, task)
    played = post(http, "/agent", session_id=session, agent="best_static", windows=WINDOWS)
    found = http.get("/classes", params={"session_id": session}).json()
    about = {one["task_id"]: one for one in http.get("/tasks").json()["tasks"]}[task]
    assert [one["name"] for one in found["classes"]] == [one["name"] for one in about["classes"]]
    assert found["steps"] == WINDOWS

    def total(field: str) -> np.ndarray:
        return np.sum([one[field] for one in found["classes"]], axis=0)

    infos = [window["info"] for window in played["results"]]
    good = [info["requests_good"] for info in infos]
    assert total("good") == pytest.approx(good, rel=1e-3, abs=1e-3)
    for figure in ("first_tokens", "ttft_met", "ended", "good"):
        shown = [info["figures"][figure] for info in infos]
        assert total(figure) == pytest.approx(shown, rel=1e-3, abs=1e-3), figure
    worth = sum(one["value"] * np.array(one["ended"]) for one in found["classes"])
    shown = [info["figures"]["worth_ended"] for info in infos]
    assert worth == pytest.approx(shown, rel=1e-3, abs=1e-3)
    waiting = [window["observation"]["queue_depth"] for window in played["results"]]
    assert total("waiting") == pytest.approx(waiting, rel=1e-3, abs=1e-3)
    assert (total("ttft_met") <= total("first_tokens") + 1e-3).all()
    for one in found["classes"]:
        for tpot_ms in one["tpot_ms"]:
            assert tpot_ms is None or 0.1 < tpot_ms < 60_000
        for itl_p99_ms, window in zip(one["itl_p99_ms"], played["results"], strict=True):
            seen = window["observation"]
            assert itl_p99_ms is None or seen["p50_itl_ms"] < 1.001 * itl_p99_ms < 60_000
    after = http.get("/observation", params={"session_id": session}).json()
    assert after["observation"] == played["results"][-1]["observation"]


def test_before_the_first_window_there_is_nothing(http: httpx.Client) -> None:
    """No window, no figure, and no error."""
    found = http.get("/classes", params={"session_id": begin(http, "static_workload")}).json()
    assert found["steps"] == 0
    assert [one["good"] for one in found["classes"]] == [[]]


@pytest.mark.parametrize("path", ["/yardsticks", "/classes"])
def test_another_task_is_not_compared(http: httpx.Client, path: str) -> None:
    """Rewards under other weights, or other traffic, are no yardstick."""
    session = begin(http, "static_workload", config={"alpha": 2.0, "rate_scale": 0.5})
    answer = http.get(path, params={"session_id": session})
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "the episode changed alpha, rate_scale of static_workload; only the task as it is can be "
        "compared"
    )
    assert http.get(path, params={"session_id": "nobody"}).status_code == 404
