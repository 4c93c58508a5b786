"""Nothing acknowledged is lost: killed servers, eviction, several processes, full disks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from server.local import LocalServer
from tests.patience import wait_until
from tests.server.small_disk import fill

pytestmark = pytest.mark.slow  # every test starts servers of its own

Start = Callable[..., LocalServer]
ACTION = {"batch_cap": 64, "speculation_depth": 2, "priority_routing": 1}


def post(server: LocalServer, path: str, **body: Any) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=300.0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def state_of(server: LocalServer, session_id: str) -> Any:
    return httpx.get(f"{server.url}/state", params={"session_id": session_id}, timeout=300.0).json()


def rewards_of(server: LocalServer, session_id: str, windows: int) -> list[float]:
    return [
        post(server, "/step", session_id=session_id, action=ACTION)["reward"]
        for _ in range(windows)
    ]


@pytest.fixture(scope="module")
def undisturbed(start_servers_of_module: Start) -> list[float]:
    """Rewards of 40 windows on a server that nothing happens to."""
    server = start_servers_of_module()
    begun = post(server, "/reset", task_id=3, seed=11)
    return rewards_of(server, begun["session_id"], 40)


def test_a_killed_server_goes_on_where_it_was(
    tmp_path: Path, start_server: Start, undisturbed: list[float]
) -> None:
    """Twice in one episode; every reward after it is bit by bit the one without."""
    server = start_server(tmp_path)
    session_id = post(server, "/reset", task_id=3, seed=11)["session_id"]
    rewards = rewards_of(server, session_id, 15)
    for windows in (10, 15):
        server.kill()
        server = start_server(tmp_path)
        assert state_of(server, session_id)["cumulative_reward"] == sum(rewards)
        rewards += rewards_of(server, session_id, windows)
    assert rewards == undisturbed
    # The default session outlives the server too.
    assert httpx.get(f"{server.url}/state").json()["session_id"] == session_id


def test_a_request_is_repeated_after_a_kill(tmp_path: Path, start_server: Start) -> None:
    """Its window is played once: the log has its request_id."""
    server = start_server(tmp_path)
    session_id = post(server, "/reset", task_id=1, seed=11)["session_id"]
    body = {"session_id": session_id, "action": ACTION, "request_id": "mine"}
    once = post(server, "/step", **body)
    server.kill()
    server = start_server(tmp_path)
    assert post(server, "/step", **body) == once
    assert state_of(server, session_id)["step_count"] == 1


async def play_until_cut(url: str, number: int, acknowledged: dict[str, list[float]]) -> None:
    """Steps one session as fast as it can, and notes every answer."""
    with_socket = url.replace("http", "ws") + "/ws"
    async with connect(with_socket, compression=None, open_timeout=300.0) as socket:
        await socket.send(json.dumps({"type": "reset", "data": {"task_id": 2, "seed": number}}))
        begun = json.loads(await socket.recv())["data"]
        rewards = acknowledged.setdefault(begun["metadata"]["session_id"], [])
        try:
            while True:
                await socket.send(json.dumps({"type": "step", "data": ACTION}))
                rewards.append(json.loads(await socket.recv())["data"]["reward"])
        except ConnectionClosed:
            return


@pytest.mark.deep
def test_kill_in_the_middle_of_fifty_sessions_under_load(
    tmp_path: Path, start_server: Start
) -> None:
    """Every acknowledged window is there, with its reward, and every session continues."""
    server = start_server(tmp_path)
    acknowledged: dict[str, list[float]] = {}

    async def load() -> None:
        players = [play_until_cut(server.url, number, acknowledged) for number in range(50)]
        running = asyncio.gather(*players)
        while sum(map(len, acknowledged.values())) < 500:
            await asyncio.sleep(0.01)
        server.kill()
        await running

    asyncio.run(load())
    assert len(acknowledged) == 50
    server = start_server(tmp_path)
    for session_id, rewards in acknowledged.items():
        log = httpx.get(
            f"{server.url}/episode_log", params={"session_id": session_id}, timeout=60.0
        ).json()
        logged = [entry["reward"] for entry in log["episode_log"][1:]]
        # At most the one window that was under way is logged beyond what was acknowledged.
        assert logged[: len(rewards)] == rewards
        assert len(logged) - len(rewards) in (0, 1)
        post(server, "/step", session_id=session_id, action=ACTION)


def test_an_evicted_session_comes_back(start_server: Start, undisturbed: list[float]) -> None:
    """With room for two sessions in memory, ten take turns and none notices."""
    server = start_server(JAXSERVE_LIVE_SESSIONS="2")
    sessions = [post(server, "/reset", task_id=3, seed=11)["session_id"] for _ in range(5)]
    rewards: dict[str, list[float]] = {session_id: [] for session_id in sessions}
    for _ in range(4):
        for session_id in sessions:
            rewards[session_id] += rewards_of(server, session_id, 1)
    assert all(found == undisturbed[:4] for found in rewards.values())
    assert httpx.get(f"{server.url}/runtime").json()["live_sessions"] == 2


def test_an_expired_session_says_so(start_server: Start) -> None:
    """404 with a sentence, and others are not meant."""
    server = start_server(JAXSERVE_SESSION_IDLE_S="1")
    session_id = post(server, "/reset", task_id=1, seed=1)["session_id"]
    rewards_of(server, session_id, 1)
    time.sleep(1.2)
    for path, body in (("/step", {"action": {}}), ("/grader", {}), ("/reset", {})):
        answer = httpx.post(server.url + path, json={"session_id": session_id, **body})
        assert answer.status_code == 404
        assert "has expired after 1 seconds without use" in answer.json()["error"]
    post(server, "/reset", task_id=1, seed=1)


def test_two_processes_serve_one_session(
    start_server: Start, tmp_path: Path, undisturbed: list[float]
) -> None:
    """Windows that come to either in turn are those of one episode, and none is taken twice."""
    first, second = start_server(tmp_path), start_server(tmp_path)
    session_id = post(first, "/reset", task_id=3, seed=11)["session_id"]
    rewards = []
    for number in range(20):
        rewards += rewards_of((first, second)[number % 2], session_id, 1)
    assert rewards == undisturbed[:20]

    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=300.0) as client:
            return await asyncio.gather(
                *(
                    client.post(
                        f"{(first, second)[number % 2].url}/step",
                        json={"session_id": session_id, "action": ACTION},
                    )
                    for number in range(20)
                )
            )

    answers = asyncio.run(both())
    taken = [a.json()["info"]["step"] for a in answers if a.status_code == 200]
    assert len(set(taken)) == len(taken)
    assert state_of(first, session_id) == state_of(second, session_id)
    assert state_of(first, session_id)["step_count"] == 20 + len(taken)
    assert {a.status_code for a in answers} <= {200, 409}


def test_workers_without_a_file_to_share_refuse_to_start(tmp_path: Path) -> None:
    """With a reason from each, instead of losing sessions at random; none is started again."""
    variables = {"JAXSERVE_DATABASE": ":memory:"}
    # The parent waits as long as a health check may take for one that is no more.
    workers = ("--workers", "2", "--timeout-worker-healthcheck", "20")
    server = LocalServer(tmp_path, arguments=workers, variables=variables)
    try:
        server.process.wait(300)
    finally:
        server.stop()
    said = server.said()
    assert 1 <= said.count("server: 2 server processes cannot share sessions kept in memory") <= 2
    assert "Application startup complete" not in said
    assert "Traceback" not in said


def test_a_restart_on_a_full_disk(
    small_disk: Path, start_server: Start, undisturbed: list[float]
) -> None:
    """Sessions can be read and steps are refused; once there is room, both go on by themselves."""
    log = {"JAXSERVE_DATABASE": str(small_disk / "sessions.sqlite3")}
    server = start_server(**log)
    session_id = post(server, "/reset", task_id=3, seed=11)["session_id"]
    rewards = rewards_of(server, session_id, 5)
    server.kill()
    filled = fill(small_disk)
    server = start_server(**log)
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
    assert state_of(server, session_id)["step_count"] == 5
    body = {"session_id": session_id, "action": ACTION}
    refused = httpx.post(f"{server.url}/step", json=body, timeout=300.0)
    assert refused.status_code == 507, refused.text
    assert "the session log cannot be written" in refused.json()["error"]
    assert state_of(server, session_id)["step_count"] == 5
    filled.unlink()
    wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    rewards += rewards_of(server, session_id, 5)
    assert rewards == undisturbed[:10]
