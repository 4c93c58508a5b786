"""Bounds of the service's requests, in size and time, and secrets that it never stores."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from jaxserve.gateway.recording.records import read_records
from jaxserve.gateway.settings import AccessTokens
from jaxserve.rollouts.service.api import app
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.runtime.limited_http import HttpLimits
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

SUBMIT = "/rollout/task/submit"
JSON = {"content-type": "application/json"}


def pieces(size: int) -> Iterator[bytes]:
    """A body that does not say how long it is."""
    for _ in range(0, size, 2**16):
        yield b" " * 2**16


def test_bodies_are_bounded(service: RunningService) -> None:
    """Whether they say their size or not; one at the limit is read, and who sends too much leaves
    nothing behind and shuts nobody out."""
    task = {"instruction": "do", "agent": {"command": "true"}, "metadata": {"x": ""}}
    room = 2**20 - len(json.dumps(task))
    whole, longer = (
        json.dumps({**task, "metadata": {"x": "x" * size}}) for size in (room, room + 1)
    )
    for body in (longer.encode(), pieces(2**24)):
        answer = service.http.post(SUBMIT, content=body, headers=JSON)
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        assert answer.json()["error"]["message"] == "the command has more than 1048576 bytes"
    answer = service.http.post("/nodes/register", content=b" " * 16_385)
    assert (answer.status_code, "16384 bytes" in answer.text) == (413, True)
    assert service.http.get("/tasks").json()["tasks"] == []
    assert service.http.post(SUBMIT, content=whole, headers=JSON).status_code == 201


def said_to(url: str, sent: bytes) -> bytes:
    """The service's answer to a client that sends a part of a request and waits."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), PATIENCE_S) as client:
        client.sendall(sent)
        answer = b""
        while piece := client.recv(2**16):
            answer += piece
    return answer


def test_slow_clients_are_let_go(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head or a body that does not end ends the connection; a large head is refused."""
    monkeypatch.setattr(app, "_LIMITS", HttpLimits(100, 4096, 0.3))
    monkeypatch.setattr(app, "_TASK_S", 0.3)
    with RunningService(gateway, tmp_path) as service:
        head = f"POST {SUBMIT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
        assert said_to(service.url, head) == b""
        answer = said_to(service.url, head + b"content-length: 99\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"the command did not come within 0.3 s"' in answer
        assert said_to(service.url, head + b"a: " + b"b" * 5000).startswith(b"HTTP/1.1 431 ")
        assert service.http.get("/tasks").json()["tasks"] == []


def test_commands_around_an_agent_are_bounded(service: RunningService, tmp_path: Path) -> None:
    """Commands that prepare an agent count in the session's time limit."""
    mark = tmp_path / "began"
    task = service.submit(
        agent=python(f"open({str(mark)!r}, 'w')"),
        runtime={"prepare": [["sleep", "1000"]]},
        timeout_seconds=0.5,
    )
    (one,) = service.result(task)["sessions"]
    assert (one["state"], one["traces"]) == ("TIMEOUT", 0)
    assert one["reason"] == "runtime: prepare[0] ran until the time was up"
    assert not mark.exists()


def test_an_evaluation_is_bounded(gateway: RunningGateway, tmp_path: Path) -> None:
    """Tests that do not end have failed, with the reason."""
    evaluator = {"name": "test_on_output", "command": ["sleep", "1000"]}
    with RunningService(gateway, tmp_path, eval_s=1.0) as service:
        (one,) = service.result(service.submit(agent=python(SPEAK), evaluator=evaluator))[
            "sessions"
        ]
    assert (one["state"], one["reward"]) == ("COMPLETED", 0.0)
    assert one["evaluation"]["timed_out"] is True


def test_no_secret_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither keys of sessions nor tokens stand in the database, in trajectories, in records, in a
    log or in an answer, whatever became of the agent and whatever it said or printed; only what the
    agent itself wrote has its key."""
    caplog.set_level(logging.DEBUG)
    tokens = ["secret-of-the-service", "secret-of-control", "secret-of-the-environment"]
    headers = {"Authorization": f"Bearer {tokens[0]}"}
    state, records = tmp_path / "state", tmp_path / "records"
    leave = "open(os.environ['ARTIFACTS_DIR'] + '/key', 'w').write(os.environ['OPENAI_API_KEY'])\n"
    tell = "print('key:', os.environ['OPENAI_API_KEY'], file=sys.stderr, flush=True)\n"
    says = SPEAK.replace('os.environ["INSTRUCTION"]', "str(dict(os.environ))")
    agents = {
        "spoke": (python(f"{SPEAK}\n{leave}"), "COMPLETED"),
        "failed": (python(f"{says}\nimport sys\n{leave}{tell}sys.exit(3)"), "ERROR"),
        "late": (python(f"{SPEAK}\n{leave}import time; time.sleep(1000)"), "TIMEOUT"),
        "none": ({"command": ["no-such-program"]}, "ERROR"),
    }
    with (
        TokenEngine("vllm") as engine,
        RunningGateway(
            [f"vllm={engine.url}"], tokens=AccessTokens(control=tokens[1]), sessions=records
        ) as gateway,
        RunningService(gateway, state, RolloutTokens(*tokens)) as service,
    ):
        service.http.headers.update(headers)
        answers = []
        for name, (agent, end) in agents.items():
            more = {"timeout_seconds": 8.0} if name == "late" else {}
            # Nobody takes the result, and the log says so.
            callback = {"callback_url": "http://127.0.0.1:9/"}
            task = service.submit(task_id=name, agent=agent, **more, **callback)
            (one,) = service.result(task)["sessions"]
            assert (one["state"], one["completions"]) == (end, int(name != "none")), one
            for path in (f"/sessions/{name}.0", f"/sessions/{name}.0/completions"):
                answers.append(service.http.get(path).text)
        for path in ("/events", "/tasks", "/nodes", "/rollout/status", "/rollout/task/failed"):
            answers.append(service.http.get(path).text)
        assert httpx.get(f"{service.url}/tasks").status_code == 401
        database = [path.read_bytes() for path in state.glob("rollouts.sqlite3*")]
    database += [path.read_bytes() for path in state.glob("rollouts.sqlite3*")]
    keys = [path.read_text() for path in state.rglob("artifacts/key")]
    assert len(set(keys)) == 3 and all(len(key) >= 20 for key in keys)
    kept = [path for folder in (state / "traces", records) for path in folder.rglob("*")]
    files = [path.read_bytes() for path in kept if path.is_file()]
    assert len(files) >= 7 and any(b"failed.0" in one for one in database)
    printed = capfd.readouterr()
    said = [*answers, caplog.text, printed.out, printed.err]
    texts = [*database, *files, *(one.encode() for one in said)]
    for secret in (*tokens, *keys):
        assert not any(secret.encode() in text for text in texts)
    (log,) = state.glob("tasks/failed/0.1/agent.log")
    assert log.read_text() == "key: [secret]\n"
    (said,) = read_records(next(records.glob("failed.0.1/records.jsonl")))
    assert "'OPENAI_API_KEY': '[secret]'" in str(said.messages) and said.usable
