"""Nodes as operators start them: by options and by a topology, and killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from jaxserve import cli
from jaxserve.rollouts.files import read_trajectories
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S, alive, wait_until
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.commands import begun, client, submitted
from tests.rollouts.service.service_thread import ENDED, RunningService, ended


@pytest.mark.slow
def test_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A service, a node and the node's gateway start from one file and finish a task. Both end in
    order, and the gateway ends with its node."""
    ports = {name: free_port() for name in ("service", "clients", "control")}
    url, control = (f"http://127.0.0.1:{ports[name]}" for name in ("service", "control"))
    path = tmp_path / "topology.yaml"
    with TokenEngine("vllm") as engine:
        node = {
            "id": "a",
            "port": ports["clients"],
            "control_port": ports["control"],
            "models": ["tiny"],
            "inference": {"engine": "vllm", "base_url": engine.url},
            "workers": {"run": 2},
        }
        rollout = {"port": ports["service"], "save_dir": str(tmp_path / "state")}
        gateway = {"heartbeat_s": 0.1}
        path.write_text(yaml.safe_dump({"rollout": rollout, "gateway": gateway, "nodes": [node]}))
        given = ["--topology", str(path)]
        printed = tmp_path / "printed"
        with (
            begun(["rollout", "serve", *given], printed, url) as service,
            begun(["rollout", "gateway", *given, "--node", "a"], printed) as node_,
            client(url) as http,
        ):
            agent = python(SPEAK) | {"model": "tiny"}
            found = ended(http, submitted(http, agent=agent, num_samples=3))
            assert found["completed"] == 3, found
            assert {one["node"] for one in found["sessions"]} == {"a"}
            (told,) = http.get("/nodes").json()["nodes"]
            assert (told["pools"]["run"], told["models"], told["control"]) == (2, ["tiny"], control)
            for process in (node_, service):
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE_S) == 0, printed.read_text()
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{control}/metrics")
    lines = tmp_path / "state" / "nodes" / "a" / "sessions"
    assert len(list(lines.rglob("records.jsonl"))) == 3
    for wrong, said in (
        (["serve", *given, "--port", "1"], "--topology is given; other options stand in its file"),
        (["gateway", *given, "--id", "b"], "--topology is given; other options stand in its file"),
        (["gateway", *given, "--node", "b"], "--node is 'b'; it must be one of a"),
        (["serve", "--topology", str(tmp_path / "none")], "which cannot be read"),
    ):
        assert cli.main(["rollout", *wrong]) == 2
        error = capsys.readouterr().err
        assert said in " ".join(error.split()), error


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_killed_node(gateway: RunningGateway, attempts: int, tmp_path: Path) -> None:
    """KILL takes its agents with it. What had not begun is run by another node, and what had is run
    there again, or ends with the reason where it has no attempt left; nothing ends twice."""
    mark, go = tmp_path / "began", tmp_path / "go"
    code = (
        f"{SPEAK}import time\nopen({str(mark)!r}, 'a').write(str(os.getpid()) + ' ')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )

    def node(id: str, url: str) -> list[str]:
        doors = ["--service", url, "--gateway", gateway.url, "--control", gateway.control_url]
        places = ["--init-workers", "2", "--run-workers", "1", "--heartbeat-s", "0.1"]
        return ["rollout", "gateway", "--id", id, *doors, *places, "--save-dir", str(tmp_path / id)]

    with RunningService(
        gateway, tmp_path / "state", own_node=False, attempts=attempts, silent_s=8.0
    ) as service:
        http, printed = service.http, tmp_path / "printed"

        def states(task: str) -> list[tuple[str, str | None]]:
            sessions = http.get(f"/tasks/{task}/sessions").json()["sessions"]
            return sorted((one["state"], one["node"]) for one in sessions)

        with begun(node("a", service.url), printed) as killed:
            task = service.submit(agent=python(code), num_samples=2)
            wait_until(lambda: states(task) == [("READY", "a"), ("RUNNING", "a")], "the agent")
            wait_until(lambda: mark.exists() and mark.read_text().endswith(" "), "its word")
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
            (pid,) = map(int, mark.read_text().split())
            wait_until(lambda: not alive(pid), "the agent's end")
        go.touch()
        with begun(node("b", service.url), printed):
            found = service.result(task)
        events = http.get("/events", params={"limit": 10_000}).json()["events"]
        recorded = next(e["session_id"] for e in events if e["state"] == "RUNNING") + ".1"
        # Whoever holds the key of the killed attempt speaks with it no more.
        wait_until(lambda: not open_at(gateway, recorded), "its key's end")
    again = next(e["session_id"] for e in events if e["state"] == "RUNNING")
    waited = next(one for one in found["sessions"] if one["session_id"] != again)
    lost = next(one for one in found["sessions"] if one["session_id"] == again)
    assert (waited["state"], waited["node"], waited["completions"]) == ("COMPLETED", "b", 1)
    if attempts == 1:
        assert (lost["state"], lost["reward"]) == ("ERROR", None)
        assert lost["reason"] == "its node was lost in each of 1 attempts"
        assert (lost["records"], lost["attempt"]) == (recorded, 1)
    else:
        assert (lost["state"], lost["node"], lost["completions"]) == ("COMPLETED", "b", 1)
        assert (lost["attempt"], lost["records"]) == (2, f"{again}.2")
        (trajectory,) = read_trajectories(tmp_path / f"state/traces/{task}/{lost['sample']}.jsonl")
        assert len(trajectory.traces) == 1
        reasons = [e["reason"] for e in events if e["session_id"] == again]
        assert "node a was lost" in reasons
    ends = [event["session_id"] for event in events if event["state"] in ENDED]
    assert sorted(ends) == [f"{task}.0", f"{task}.1"]
    assert len(mark.read_text().split()) == (2 if attempts == 1 else 3)
    # What the killed attempt said is on record still, and not counted again.
    assert len(records_of(gateway, f"{again}.1")) == 1


def open_at(gateway: RunningGateway, session: str) -> bool:
    """Whether a gateway's session takes its key."""
    return not gateway.control.get(f"/sessions/{session}").json()["closed"]


def records_of(gateway: RunningGateway, session: str) -> list[Any]:
    """Records of a gateway's session."""
    told = gateway.control.get(f"/sessions/{session}/completions").text
    return [json.loads(line) for line in told.splitlines()]
