"""Access of agents to the ports of their operator, as the commands open them by default."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import httpx
import pytest

from jaxserve import cli
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.rollouts.dashboard.app import DASHBOARD
from jaxserve.rollouts.service.client import SERVICE
from jaxserve.rollouts.service.settings import TOKEN_VARIABLE
from server.local import free_port
from tests.gateway.app.test_serve import process
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S
from tests.rollouts.sandboxes.test_containers import STAND_IN
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.commands import begun, client, submitted
from tests.rollouts.service.service_thread import ended

INTRUDER = (
    SPEAK
    + """
import sys, urllib.error

def status(url, method, headers, body):
    try:
        return u.urlopen(u.Request(url, body and body.encode(), headers, method=method)).status
    except urllib.error.HTTPError as error:
        return error.code

control, service, dashboard, victim = sys.argv[1:]
answers = {}
for shown in ({"content-type": "application/json"}, key):
    for url, method, body in (
        (control + "/sessions", "GET", None),
        (control + "/sessions", "POST", "{}"),
        (control + "/sessions/" + victim + ".1/completions", "GET", None),
        (control + "/sessions/" + victim + ".1", "DELETE", None),
        (control + "/control/inference/pause", "POST", None),
        (service + "/tasks", "GET", None),
        (service + "/sessions/" + victim + "/completions", "GET", None),
        (service + "/rollout/task/submit", "POST", '{"agent": {"command": "true"}}'),
        (service + "/nodes/register", "POST", "{}"),
        (service + "/no/such/route", "GET", None),
        (dashboard + "/", "GET", None),
        (dashboard + "/app.js", "GET", None),
        (dashboard + "/api/tasks", "GET", None),
        (dashboard + "/api/sessions/" + victim + "/completions", "GET", None),
        (dashboard + "/api/sessions/" + victim + "/trajectory", "GET", None),
        (dashboard + "/api/events/stream", "GET", None),
        (dashboard + "/api/tasks?token=" + os.environ["OPENAI_API_KEY"], "GET", None),
    ):
        answers[f"{method} {url} {len(shown)}"] = status(url, method, shown, body)
found = {"answers": answers, "environment": dict(os.environ)}
open(os.environ["ARTIFACTS_DIR"] + "/found.json", "w").write(json.dumps(found))
"""
)


def test_agents_find_them_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands of the user speak to service and gateway with no word of a token, and the dashboard
    prints the address that opens it. An agent, in a container as well, gets none, in its variables,
    its files or its mounts, and is refused."""
    programs, log, folder = tmp_path / "bin", tmp_path / "log", tmp_path / "state"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    url = f"http://127.0.0.1:{(port := free_port())}"
    serve = ("rollout", "serve", "--port", str(port), "--save-dir", str(folder))
    pages = f"http://127.0.0.1:{(pages_port := free_port())}"
    show = ("rollout", "dashboard", "--port", str(pages_port), "--service", url)
    with (
        TokenEngine("vllm") as engine,
        process("--engine", engine.option, "--sessions", str(tmp_path / "r")) as (_, at, control),
        begun(
            [*serve, "--gateway", at, "--control", control],
            tmp_path / "printed",
            url,
        ),
        client(url) as http,
        begun(show, tmp_path / "opened_at", pages),
    ):
        victim = ended(http, submitted(http, agent=python(SPEAK)))["sessions"][0]["session_id"]
        asked = {"instruction": "look", "agent": python(INTRUDER, control, url, pages, victim)}
        container = {"runtime": {"kind": "docker", "image": "img"}}
        for name, more in (("process", {}), ("container", container)):
            file = tmp_path / f"{name}.json"
            file.write_text(json.dumps(asked | more | {"task_id": name}))
            assert cli.main(["rollout", "submit", str(file), "--service", url]) == 0
            assert capsys.readouterr().out == f"{name}\n"
            (one,) = ended(http, name)["sessions"]
            assert (one["state"], one["reason"]) == ("COMPLETED", "")
        assert cli.main(["rollout", "status", "process", "--service", url]) == 0
        assert json.loads(capsys.readouterr().out)["completed"] == 1
        # The records are there, through the service and at the gateway: nobody deleted them.
        assert len(http.get(f"/sessions/{victim}/completions").text.splitlines()) == 1
        (address,) = (tmp_path / "opened_at").read_text().split("dashboard at ")[1].split()
        with httpx.Client(follow_redirects=True, timeout=PATIENCE_S) as browser:
            assert str(browser.get(address).url) == f"{pages}/"
            said = browser.get(f"{pages}/api/sessions/{victim}/completions").text
        assert len(said.splitlines()) == 1
        # A dashboard that begins anew opens at the same address, and says it once.
        assert (tmp_path / "opened_at").read_text().count(DASHBOARD.keep(pages_port)) == 1
        monkeypatch.setenv(TOKEN_VARIABLE, "wrong")
        assert cli.main(["rollout", "status", "--service", url]) == 2
        assert f"asks for its token; set {TOKEN_VARIABLE}" in capsys.readouterr().err
        assert httpx.get(f"{url}/tasks").status_code == 401
    ports = (int(control.rpartition(":")[2]), port, pages_port)
    doors = tuple(
        door.path(at) for door, at in zip((CONTROL, SERVICE, DASHBOARD), ports, strict=True)
    )
    secrets = [path.read_text().strip() for path in doors if path is not None]
    assert len(set(secrets)) == 3 and SERVICE.own_token(url) == secrets[1]
    for name in ("process", "container"):
        (found,) = (folder / "tasks" / name).rglob("artifacts/found.json")
        told = json.loads(found.read_text())
        assert len(told["answers"]) == 34 and set(told["answers"].values()) == {401}
        assert "OPENAI_API_KEY" in told["environment"]
    everything = [path for path in folder.rglob("*") if path.is_file()]
    for path in (*everything, tmp_path / "printed", log):
        assert not any(secret.encode() in path.read_bytes() for secret in secrets), path
    (run,) = (
        call[0]
        for line in log.read_text().splitlines()
        if (call := json.loads(line))[0][0] == "run"
    )
    (mount,) = (one for one in run if one.startswith(("--mount", "--volume", "-v")))
    top = folder / "tasks" / "container" / "0.1"
    assert mount == f"--mount=type=bind,source={top},target={top}"
    assert all(path is not None and folder not in path.parents for path in doors)
