"""The commands and the code of docs/rollouts.md, rollout_service.md, rollout_cluster.md and
train_operator.md run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import httpx
import kubernetes_validate
import pytest
import yaml
from starlette.requests import Request
from starlette.responses import Response

from jaxserve import cli
from jaxserve.checks import JsonObject
from jaxserve.gateway.settings import AccessTokens
from jaxserve.rollouts.dashboard.app import DASHBOARD
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.sandboxes import SandboxCommand, parse_sandbox
from jaxserve.rollouts.sandboxes.processes import WrappedSandbox
from jaxserve.rollouts.service.cluster import node
from jaxserve.rollouts.service.cluster.topology import read_topology
from jaxserve.rollouts.service.settings import NodeSettings, RolloutTokens
from jaxserve.rollouts.trainers import token_rewards
from jaxserve.runtime.child_processes import own_process
from server.local import free_port
from tests.docs.snippets import blocks, run_code
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.test_page import printed_by, running
from tests.gateway.token_engine import TokenEngine
from tests.patience import wait_until
from tests.rollouts.sandboxes.commands import executed
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.commands import client as client_of
from tests.rollouts.service.service_thread import RunningService, ended

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


CLUSTER = DOCS / "rollout_cluster.md"
RUNTIME = re.compile(r"^<!-- runtime -->\n```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def files_of(page: Path) -> dict[str, str]:
    """Texts of the files of a page, by name."""
    return {block.file: block.code for block in blocks(page) if block.file is not None}


def test_the_topologies(tmp_path: Path) -> None:
    """The topologies on the page of clusters are valid."""
    path, files = tmp_path / "topology.yaml", files_of(CLUSTER)
    plans = []
    for name in ("topology.yaml", "elsewhere.yaml"):
        path.write_text(files[name])
        plans.append(read_topology(path).nodes["a"])
    here, elsewhere = plans
    assert here.settings.run_workers == 8 and "vllm=http://127.0.0.1:8000" in here.gateway
    assert elsewhere.settings.service == "http://10.0.0.1:9100"
    assert elsewhere.settings.registered_control == "http://10.0.0.2:9001"


def test_the_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on the page of clusters are accepted: prefixes with their limits, JSON included, and
    sandboxes, the page's own class as well."""
    (tmp_path / "my_sandboxes.py").write_text(files_of(CLUSTER)["my_sandboxes.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [json.loads(text) for text in RUNTIME.findall(CLUSTER.read_text(encoding="utf-8"))]
    assert len(found) == 5
    found.append({"kind": "my_sandboxes:OtherDisk", "disk": str(tmp_path)})
    top = tmp_path / "t" / "0.1"
    for runtime in found:
        sandbox = parse_sandbox(JsonObject(runtime, "runtime"))(top)
        if isinstance(sandbox, WrappedSandbox):
            argv = sandbox.command_line(SandboxCommand(("x",), top, {}, top, {})).argv
            assert "{{" not in " ".join((*argv, *sandbox.removal()))
            given = [word for word in argv if word.startswith("--overrides=")]
            for word in given:
                pod = json.loads(word.removeprefix("--overrides="))
                pod["spec"]["containers"][0]["image"] = "my-agents"
                named = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
                kubernetes_validate.validate(named | pod, "1.31", strict=True)
    (top / "work").mkdir(parents=True)
    ended = asyncio.run(executed(found[-1], top, ["/bin/sh", "-c", 'echo "$KEY" > said']))
    assert ended.code == 0 and (top / "work" / "said").read_text() == "SECRET\n"


def started_nodes(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> NodeSettings:
    """The settings of a node that ``jaxserve`` would start, checked."""
    found: list[NodeSettings] = []
    monkeypatch.setattr(node, "run", found.append)
    assert cli.main(arguments) == 0
    found[0].check()
    return found[0]


STAND_IN = """#!/bin/sh
case "$0" in
  */srun) while [ "$1" != bash ]; do shift; done; SLURM_PROCID=3 exec "$@" ;;
  *) printf '%s\\n' "$@" > told ;;
esac
"""


def test_a_batch_script_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell reads it, and each of its tasks starts a node with a name and folder of its own;
    without a token it starts none."""
    script = tmp_path / "nodes.sbatch"
    script.write_text(files_of(CLUSTER)["nodes.sbatch"])
    for name in ("srun", "jaxserve"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    subprocess.run(["bash", "-n", script], check=True)
    tokens = dict.fromkeys(("JAXSERVE_ROLLOUT_TOKEN", "JAXSERVE_GATEWAY_CONTROL_TOKEN"), "t")
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    run = partial(subprocess.run, ["bash", script], cwd=tmp_path, capture_output=True)
    assert run(env=given).returncode != 0 and not (tmp_path / "told").exists()
    run(env=given | tokens, check=True)
    told = started_nodes(monkeypatch, (tmp_path / "told").read_text().splitlines())
    assert (told.id, told.save_dir) == ("slurm-7-3", Path("nodes/7-3"))
    assert (told.service, told.run_workers) == ("http://head:9100", 16)


def test_a_deployment_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest follows the schema of Kubernetes, and its pods start nodes."""
    manifest = yaml.safe_load(files_of(CLUSTER)["nodes.yaml"])
    kubernetes_validate.validate(manifest, "1.31", strict=True)
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    given = {one["name"] for one in container["env"]}
    assert {"JAXSERVE_ROLLOUT_TOKEN", "JAXSERVE_GATEWAY_CONTROL_TOKEN"} < given
    pod = "jaxserve-node-7d9f8b6c5-x2x4z"
    arguments = [one.replace("$(POD_NAME)", pod) for one in container["args"]]
    told = started_nodes(monkeypatch, [*container["command"][1:], *arguments])
    assert (told.id, told.gateway, told.run_workers) == (pod, "http://head:9000", 16)


@pytest.mark.slow
def test_nodes_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script starts a node on the machine of Ray's cluster, which takes a session; the node
    ends with the script."""
    script = tmp_path / "nodes_on_ray.py"
    script.write_text(files_of(CLUSTER)["nodes_on_ray.py"])
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    monkeypatch.setenv("JAXSERVE_ROLLOUT_TOKEN", "of-the-service")
    monkeypatch.setenv("JAXSERVE_GATEWAY_CONTROL_TOKEN", "of-the-gateway")
    tokens = RolloutTokens("of-the-service", "of-the-gateway")
    with (
        TokenEngine("vllm") as engine,
        RunningGateway(
            [engine.option], tokens=AccessTokens(control=tokens.control), sessions=tmp_path / "r"
        ) as gateway,
        RunningService(gateway, tmp_path / "s", tokens, own_node=False) as service,
    ):
        service.http.headers["Authorization"] = "Bearer of-the-service"
        addresses = [service.url, gateway.url, gateway.control_url]
        with own_process([sys.executable, script, *addresses], cwd=tmp_path):
            (one,) = service.result(service.submit(agent=python(SPEAK)))["sessions"]
            assert (one["state"], one["reason"]) == ("COMPLETED", "")
            assert one["node"].startswith("ray-")

        def is_gone() -> bool:
            (told,) = service.http.get("/nodes").json()["nodes"]
            return told["health"] != "up"

        wait_until(is_gone, "the node's end")


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
