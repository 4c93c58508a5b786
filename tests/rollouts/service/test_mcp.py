"""Agents that play over MCP, of presets too, are graded as others are."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jaxserve.client import ServeClient
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.rollouts.trainers import token_rewards
from server.local import LocalServer
from tests.conftest import StartServer
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.rollouts.service.operating_model import INSTRUCTION, operator
from tests.rollouts.service.service_thread import RunningService

FOLDER = Path(__file__).parent
CAPS = [96.0, 32.0, 64.0]


@dataclass
class Stage:
    """All that agents need to play an episode of three windows."""

    folder: Path
    service: RunningService
    url: str
    token: str | None = None
    """address of the server."""

    def submitted(self, agent: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """A task that has ended, and its session."""
        task = self.service.submit(
            instruction=INSTRUCTION,
            agent={"model": "tiny", **agent},
            environment={"url": self.url, "task_id": "bursty_workload", "seed": 42},
            evaluator={"name": "env_grade"},
        )
        (one,) = self.service.result(task)["sessions"]
        return task, one

    def play(self, agent: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A session that played to the end, and its records."""
        task, one = self.submitted(agent)
        printed = "".join(path.read_text() for path in self.folder.rglob("agent.log"))
        assert (one["state"], one["reason"]) == ("COMPLETED", ""), printed
        told = self.service.http.get(f"/sessions/{one['session_id']}/completions").text
        self._check(task, one)
        return one, [json.loads(line) for line in told.splitlines()]

    def _check(self, task: str, one: dict[str, Any]) -> None:
        """The grade is the server's, and each window belongs to its completion."""
        worth = one["evaluation"]
        assert worth["verified"]
        assert (worth["windows"], worth["windows_without_completion"]) == (3, 0)
        with ServeClient(self.url, token=self.token) as same:
            same.reset(task_id="bursty_workload", seed=42)
            rewards = [same.step({"batch_cap": cap}).reward for cap in CAPS]
            assert one["reward"] == same.grade()["score"]
        assert len(set(rewards)) == 3
        assert worth["completions"] == [[seq, 0, reward] for seq, reward in enumerate(rewards, 1)]
        assert (one["completions"], one["traces"]) == (4, 1)
        (trajectory,) = read_trajectories(self.folder / f"state/traces/{task}/0.jsonl")
        (trace,) = trajectory.traces
        assert trace.reward == one["reward"]
        assert trace.metadata["completion_rewards"] == pytest.approx([*rewards, 0.0])
        ends = [stop - 1 for *_, stop in trace.metadata["completions"]]
        assert token_rewards(trace)[ends] == pytest.approx([*rewards, 0.0])
        assert trajectory.trainable == one["trainable"] > 0 and not trajectory.dropped


@contextmanager
def staged(folder: Path, url: str, token: str | None = None) -> Iterator[Stage]:
    """A server of episodes, which may ask for a token, and a model that operates it."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([f"vllm={engine.url}"], sessions=folder / "records") as gateway,
        RunningService(gateway, folder / "state", RolloutTokens(environment=token)) as service,
    ):
        engine.script = operator(CAPS)
        yield Stage(folder, service, url, token)


@pytest.fixture
def stage(server: LocalServer, tmp_path: Path) -> Iterator[Stage]:
    """A stage with a real server without a token."""
    with staged(tmp_path, server.url) as made:
        yield made


def player(url: str) -> list[str]:
    """A command that plays over MCP."""
    return [sys.executable, str(FOLDER / "mcp_player.py"), "{{INSTRUCTION}}", f"{url}/mcp"]


def test_an_agent_plays_over_mcp(stage: Stage) -> None:
    """Each window is credited to the completion whose call made it; the score is the server's own,
    and every sampled token is there."""
    _, records = stage.play({"command": player(stage.url)})
    assert [record["dialect"] for record in records] == ["chat"] * 4


@pytest.mark.slow
def test_a_server_with_a_token(
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Agents with the token in a variable play, and presets whose configuration names the variable;
    a request without the token is refused. No file, log or answer has the token."""
    caplog.set_level(logging.INFO)  # a library of WebSockets prints every header below that
    token = "secret-of-the-environment"
    server = start_server(JAXSERVE_TOKEN=token)
    with staged(tmp_path, server.url, token) as stage:
        install(stage.folder, monkeypatch)
        servers = {"env": f"{stage.url}/mcp"}
        agents: list[dict[str, Any]] = [{"command": player(stage.url)}]
        agents.append({"preset": "claude_code", "mcp_servers": servers})
        answers = [json.dumps(stage.play(agent)) for agent in agents]
        without = ["env", "--unset=ENVIRONMENT_TOKEN", *player(stage.url)]
        _, refused = stage.submitted({"command": without})
        assert (refused["state"], refused["completions"]) == ("ERROR", 0)
        answers += [stage.service.http.get(path).text for path in ("/events", "/tasks", "/nodes")]
    assert "401" in "".join(path.read_text() for path in tmp_path.rglob("agent.log"))
    printed = capfd.readouterr()
    texts = [*answers, json.dumps(refused), caplog.text, printed.out, printed.err, server.said()]
    assert not any(token in text for text in texts)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not any(token.encode() in path.read_bytes() for path in files)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a stand-in of Claude Code first in the path."""
    (folder / "bin").mkdir()
    stand_in = folder / "bin" / "claude"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {FOLDER}/preset_agent.py "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
def test_a_preset_plays_over_mcp(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service starts it with the preset's command line, variables and files; it streams in its
    own dialect, and finds the server's tools where its configuration says."""
    install(stage.folder, monkeypatch)
    servers = {"env": f"{stage.url}/mcp"}
    one, records = stage.play({"preset": "claude_code", "mcp_servers": servers})
    assert one["exit_code"] == 0
    assert [record["dialect"] for record in records] == ["messages"] * 4
    for record in records:
        received = json.loads(record["received"])
        assert received["stream"] is True and received["model"] == "tiny"
