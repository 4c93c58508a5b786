"""Nodes elsewhere: they ask for work, tell how it ended, and each session ends once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.service.api.app import RolloutService
from jaxserve.rollouts.service.cluster.topology import parse_topology
from jaxserve.rollouts.service.settings import POOLS, RolloutSettings, RolloutTokens
from jaxserve.rollouts.service.state.database import StateDatabase
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S, wait_until
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import ENDED, RunningNode, RunningService


def test_two_nodes(gateway: RunningGateway, tmp_path: Path) -> None:
    """Share a task; its trajectories come to the service; events are told as they happen; who
    drains gets nothing more, and who leaves gives back what it had."""
    one_each = {"init_workers": 1, "run_workers": 1}
    with (
        RunningService(gateway, tmp_path / "s", own_node=False) as service,
        RunningNode(service, gateway, tmp_path / "a", "a", **one_each),
        RunningNode(service, gateway, tmp_path / "b", "b", **one_each) as last,
    ):
        http = service.http
        wait_until(lambda: len(http.get("/nodes").json()["nodes"]) == 2, "both nodes")
        task = service.submit(agent=python(SPEAK), num_samples=4)
        found = service.result(task)
        assert found["completed"] == 4
        assert {one["node"] for one in found["sessions"]} == {"a", "b"}
        for sample, one in enumerate(found["sessions"]):
            (told,) = read_trajectories(tmp_path / f"s/traces/{task}/{sample}.jsonl")
            assert told.traces[0].reward == one["reward"] == 1.0
            assert told.traces[0].metadata["session"] == one["session_id"]
            got = http.get(f"/sessions/{one['session_id']}/completions")
            assert got.status_code == 200 and len(got.text.splitlines()) == 1
        events = followed(http, service.url, 4)
        assert sum(event in ENDED for event in events) == 4
        assert http.post("/nodes/a/drain", json={}).json()["draining"]
        task = service.submit(agent=python("import time; time.sleep(1000)"), num_samples=1)
        service.wait_for(task, "RUNNING")
        (one,) = http.get(f"/tasks/{task}/sessions").json()["sessions"]
        assert one["node"] == "b"
        http.post("/nodes/a/resume", json={})
        last.leave()
        wait_until(
            lambda: http.get(f"/tasks/{task}/sessions").json()["sessions"][0]["node"] == "a",
            "the other node",
        )
        service.wait_for(task, "RUNNING")
        http.post(f"/rollout/task/{task}/cancel")
        (one,) = service.result(task)["sessions"]
        assert (one["state"], one["reason"]) == ("ERROR", "cancelled")


def test_a_gateway_elsewhere(gateway: RunningGateway, tmp_path: Path) -> None:
    """The service shows its records although a gateway of its own machine has the same port: the
    topology has the address of the control port."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway(
            [engine.option],
            sessions=tmp_path / "r",
            control_host="127.0.0.2",
            control_port=gateway.control_port,
        ) as there,
        RunningService(gateway, tmp_path / "s", own_node=False) as service,
    ):
        node = {"id": "a", "control_host": "127.0.0.2", "control_port": there.control_port}
        node |= {"inference": {"engine": "vllm", "base_url": engine.url}}
        settings = parse_topology({"nodes": [node]}).nodes["a"].settings
        doors = {"control": settings.control, "control_url": settings.control_url}
        with RunningNode(service, there, tmp_path / "a", "a", **doors):
            (one,) = service.result(service.submit(agent=python(SPEAK)))["sessions"]
        assert one["state"] == "COMPLETED"
        got = service.http.get(f"/sessions/{one['session_id']}/completions")
        assert got.status_code == 200 and len(got.text.splitlines()) == 1


def test_an_address_of_the_nodes_own_machine(tmp_path: Path) -> None:
    """A loopback address of a node on another machine is refused: it would be the service's own."""
    state = StateDatabase(tmp_path / "state.sqlite3")
    service = RolloutService(RolloutSettings(save_dir=tmp_path), RolloutTokens(), state)

    def register(client: str, control: str) -> httpx.Response:
        about = {"id": "a", "start": "1", "pools": dict.fromkeys(POOLS, 1)}
        about |= {"gateway": "http://127.0.0.1:9000", "control": control}
        transport = httpx.ASGITransport(service, client=(client, 40_000))

        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.1") as http:
                return await http.post("/nodes/register", json=about)

        return asyncio.run(answer())

    refused = register("10.0.0.2", "http://127.0.0.1:9001")
    assert refused.status_code == 400
    assert "node: control is 'http://127.0.0.1:9001'" in refused.json()["error"]["message"]
    assert "--control-url" in refused.json()["error"]["message"] and not state.nodes()
    for client in ("127.0.0.1", "10.0.0.1"):  # this machine, by either of its addresses
        assert register(client, "http://127.0.0.1:9001").status_code == 201
    assert register("10.0.0.2", "http://10.0.0.2:9001").status_code == 201
    state.close()


def followed(http: httpx.Client, url: str, ends: int) -> list[str]:
    """States of the stream of events, until so many are ends."""
    found: list[str] = []
    with http.stream("GET", f"{url}/events/stream", timeout=PATIENCE_S) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                found.append(line.partition('"state":"')[2].partition('"')[0])
            if sum(state in ENDED for state in found) == ends:
                return found
    raise AssertionError("the stream ended")
