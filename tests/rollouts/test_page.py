"""The commands and the code of docs/rollouts.md, rollout_service.md and train_operator.md run."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from jaxserve.rollouts.dashboard.app import DASHBOARD
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.service.cluster.topology import read_topology
from jaxserve.rollouts.trainers import token_rewards
from server.local import free_port
from tests.docs.snippets import blocks, run_code
from tests.gateway.test_page import printed_by, running
from tests.gateway.token_engine import TokenEngine
from tests.rollouts.service.commands import client as client_of
from tests.rollouts.service.service_thread import ended

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "rollouts.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client talks through a session, and both turns are one trace."""
    monkeypatch.chdir(tmp_path)
    (command,) = (block.code.strip() for block in blocks(PAGE) if block.language == "sh")
    codes = [block.code for block in blocks(PAGE) if block.language == "python"]
    with TokenEngine("vllm") as engine:
        printed = printed_by(command, codes, engine.url)
    trace, counts = printed.splitlines()
    between = [0] * len("<And?>.")
    assert trace == f"17 {[1, 1, 1, *between, 1, 1, 1]} (13,)" and counts == "{} {}"


def test_the_topologies(tmp_path: Path) -> None:
    """The topologies on the service's page are valid."""
    path, plans = tmp_path / "topology.yaml", []
    for block in blocks(DOCS / "rollout_service.md"):
        path.write_text(block.code)
        plans.append(read_topology(path).nodes["a"])
    here, elsewhere = plans
    assert here.settings.run_workers == 8 and "vllm=http://127.0.0.1:8000" in here.gateway
    assert elsewhere.settings.service == "http://10.0.0.1:9100"
    assert elsewhere.settings.registered_control == "http://10.0.0.2:9001"


class Operator(TokenEngine):
    """A model that calls ``step`` whatever it is told."""

    async def _answer(self, request: Request) -> Response:
        knobs = json.dumps({"batch_cap": 96})
        turn = f"{len(self.seen)}_"
        stub = {"reply": "", "calls": ["step"], "arguments": knobs, "turn": turn}
        request.scope["headers"].append((b"x-stub", json.dumps(stub).encode()))
        return await super()._answer(request)


@pytest.mark.slow
def test_an_operator_is_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of the page runs, from nothing to a file for trainers, beside an engine that
    calls the tool; every sampled token is there with its log-probability and reward."""
    monkeypatch.chdir(tmp_path)
    ports = {port: str(free_port()) for port in ("7860", "8000", "9000", "9001", "9100", "9101")}

    def moved(text: str) -> str:
        return re.sub(r"\b(7860|8000|9000|9001|9100|9101)\b", lambda found: ports[found[0]], text)

    found = list(blocks(DOCS / "train_operator.md"))
    for block in found:
        if block.file is not None:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(moved(block.code))
    commands = [block.code.strip() for block in found if block.language == "sh"]
    server, gateway, service, dashboard, client = map(moved, commands)
    gateway += f" --port {ports['9000']} --control-port {ports['9001']}"
    doors = f"--gateway http://127.0.0.1:{ports['9000']} --control http://127.0.0.1:{ports['9001']}"
    service += f" --port {ports['9100']} {doors}"
    at = f"--service http://127.0.0.1:{ports['9100']}"
    dashboard += f" --port {ports['9101']} {at}"
    client = "\n".join(f"{line} {at}" for line in client.splitlines())
    # Agents find the project where these tests find it.
    root = DOCS.parent
    monkeypatch.setenv("PYTHONPATH", str(root))
    task = Path("task.json")
    task.write_text(
        task.read_text().replace(
            '"runtime": {', f'"runtime": {{"variables": {{"PYTHONPATH": "{root}"}}, '
        )
    )
    interrupted = 130
    with ExitStack() as stack:
        stack.enter_context(Operator("vllm", int(ports["8000"])))
        stack.enter_context(running(server, f"http://127.0.0.1:{ports['7860']}", interrupted))
        for command, port in ((gateway, "9000"), (service, "9100")):
            stack.enter_context(running(command, f"http://127.0.0.1:{ports[port]}"))
        pages = f"http://127.0.0.1:{ports['9101']}"
        stack.enter_context(running(dashboard, pages))
        assert '"task_id": "first"' in run_code("sh", client, tmp_path)
        seen = httpx.get(f"{pages}/api/tasks", headers=DASHBOARD.headers(pages)).json()
        assert seen["tasks"][0]["task_id"] == "first"
        http = stack.enter_context(client_of(f"http://127.0.0.1:{ports['9100']}"))
        result = ended(http, "first")
        assert [one["reason"] for one in result["sessions"]] == ["", ""]
        assert all(one["evaluation"]["windows"] == 3 for one in result["sessions"])
        printed = StringIO()
        (code,) = (b.code for b in found if b.language == "python" and b.file is None)
        with redirect_stdout(printed):
            exec(compile(code, "the page", "exec"), {})
        assert printed.getvalue().count("COMPLETED") == 2
        (first, _) = read_trajectories("first.parquet")
        assert first.trainable == first.traces[0].trainable > 0
        rewards = [one[2] for one in result["sessions"][0]["evaluation"]["completions"]]
        assert first.traces[0].reward == result["sessions"][0]["evaluation"]["score"]
        assert token_rewards(first.traces[0]).sum() == pytest.approx(sum(rewards))
