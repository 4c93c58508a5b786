"""Tasks from their submission to their result, with real processes and a real gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from jaxserve.client import ServeClient
from jaxserve.errors import InputError
from jaxserve.rollouts.service.api.app import open_service
from jaxserve.rollouts.service.settings import RolloutSettings, RolloutTokens
from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server.local import LocalServer, free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.patience import alive, wait_until
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.commands import client
from tests.rollouts.service.service_thread import ENDED, RunningService, ended

PLAYER = str(Path(__file__).parents[1] / "player.py")


def test_a_task_from_end_to_end(service: RunningService) -> None:
    """Every sample speaks in a session of its own; its tokens are there, and states in order."""
    task = service.submit(agent=python(SPEAK), num_samples=3, metadata={"a": 1})
    found = service.result(task)
    assert (found["completed"], found["mean_reward"], found["metadata"]) == (3, 1.0, {"a": 1})
    assert len({one["records"] for one in found["sessions"]}) == 3
    for one in found["sessions"]:
        assert (one["state"], one["traces"], one["trainable"]) == ("COMPLETED", 1, 3)
        assert one["trace_rewards"] == [1.0]
    events = service.http.get("/events").json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    states = [event["state"] for event in events if event["session_id"] == f"{task}.1"]
    assert states == [
        "REGISTERED",
        "INITIALIZING",
        "READY",
        "RUNNING",
        "POST_RUN",
        "BUILDING",
        "EVALUATING",
        "COMPLETED",
    ]
    status = service.http.get("/rollout/status").json()
    assert status["sessions"]["COMPLETED"] == 3
    assert service.http.get("/tasks").json()["tasks"][0]["states"] == {"COMPLETED": 3}


def test_an_instruction_is_one_argument(service: RunningService, tmp_path: Path) -> None:
    """Whatever it has: no shell reads it."""
    nasty = f"'; touch {tmp_path}/pwned; $(touch {tmp_path}/pwned) \" {{{{INSTRUCTION}}}}\n`x`"
    code = "import os, sys; open(os.environ['ARTIFACTS_DIR'] + '/said', 'w').write(sys.argv[1])"
    task = service.submit(agent=python(code, "{{INSTRUCTION}}"), instruction=nasty)
    assert service.result(task)["completed"] == 1
    (said,) = (tmp_path / "state").rglob("artifacts/said")
    assert said.read_text() == nasty and not (tmp_path / "pwned").exists()


def test_a_time_out_keeps_what_was_said(service: RunningService) -> None:
    """The agent is killed with all its children, and its tokens are there."""
    code = SPEAK + "import subprocess; subprocess.run(['sleep', '1000'])"
    task = service.submit(agent=python(code), timeout_seconds=4.0)
    (one,) = service.result(task)["sessions"]
    assert (one["state"], one["traces"], one["trainable"]) == ("TIMEOUT", 1, 3)
    assert one["reason"] == "the agent ran until the time was up" and one["reward"] == 0.0


def test_an_agent_that_fails(service: RunningService) -> None:
    """Ends with the reason, and so does a command that is not there."""
    task = service.submit(agent=python(SPEAK + "raise SystemExit(3)"))
    (one,) = service.result(task)["sessions"]
    assert (one["state"], one["reason"]) == ("ERROR", "the agent ended with exit code 3")
    assert one["trainable"] == 3
    task = service.submit(agent={"command": ["no-such-program"]})
    (one,) = service.result(task)["sessions"]
    assert one["state"] == "ERROR" and "cannot be started: No such file" in one["reason"]


def test_cancel(service: RunningService, gateway: RunningGateway, tmp_path: Path) -> None:
    """Ends all sessions once, kills the agents, and refuses their keys."""
    mark = tmp_path / "running"
    code = "import os, time; key = os.environ['OPENAI_API_KEY']\n"
    code += f"print(os.getpid(), key, file=open({str(mark)!r}, 'a')); time.sleep(1000)"
    task = service.submit(agent=python(code), num_samples=6)
    wait_until(lambda: mark.exists() and mark.read_text().endswith("\n"), "an agent")
    begun = [line.split() for line in mark.read_text().splitlines()]
    said = service.http.post(f"/rollout/task/{task}/cancel").json()
    assert len(said["cancelled"]) == 6
    found = service.result(task)
    assert {(one["state"], one["reason"]) for one in found["sessions"]} == {("ERROR", "cancelled")}
    assert service.http.post(f"/rollout/task/{task}/cancel").json()["cancelled"] == []
    ends = [e for e in service.http.get("/events").json()["events"] if e["state"] in ENDED]
    assert len(ends) == 6
    asked = {"model": "stub", "messages": [{"role": "user", "content": "hi"}]}
    for pid, key in begun:
        wait_until(lambda pid=pid: not alive(int(pid)), "the agent's end")

        def status(key: str = key) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.post(
                f"{gateway.url}/v1/chat/completions", json=asked, headers=headers
            ).status_code

        wait_until(lambda status=status: status() == 401, "the key's end")


def test_an_evaluator_of_ones_own(service: RunningService) -> None:
    """The evaluator is constructed from its options, and gets the records."""
    own = {"name": "tests.rollouts.evaluators.user_evaluators:Worth", "worth": 0.25}
    (one,) = service.result(service.submit(agent=python(SPEAK), evaluator=own))["sessions"]
    assert (one["state"], one["reward"], one["trace_rewards"]) == ("COMPLETED", 0.25, [0.25])
    assert one["evaluation"] == {"told": "do it", "records": 1}


def test_commands_before_the_agent_and_before_its_tests(
    service: RunningService, tmp_path: Path
) -> None:
    """``prepare`` runs in the agent's copy, ``eval_prepare`` in the evaluator's; one that fails
    ends the session, and the agent never begins."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "tests.py").write_text("print('PASSED' if open('made').read() == 'E' else 'x', 'a')")
    evaluator = {"name": "test_on_output", "command": [sys.executable, "tests.py"]}
    evaluator |= {"keep": ["tests.py", "made"], "expected": ["a"]}

    def write(letter: str) -> list[str]:
        return [sys.executable, "-c", f"open('made', 'w').write({letter!r})"]

    runtime = {"source": str(source), "prepare": [write("P")], "eval_prepare": [write("E")]}
    agent = python("raise SystemExit(open('made').read() != 'P')")
    (one,) = service.result(service.submit(agent=agent, evaluator=evaluator, runtime=runtime))[
        "sessions"
    ]
    assert (one["state"], one["reward"]) == ("COMPLETED", 1.0)
    broken = {"prepare": [write("P"), [sys.executable, "-c", "raise SystemExit(4)"]]}
    task = service.submit(agent=python(SPEAK), runtime=broken)
    (one,) = service.result(task)["sessions"]
    reason = "runtime: prepare[1] ended with exit code 4"
    assert (one["state"], one["reason"], one["completions"]) == ("ERROR", reason, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "the task is []; it must be a JSON object"),
        ({}, "the task: instruction is missing; it must be a text"),
        ({"x": 1}, "the task: field 'x' is unknown"),
        ({"num_samples": 0}, "num_samples is 0; it must be a whole number"),
        ({"timeout_seconds": -1}, "timeout_seconds is -1; it must be"),
        ({"task_id": "../x"}, "task_id is '../x'; it must be up to 96 letters"),
        ({"agent": {"command": []}}, "agent: command is []; it must be a text, or a list"),
        ({"agent": {"command": 3}}, "agent: command is 3; it must be a text, or a list"),
        ({"agent": {"command": "sh -c {{INSTRUCTION}}"}}, "is no program of -c or eval"),
        ({"agent": {"command": "sh -c 'x {{INSTRUCTION}}'"}}, "is no program of -c or eval"),
        ({"agent": {"command": ["sh", "-ec", "{{INSTRUCTION}}"]}}, "is no program of -c or eval"),
        ({"agent": {"command": ["x", "a{{INSTRUCTION}}"]}}, "an argument that is {{INSTRUCTION}}"),
        ({"agent": {"preset": "codex", "command": "x"}}, "left out of the preset codex"),
        ({"agent": {"preset": "pi", "mcp_servers": {"a": "http://b"}}}, "preset pi knows no MCP"),
        ({"agent": {"preset": "codex", "model": "-x"}}, "agent: model is not usable"),
        ({"runtime": {"kind": "vm"}}, "runtime: kind is 'vm'; it must be one of local, docker"),
        ({"runtime": {"kind": "docker"}}, "runtime: image is None; it must be printable"),
        ({"runtime": {"kind": "docker", "image": "-v"}}, "runtime: image is '-v'"),
        (
            {"runtime": {"image": "x"}},
            "runtime: field 'image' is unknown; allowed are eval_prepare",
        ),
        ({"runtime": {"prepare": ["x"]}}, "runtime: prepare is ['x']; it must be a list of"),
        ({"agent": {"preset": "none", "command": "x"}}, "agent: preset is 'none'; it must be one"),
        ({"runtime": {"source": "/nowhere"}}, "runtime: source is '/nowhere'; it must be a folder"),
        ({"runtime": {"variables": {"HOME": "/"}}}, "that the service does not set"),
        ({"evaluator": {"name": "none"}}, "evaluator: name is 'none'; it must be one of session_"),
        ({"evaluator": {"name": "env_grade"}}, "environment is None; it must be there"),
        ({"evaluator": {"name": "test_on_output"}}, "evaluator: command is missing; it must be"),
        ({"callback_url": "file:///x"}, "callback_url is 'file:///x'; it must be an address"),
        ({"builder": "x"}, "builder is 'x'; it must be one of prefix_merging, per_request"),
    ],
)
def test_a_bad_submission(
    given: Any, message: str, gateway: RunningGateway, tmp_path: Path
) -> None:
    """Gets one sentence, and leaves nothing."""
    with RunningService(gateway, tmp_path) as service:
        if given and "x" not in given:
            given = {"instruction": "do", "agent": {"command": "true"}} | given
        answer = service.http.post("/rollout/task/submit", json=given)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"]
        assert service.http.get("/tasks").json()["tasks"] == []


def test_the_same_task_twice(service: RunningService) -> None:
    """A repeated task is one task; another task with its name is refused."""
    task = {"task_id": "t", "instruction": "a", "agent": {"command": "true"}}
    first, again = (service.http.post("/rollout/task/submit", json=task) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    answer = service.http.post("/rollout/task/submit", json=task | {"instruction": "b"})
    assert answer.status_code == 400 and "another task has it" in answer.json()["error"]["message"]
    assert len(service.result("t")["sessions"]) == 1


def test_who_may_submit(gateway: RunningGateway, tmp_path: Path) -> None:
    """Clients with the token, not pages of a browser, and not other machines."""
    tokens = RolloutTokens(service="secret")
    with RunningService(gateway, tmp_path, tokens) as service:
        assert service.http.get("/tasks").status_code == 401
        assert service.http.get("/health").status_code == 200
        headers = {"Authorization": "Bearer secret", "content-type": "text/plain"}
        answer = service.http.post("/rollout/task/submit", content=b"{}", headers=headers)
        assert answer.status_code == 415
    with pytest.raises(InputError, match=r"--host is 0\.0\.0\.0, which other machines reach"):
        open_service(RolloutSettings(host="0.0.0.0", save_dir=tmp_path), RolloutTokens())


def test_a_result_is_pushed_until_it_is_taken(service: RunningService) -> None:
    """A target that fails twice gets it the third time, and never again."""
    taken: list[dict[str, Any]] = []

    class Target(BaseHTTPRequestHandler):
        """Refuses two."""

        def do_POST(self) -> None:
            """Takes a result."""
            taken.append(orjson.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200 if len(taken) > 2 else 503)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Target) as target:
        threading.Thread(target=target.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{target.server_port}/"
        task = service.submit(agent={"command": "true"}, callback_url=url)
        wait_until(
            lambda: service.http.get("/tasks").json()["tasks"][0]["callback"] == "sent", "the push"
        )
        target.shutdown()
    assert taken == [service.result(task)] * 3


def test_tests_on_what_an_agent_left(service: RunningService, tmp_path: Path) -> None:
    """The agent's changes are tested on a fresh copy, with the original tests."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "add.py").write_text("print('FAILED add')\n")
    (source / "tests.py").write_text("exec(open('add.py').read())\n")
    evaluator = {
        "name": "test_on_output",
        "command": [sys.executable, "tests.py"],
        "keep": ["tests.py"],
        "expected": ["add"],
    }
    fix = "open('add.py', 'w').write('print(\"PASSED add\")')"
    cheat = "open('tests.py', 'w').write('print(\"PASSED add\")')"
    rewards = []
    for code in (fix, cheat):
        task = service.submit(
            agent=python(code), evaluator=evaluator, runtime={"source": str(source)}
        )
        (one,) = service.result(task)["sessions"]
        rewards.append((one["state"], one["reward"], one["evaluation"]["failed"]))
    assert rewards == [("COMPLETED", 1.0, []), ("COMPLETED", 0.0, ["add"])]
    assert (source / "add.py").read_text() == "print('FAILED add')\n"


@pytest.mark.slow
def test_an_agent_plays_an_episode(service: RunningService, server: LocalServer) -> None:
    """The reward is the server's own grade, and every window is its completion's."""
    task = service.submit(
        agent={"command": [sys.executable, PLAYER, "{{INSTRUCTION}}", "1000"]},
        environment={"url": server.url, "task_id": "bursty_workload", "seed": 42},
        evaluator={"name": "env_grade"},
        timeout_seconds=300,
    )
    (one,) = service.result(task)["sessions"]
    assert (one["state"], one["reason"]) == ("COMPLETED", "")
    worth = one["evaluation"]
    print("score", one["reward"], "windows", worth["windows"])
    assert worth["windows_without_completion"] == 0 and worth["verified"]
    with ServeClient(server.url) as same:
        same.reset(task_id="bursty_workload", seed=42)
        rewards = []
        for window in range(worth["windows"]):
            knobs = {"batch_cap": 96 - window % 2, "speculation_depth": 2}
            rewards.append(same.step(knobs).reward)
        assert one["reward"] == same.grade()["score"] > 0.0
    assert worth["completions"] == [[n, 0, reward] for n, reward in enumerate(rewards, 1)]
    assert set(one["trace_rewards"]) == {one["reward"]}


@pytest.mark.slow
def test_a_killed_service_ends_every_task_once(gateway: RunningGateway, tmp_path: Path) -> None:
    """Killed twice in the middle: agents end with it, and all that was submitted has one end."""
    port, folder = free_port(), tmp_path / "state"
    command = [sys.executable, "-m", "jaxserve.cli", "rollout", "serve", "--port", str(port)]
    command += ["--gateway", gateway.url, "--control", gateway.control_url]
    command += ["--save-dir", str(folder)]
    mark = tmp_path / "running"
    code = SPEAK + f"import os, time; open({str(mark)!r}, 'a').write(str(os.getpid()) + ' ')\n"
    http = client(f"http://127.0.0.1:{port}")

    life = ExitStack()

    def start() -> subprocess.Popen[bytes]:
        process = life.enter_context(own_process(command))
        wait_until_answers(f"http://127.0.0.1:{port}/health", process)
        return process

    names = [f"t{number}" for number in range(6)]
    process = start()
    try:
        for name in names:
            wait_s = 0.3 if name != "t5" else 1.0
            task = {"task_id": name, "instruction": "go", "num_samples": 2}
            task["agent"] = python(f"{code}time.sleep({wait_s})")
            assert http.post("/rollout/task/submit", json=task).status_code == 201
        for kills in (1, 2):
            wait_until(
                lambda kills=kills: mark.exists() and len(mark.read_text().split()) >= 2 * kills
            )
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            for agent in agents(mark):
                wait_until(lambda agent=agent: not alive(agent), "the agent's end")
            process = start()
        found = [ended(http, name) for name in names]
        events = http.get("/events", params={"limit": 10_000}).json()["events"]
    finally:
        life.close()
    assert all(task["completed"] == 2 for task in found)
    ends = [event["session_id"] for event in events if event["state"] in ENDED]
    assert sorted(ends) == sorted(f"{name}.{sample}" for name in names for sample in range(2))
    again = [one["attempt"] for task in found for one in task["sessions"]]
    print("attempts", again)
    assert max(again) > 1


def agents(mark: Path) -> list[int]:
    """Process ids of agents that have run."""
    return [int(pid) for pid in mark.read_text().split()] if mark.exists() else []
