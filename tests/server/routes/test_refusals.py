"""What is refused over HTTP, in one sentence."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.routes.episode_calls import post


def test_a_repeated_step_is_refused(http: httpx.Client) -> None:
    """An action that says which window it is for is taken once."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    body = {"session_id": session_id, "action": {"metadata": {"step": 0}}}
    assert http.post("/step", json=body).status_code == 200
    for path, repeated in (("/step", body), ("/step_many", {"steps": [body]})):
        again = http.post(path, json=repeated)
        assert again.status_code == 409
        assert again.json()["error"] == (
            f"metadata.step is 0; session {session_id!r} is at window 1"
        )


def test_a_request_that_is_repeated_plays_once(http: httpx.Client) -> None:
    """The last request of a session, by its request_id; another id plays the next window."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    body: dict[str, Any] = {"session_id": session_id, "action": {"metadata": {"step": 0}}}
    once = post(http, "/step", **body, request_id="a")
    assert post(http, "/step", **body, request_id="a") == once
    assert http.get("/state", params={"session_id": session_id}).json()["step_count"] == 1
    plain = {"session_id": session_id, "action": {}}
    assert post(http, "/step", **plain, request_id="b")["info"]["step"] == 2
    assert post(http, "/step", **plain)["info"]["step"] == 3
    # Its window is no longer the last one: nobody can tell whether it was meant again.
    assert post(http, "/step", **plain, request_id="b")["info"]["step"] == 4
    post(http, "/reset", task_id=1, seed=1, session_id=session_id)
    assert post(http, "/step", **plain, request_id="b")["info"]["step"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/reset", {"task_id": "warp"}, 422, "task_id is 'warp'"),
        ("/reset", {"task_id": 99}, 422, "task_id is 99"),
        ("/reset", {"task_id": True}, 422, "task_id is True; it must be the name or the number"),
        ("/reset", {"task_id": [1]}, 422, "task_id is [1]; it must be the name or the number"),
        ("/reset", {"task_id": 1, "task": 2}, 422, "task_id is 1 and task is 2; name one"),
        ("/reset", {"task_id": "data/tasks/static_workload.json"}, 422, "task_id"),
        ("/reset", {"seed": -1}, 422, "seed is -1; it must be at least 0"),
        ("/reset", {"seed": 1.5}, 422, "seed is 1.5"),
        ("/reset", {"split": "exam"}, 422, "split is 'exam'"),
        ("/reset", {"config": {"omega": 1}}, 422, "omega"),
        ("/reset", {"config": {"alpha": -1}}, 422, "alpha"),
        ("/reset", {"config": {"horizon": 100_000}}, 422, "horizon is 100000"),
        ("/reset", {"config": {"output_ages": 9}}, 422, "output_ages is 9; it must be left out"),
        ("/reset", {"index": 10**6}, 422, "index is 1000000; it must be a whole number from 0 to"),
        ("/reset", {"index": True}, 422, "index is True; it must be a whole number"),
        ("/reset", {"config": {"x" * 300: 1}}, 422, "it must be text of at most 255 characters"),
        ("/reset", {"boost": 1}, 422, "field 'boost' is unknown; allowed are task_id,"),
        ("/reset", {"session_id": "nobody"}, 404, "session 'nobody' does not exist"),
        ("/step", {"action": {"batch_cap": 1.5}}, 422, "batch_cap is 1.5"),
        ("/step", {"action": {"batch_cap": True}}, 422, "batch_cap is True; it must be"),
        ("/step", {"action": {"batch_cap": None}}, 422, "batch_cap is None; it must be"),
        ("/step", {"action": {"batch_cap": [1]}}, 422, "batch_cap is [1]; it must be"),
        ("/step", {"action": {"kv_budget": 0.05}}, 422, "kv_budget_fraction is 0.05"),
        ("/step", {"action": {"quant_tier": "INT2"}}, 422, "or FP16, INT8, INT4, BF16"),
        ("/step", {"action": {"boost": 1}}, 422, "field 'boost' is unknown; allowed are batch_cap"),
        ("/step", {"action": [1, 2]}, 422, "action is [1, 2]; it must be a JSON object"),
        ("/step", [1, 2], 422, "the request is [1, 2]; it must be a JSON object"),
        ("/step", {"action": {"metadata": {"step": "x"}}}, 422, "metadata.step"),
        (
            "/step",
            {"action": {}, "timeout_s": 1e-9},
            422,
            "timeout_s is 1e-09; it must be at least",
        ),
        (
            "/step",
            {"action": {}, "timeout_s": 1e9},
            422,
            "timeout_s is 1000000000.0; it must be at",
        ),
        ("/step", {}, 422, "action is missing"),
        ("/step", {"action": {}, "session_id": "nobody"}, 404, "session 'nobody' does not exist"),
        ("/step", {"action": {}, "session_id": "no body"}, 422, "session_id is 'no body'"),
        ("/step_many", {"steps": []}, 422, "steps is []; it must be a list of at least 1 entries"),
        ("/step_many", {"steps": [5]}, 422, "steps.0 is 5; it must be a JSON object"),
        ("/agent", {"windows": 201}, 422, "windows is 201; it must be at most 200"),
        ("/agent", {"agent": "wizard"}, 422, "agent is 'wizard'"),
        ("/agent", {"agent": "regime_oracle"}, 422, "agent is 'regime_oracle'; it must be one of"),
        ("/baseline", {"agent": "planner"}, 422, "agent is 'planner'; it must be one of random,"),
        ("/baseline", {"use_openai": 1}, 422, "use_openai is 1"),
        ("/grader", {"session_id": "nobody"}, 404, "session 'nobody' does not exist"),
    ],
)
def test_bad_input_gets_one_sentence(
    http: httpx.Client, path: str, body: Any, status: int, named: str
) -> None:
    """4xx, the field, its value, what is allowed; and the session is as it was."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert named in error
    assert "\n" not in error
    assert http.get("/state", params={"session_id": session_id}).json()["step_count"] == 0


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(http: httpx.Client, text: str) -> None:
    """Python's JSON reads them; the environment must not."""
    http.post("/reset")
    for path, content, said in (
        ("/step", f'{{"action": {{"kv_budget_fraction": {text}}}}}', "kv_budget_fraction is "),
        ("/reset", f'{{"config": {{"alpha": {text}}}}}', "config: alpha is "),
    ):
        answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422 and answer.json()["error"].startswith(said)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("{", "application/json", "expecting property name"),
        ("[" * 100_000, "application/json", "it nests too deeply"),
        (b'{"action": {"\xff": 1}}', "application/json", "its text is not Unicode"),
        (f'{{"seed": {"9" * 5000}}}', "application/json", "thousands of digits"),
        ('{"action": {}}', "text/plain", "it needs Content-Type: application/json"),
        ("a=b", "application/x-www-form-urlencoded", "it needs Content-Type: application/json"),
    ],
    ids=["half", "deep", "bytes", "long number", "text", "form"],
)
def test_what_is_no_json_is_refused(
    http: httpx.Client, content: str | bytes, kind: str, said: str
) -> None:
    """With the reason."""
    answer = http.post("/step", content=content, headers={"Content-Type": kind})
    assert answer.status_code in (400, 422)
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/nowhere", 404, "'/nowhere' is no route of this server"),
        ("GET", "/step", 405, "GET is not allowed for '/step'; allowed is POST"),
        ("GET", "/baseline?agent=wizard", 422, "agent is 'wizard'; it must be one of random,"),
        ("GET", "/baseline?seed=-1", 422, "seed is '-1'; it must be at least 0"),
        ("GET", "/state?session_id=a%20b", 422, "session_id is 'a b'; it must be the id that"),
    ],
)
def test_wrong_addresses_get_one_sentence(
    http: httpx.Client, method: str, path: str, status: int, said: str
) -> None:
    """As wrong bodies do."""
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)
