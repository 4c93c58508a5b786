"""Variables of a session's commands: the token of its environment is the agent's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve.rollouts.evaluators import EnvironmentEpisode
from jaxserve.rollouts.presets import Launch
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.rollouts.service.worker import worker as work
from jaxserve.rollouts.service.worker.execution import (
    OWN_VARIABLES,
    environment_token,
    session_variables,
)
from jaxserve.rollouts.service.worker.workspace import Workspace
from tests.gateway.gateway_thread import RunningGateway
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

EPISODE = EnvironmentEpisode("http://e", "s", "e", "1", "t", 0, "train")
LOOK = """
import os, sys
open(sys.argv[1], "w").write(str(os.environ.get("ENVIRONMENT_TOKEN")))
"""


def test_who_gets_the_token() -> None:
    """An agent that plays, where there is one; no text of it shows it."""
    assert environment_token(None, "t") is None and environment_token(EPISODE, None) is None
    admission = environment_token(EPISODE, "secret")
    assert admission is not None and admission.url == "http://e"
    ours = session_variables("t", "t.0", Workspace(Path("/f")), Launch((), {"A": "b"}, {}), EPISODE)
    assert "ENVIRONMENT_TOKEN" not in ours.values
    assert admission.given(ours).values == {**ours.values, "ENVIRONMENT_TOKEN": "secret"}
    assert "secret" not in f"{admission} {admission.given(ours)}"
    assert ours.values.keys() - {"A"} < OWN_VARIABLES


def test_the_commands_of_a_session(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the agent has the token; commands that prepare or evaluate the session do not."""

    async def begun(self: object, task: object) -> EnvironmentEpisode:
        return EPISODE

    monkeypatch.setattr(work._SessionRun, "_begin_episode", begun)
    look = python(LOOK)["command"]
    task = {
        "agent": python(SPEAK + LOOK, "agent"),
        "runtime": {"prepare": [[*look, "prepare"]], "eval_prepare": [[*look, "eval_prepare"]]},
        "environment": {"url": EPISODE.url},
        "evaluator": {"name": "test_on_output", "command": [*look, "evaluator"]},
    }
    with RunningService(gateway, tmp_path / "s", RolloutTokens(environment="secret")) as service:
        (one,) = service.result(service.submit(task_id="commands", **task))["sessions"]
    assert (one["state"], one["reason"]) == ("COMPLETED", "")
    tasks = tmp_path / "s" / "tasks" / "commands"
    agents, evaluation = tasks / "0.1" / "work", tasks / "0.1.evaluation" / "work"
    seen = {name: (evaluation / name).read_text() for name in ("eval_prepare", "evaluator")}
    seen |= {name: (agents / name).read_text() for name in ("prepare", "agent")}
    without = dict.fromkeys(("prepare", "eval_prepare", "evaluator"), "None")
    assert seen == {**without, "agent": "secret"}
