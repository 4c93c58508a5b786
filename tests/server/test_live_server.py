"""A live server over HTTP and WebSocket, on a mock engine and on one that bills; and its page's
command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.client import ServeClient
from server.local import LocalServer
from tests.docs.snippets import blocks
from tests.mock_engine.conftest import running
from tests.server.live.paid_engine import PaidEngine

pytestmark = pytest.mark.slow  # servers of its own

Start = Callable[..., LocalServer]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "live_environment.md"
KEY = "sk-of-the-test"


@pytest.fixture(scope="module")
def live(start_servers_of_module: Start) -> Iterator[LocalServer]:
    """On a mock engine, started with the variables of the page's command."""
    (command,) = (block.code for block in blocks(PAGE) if "JAXSERVE_MODE" in block.code)
    variables = dict(re.findall(r"(JAXSERVE_\w+)=(\S+)", command))
    assert "python -m server.app" in command and len(variables) == 3
    with running(max_model_len=2048, kv_blocks=2000, batch_cap=64, token_budget=2048) as engine:
        yield start_servers_of_module(**variables | {"JAXSERVE_LIVE_URL": engine.url})


def test_an_episode_over_websocket(live: LocalServer) -> None:
    """By the usual client; knobs act, the grade has figures and no score."""
    with ServeClient.from_url(live.url) as env:
        env.reset(task_id="bursty_workload", seed=1, config={"horizon": 2})
        done = False
        while not done:
            observation, reward, done, info = env.step({"batch_cap": 16})
            assert info["mode"] == "live" and info["live"]["knobs"]["batch_cap"]["now"] == 16
            assert reward > 0 and observation.throughput_tps > 0
            assert 0 < observation.p50_ttft_ms < 10_000
        grade = env.grade()
    assert (grade["mode"], grade["score"], grade["windows"]) == ("live", None, 2)
    assert grade["goodput_rps"] > 0


def test_what_is_live_says_so_and_nothing_else_does(live: LocalServer) -> None:
    """Runtime, logs and grades; simulated grades stay what they are."""
    with httpx.Client(base_url=live.url, timeout=600.0) as http:
        assert http.get("/runtime").json()["mode"] == "live"
        begun = http.post("/reset", json={"task_id": 1, "seed": 3}).json()
        step = http.post("/step", json={"action": {"batch_cap": 32}})
        assert step.json()["info"]["mode"] == "live"
        driven = http.post("/agent", json={"agent": "default", "windows": 1})
        assert len(driven.json()["results"]) == 1
        log = http.get("/episode_log").json()
        assert log["mode"] == "live" and len(log["episode_log"]) == 3
        assert [entry.get("driver") for entry in log["episode_log"]] == [None, None, "default"]
        refused = http.post("/grader", json=log)
        assert refused.status_code == 422 and "no simulated score" in refused.json()["error"]
        actions = {"task_id": 1, "seed": 3, "actions": [{"batch_cap": 32}]}
        graded = http.post("/grader", json=actions).json()
        assert graded["mode"] == "simulated" and graded["score"] is not None
        steps = {"steps": [{"session_id": begun["session_id"], "action": {}}]}
        assert http.post("/step_many", json=steps).status_code == 409
        assert http.post("/reset", json={"task_id": "nothing"}).status_code == 422


def test_the_default_is_simulated(server: LocalServer) -> None:
    """And nothing of a live server is in its answers but the mode."""
    with httpx.Client(base_url=server.url, timeout=600.0) as http:
        runtime = http.get("/runtime").json()
        assert runtime["mode"] == "simulated" and "live" not in runtime
        http.post("/reset", json={"task_id": 1, "seed": 3})
        info = http.post("/step", json={"action": {}}).json()["info"]
        assert "mode" not in info and "live" not in info
        assert "mode" not in http.post("/grader", json={}).json()


@pytest.mark.deep
def test_the_limit_holds_over_kills_and_crowds(tmp_path: Path, start_server: Start) -> None:
    """Many clients reset and step at once, the server is killed in the middle, and again."""
    limit = 6000

    def crowd(url: str) -> list[httpx.Response]:
        def one(number: int) -> list[httpx.Response]:
            with httpx.Client(base_url=url, timeout=600.0) as http:
                answers = []
                for _ in range(3):
                    answers.append(http.post("/reset", json={"task_id": 1, "seed": number}))
                    answers.append(http.post("/step", json={"action": {}}))
                return answers

        with ThreadPoolExecutor(4) as pool:
            return [answer for found in pool.map(one, range(4)) for answer in found]

    with PaidEngine() as engine:
        variables: dict[str, Any] = {
            "JAXSERVE_MODE": "live",
            "JAXSERVE_LIVE_URL": engine.url,
            "JAXSERVE_LIVE_KEY": KEY,
            "JAXSERVE_LIVE_TOKEN_LIMIT": str(limit),
        }
        server = start_server(tmp_path, **variables)
        answers = crowd(server.url)
        with httpx.Client(base_url=server.url, timeout=600.0) as http:
            spent = http.get("/runtime").json()["live"]["tokens_spent"]
            engine.mode = "telltale"
            http.post("/step", json={"action": {}})
        server.kill()
        said = server.said()
        engine.mode = "well"
        for _ in range(2):
            again = start_server(tmp_path, **variables)
            with httpx.Client(base_url=again.url, timeout=600.0) as http:
                assert http.get("/runtime").json()["live"]["tokens_spent"] >= spent
            answers += crowd(again.url)
            again.kill()
            said += again.said()
        assert 0 < engine.bill <= limit
    statuses = {answer.status_code for answer in answers}
    # 404: before the first reset.
    assert 200 in statuses and 402 in statuses and statuses <= {200, 402, 404, 409}
    assert KEY not in said and all(KEY not in answer.text for answer in answers)
