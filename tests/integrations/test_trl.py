"""TRL trains a tiny model on a running server: the environment's methods are the model's tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from server.local import LocalServer
from tests.integrations.examples import run

pytestmark = pytest.mark.deep

STEPS, WINDOWS = 2, 2


@pytest.fixture
def server(start_server: Callable[..., LocalServer]) -> LocalServer:
    """A server of the environment."""
    return start_server()


def test_grpo_on_the_server(server: LocalServer, tmp_path: Path) -> None:
    """Every generation plays its episode to the end by tool calls, and has the episode's reward."""
    run("tiny_model", "tiny", folder=tmp_path)
    options = ["--steps", str(STEPS), "--windows", str(WINDOWS), "--group", "4"]
    printed = run(
        "grpo_environment", "--model", "tiny", "--url", server.url, *options, folder=tmp_path
    )
    lines = re.findall(
        r"^step (\d+): reward (-?\d\.\d+), (\d+\.\d) tool calls", printed, re.MULTILINE
    )
    assert [int(step) for step, _, _ in lines] == list(range(1, STEPS + 1)), printed
    assert {float(calls) for _, _, calls in lines} == {float(WINDOWS)}
    assert all(0 < float(reward) < 1.5 for _, reward, _ in lines)
