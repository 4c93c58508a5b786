"""A small live task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxserve.agents.task_setup import TaskSetup
from tests.live.deployment import TASK, setup_of
from tests.live.operated_deployment import Play, Played


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TaskSetup:
    """The task of ``tests.live.deployment``."""
    path = tmp_path_factory.mktemp("task") / "mine.json"
    path.write_text(json.dumps(TASK))
    return setup_of(path)


@pytest.fixture
def play(setup: TaskSetup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Operates a stand-in for some windows."""
    return lambda *arguments, **options: Played(setup, monkeypatch, tmp_path, *arguments, **options)
