"""What clients and tests of earlier projects ask for, as far as it is right."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from jaxserve.errors import InputError
from server.live_settings import LiveSettings
from server.local import LocalServer
from server.players.baseline_scores import summary
from server.server_settings import Settings
from server.wire.error_sentences import checked
from server.wire.request_bodies import GradeBody

Start = Callable[..., LocalServer]
_ACTION = {"batch_cap": 64, "quantization_tier": "INT8", "priority_routing": True}


def test_an_episode_as_an_earlier_client_plays_it(http: httpx.Client) -> None:
    """Its calls, the fields that it reads, and its log before the grader."""
    tasks = {task["task_id"]: task for task in http.get("/tasks").json()["tasks"]}
    about = tasks["bursty_workload"]
    assert about["episode_length"] == about["max_steps"] == 200
    assert about["active_actions"] == about["active_knobs"]
    begun = http.post("/reset", json={"task_id": "bursty_workload", "seed": 42}).json()
    own = {"session_id": begun["session_id"]}
    observations, rewards = [begun["observation"]], []
    for number in (1, 2):
        step = http.post("/step", json={"action": _ACTION, **own}).json()
        assert (step["observation"]["task_id"], step["info"]["timestep"]) == (
            "bursty_workload",
            number,
        )
        assert step["info"]["metrics"]["p99_ttft_ms"] == step["observation"]["p99_ttft_ms"]
        assert step["info"]["workload"]["queue_depth"] == step["observation"]["queue_depth"]
        observations.append(step["observation"])
        rewards.append(step["reward"])
    log = {
        "task_id": "bursty_workload",
        "actions": [_ACTION] * 2,
        "observations": observations,
        "rewards": rewards,
        "final_state": http.get("/state", params=own).json(),
    }
    body = {"episode_log": log, "seed": 42, "split": "train"}
    grade = http.post("/grader", json=body | {"actions_taken": 2}).json()
    assert (grade["steps"], grade["verified"]) == (2, True)
    log["rewards"] = [reward + 0.5 for reward in rewards]
    assert http.post("/grader", json=body).json()["verified"] is False
    refused = http.post("/grader", json=body | {"actions_taken": 3})
    assert refused.json()["error"] == "actions_taken is 3; the episode has 2 actions"
    refused = http.post("/grader", json={"episode_log": log})
    assert refused.json()["error"].startswith("seed is missing")


def test_health_counts_sessions(http: httpx.Client) -> None:
    """Those in memory: as many as ``/runtime`` says, and at least the one just begun."""
    http.post("/reset", json={"task_id": "static_workload", "seed": 1})
    health = http.get("/health").json()
    assert health["status"] == "healthy"
    assert 1 <= health["active_sessions"] == http.get("/runtime").json()["live_sessions"]


def test_a_baseline_of_one_task(http: httpx.Client) -> None:
    """By mode, with its score where earlier projects have it."""
    asked = {"task_id": "1", "agent": "default", "mode": "deterministic"}
    found = http.get("/baseline", params=asked).json()
    score = found["baseline"]["static_workload"]["grader"]["score"]
    assert found["scores"] == found["summary"]["scores"] == {"static_workload": score}
    refused = http.get("/baseline", params=asked | {"mode": "magic"})
    assert "mode is 'magic'; it must be 'deterministic' or 'openai'" in refused.json()["error"]
    refused = http.get("/baseline", params={"task_id": "1", "mode": "openai"})
    assert "no result is kept for seed 0" in refused.json()["error"]


def test_scores_where_they_were() -> None:
    """A task without a score has none there either."""
    found = summary("x", 1, "test", {"a": {"score": 0.5}, "b": {"score": None, "note": "no"}})
    assert found["scores"] == {"a": 0.5, "b": None}
    assert found["baseline"]["a"] == {"score": 0.5, "grader": {"score": 0.5}}
    assert found["summary"] == {"task_count": 2, "mean_score": 0.5, "scores": found["scores"]}


def test_logs_in_both_forms() -> None:
    """An object of lists is the same as a list of objects."""
    log = {"task_id": "t", "actions": [_ACTION] * 2, "observations": [{}, {"queue_depth": 1.0}]}
    body = GradeBody.model_validate({"episode_log": log | {"rewards": [0.0, 0.1, 0.2]}})
    assert body.named_task() == "t"
    assert body.episode_log == [
        {"action": _ACTION, "reward": 0.1, "observation": {"queue_depth": 1.0}},
        {"action": _ACTION, "reward": 0.2},
    ]
    with pytest.raises(InputError, match="episode_log: rewards is missing"):
        checked(GradeBody, {"episode_log": log})
    with pytest.raises(InputError, match="task_id is 'u' and the log's is 't'"):
        checked(GradeBody, {"task_id": "u", "episode_log": log | {"rewards": []}})


def test_variables_have_an_effect_or_are_refused() -> None:
    """None of an earlier project's is ignored without a word."""
    with pytest.raises(InputError, match="LLMSERVE_SEED is set, which has no effect here"):
        LiveSettings.from_environment({"LLMSERVE_SEED": "42"})
    given = {"LLMSERVE_MODE": "sim", "LLMSERVE_REAL_MODEL": "m"}
    settings = Settings.from_environment(given)
    assert settings.live is None
    (said,) = settings.warnings
    simulated = "is set and has no effect on a server whose episodes are simulated"
    assert said == f"LLMSERVE_REAL_MODEL {simulated}"
    live = {"JAXSERVE_MODE": "live", "JAXSERVE_LIVE_URL": "http://127.0.0.1:8000"}
    assert Settings.from_environment(live | {"LLMSERVE_REAL_MODEL": "m"}).warnings == ()
    (said,) = Settings.from_environment(live | {"LLMSERVE_BASE_URL": "x"}).warnings
    assert said == "LLMSERVE_BASE_URL is set and has no effect on a server"


@pytest.mark.slow
def test_what_has_no_effect_is_said_at_the_start_and_later(start_server: Start) -> None:
    """Where it is printed, and by /runtime; a deployment of an earlier project starts."""
    server = start_server(LLMSERVE_MODE="sim", LLMSERVE_REAL_PROVIDER="openai")
    (said,) = httpx.get(f"{server.url}/runtime").json()["warnings"]
    assert said.startswith("LLMSERVE_REAL_PROVIDER is set and has no effect on a server")
    assert f"server: {said}\n" in server.said()
