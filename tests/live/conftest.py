"""A small live task."""

from __future__ import annotations

import json

import pytest

from jaxserve.agents.panel import TaskSetup
from tests.live.deployment import TASK, setup_of


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TaskSetup:
    """The task of ``tests.live.deployment``."""
    path = tmp_path_factory.mktemp("task") / "mine.json"
    path.write_text(json.dumps(TASK))
    return setup_of(path)
