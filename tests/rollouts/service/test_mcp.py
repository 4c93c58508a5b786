"""Agents that play over MCP, of presets too, are graded as others are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jaxserve.client import ServeClient
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.trainers import token_rewards
from server.local import LocalServer
from tests.gateway.running import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.rollouts.service.operating_model import INSTRUCTION, operator
from tests.rollouts.service.running import RunningService

FOLDER = Path(__file__).parent
CAPS = [96.0, 32.0, 64.0]


@dataclass
class Stage:
    """All that agents need to play an episode of three windows."""

    folder: Path
    service: RunningService
    url: str

    def play(self, agent: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """A session that played to the end, and its records."""
        task = self.service.submit(
            instruction=INSTRUCTION,
            agent={"model": "tiny", **agent},
            environment={"url": self.url, "task_id": "bursty_workload", "seed": 42},
            evaluator={"name": "env_grade"},
        )
        (one,) = self.service.result(task)["sessions"]
        printed = "".join(path.read_text() for path in self.folder.rglob("agent.log"))
        assert (one["state"], one["reason"]) == ("COMPLETED", ""), printed
        told = self.service.http.get(f"/sessions/{one['session_id']}/completions").text
        self._check(task, one)
        return one, [json.loads(line) for line in told.splitlines()]

    def _check(self, task: str, one: dict[str, Any]) -> None:
        """Its grade is the server's, and each window is its completion's."""
        worth = one["evaluation"]
        assert worth["verified"]
        assert (worth["windows"], worth["windows_without_completion"]) == (3, 0)
        with ServeClient(self.url) as same:
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


@pytest.fixture
def stage(server: LocalServer, tmp_path: Path) -> Iterator[Stage]:
    """A real server of episodes, and a model that operates it."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([f"vllm={engine.url}"], sessions=tmp_path / "records") as gateway,
        RunningService(gateway, tmp_path / "state") as service,
    ):
        engine.script = operator(CAPS)
        yield Stage(tmp_path, service, server.url)


def test_an_agent_plays_over_mcp(stage: Stage) -> None:
    """Each window is credited to the completion whose call made it; the score is the server's own,
    and every sampled token is there."""
    player = str(FOLDER / "mcp_player.py")
    command = [sys.executable, player, "{{INSTRUCTION}}", f"{stage.url}/mcp"]
    _, records = stage.play({"command": command})
    assert [record["dialect"] for record in records] == ["chat"] * 4


@pytest.mark.parametrize(
    ("preset", "program", "dialect"),
    [("claude_code", "claude", "messages"), ("codex", "codex", "responses")],
)
def test_a_preset_plays_over_mcp(
    preset: str, program: str, dialect: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service starts it with the preset's command line, variables and files; it streams in its
    own dialect, and finds the server's tools where its configuration says."""
    programs = stage.folder / "bin"
    programs.mkdir()
    stand_in = programs / program
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {FOLDER}/stand_ins.py "$0" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    servers = {"env": f"{stage.url}/mcp"}
    one, records = stage.play({"preset": preset, "mcp_servers": servers})
    assert one["exit_code"] == 0
    assert [record["dialect"] for record in records] == [dialect] * 4
    for record in records:
        received = json.loads(record["received"])
        assert received["stream"] is True and received["model"] == "tiny"
