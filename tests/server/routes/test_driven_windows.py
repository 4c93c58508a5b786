"""Windows that the server's own agents play: a grade tells them from a client's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from tests.conftest import StartServer
from tests.patience import PATIENCE_S
from tests.server.players.stub_model import Model
from tests.server.routes.episode_calls import post


@pytest.mark.slow
def test_who_played_is_said_beside_the_grade(start_server: StartServer) -> None:
    """Of this episode only, whichever of the server's own agents it was; the log has reasons."""
    with closing(Model()) as model:
        server = start_server(
            OPENAI_API_KEY="sk-of-the-test", API_BASE_URL=model.url, JAXSERVE_MODEL_TOKENS="1000"
        )
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            begun = post(http, "/reset", task_id="static_workload", seed=3)
            session_id = begun["session_id"]
            post(http, "/step", session_id=session_id, action={})
            steps = [{"session_id": session_id, "action": {}}]
            post(http, "/step_many", steps=steps)
            assert post(http, "/grader", session_id=session_id)["windows_driven"] == 0
            post(http, "/agent", session_id=session_id, agent="default", windows=2)
            assert post(http, "/grader", session_id=session_id)["windows_driven"] == 2
            post(http, "/operator", session_id=session_id, windows=3)
            graded = post(http, "/grader", session_id=session_id)
            assert (graded["steps"], graded["windows_driven"]) == (7, 5)
            log = http.get("/episode_log", params={"session_id": session_id}).json()
            entries = log["episode_log"]
            driven = ["default"] * 2 + ["language_model"] * 3
            assert [entry.get("driver") for entry in entries] == [None] * 3 + driven
            assert [entry.get("reason") for entry in entries] == [None] * 5 + ["calm", None, None]
            assert post(http, "/grader", **log)["verified"] is True
            assert graded["episode_number"] == begun["info"]["episode_number"]
            again = {"session_id": session_id, "episode_id": begun["info"]["episode_id"]}
            post(http, "/reset", task_id="static_workload", seed=3, **again)
            graded = post(http, "/grader", session_id=session_id)
            assert graded["windows_driven"] == 0
            assert graded["episode_number"] != begun["info"]["episode_number"]


def test_an_agent_is_loaded_once_for_all(http: httpx.Client) -> None:
    """More requests of one client than may compute at once are answered, also before the agent is
    loaded, which no other test does."""
    sessions = [post(http, "/reset", task_id="static_workload", seed=3)["session_id"]] * 40

    def drive(session_id: str) -> int:
        body = {"session_id": session_id, "agent": "kv_flapping", "windows": 1}
        return http.post("/agent", json=body).status_code

    with ThreadPoolExecutor(len(sessions)) as pool:
        statuses = list(pool.map(drive, sessions))
    assert 503 not in statuses
    assert 200 in statuses
