"""A gateway that records, and a service, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.rollouts.service.service_thread import RunningService


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway that records, in front of an engine that tells tokens."""
    folder = tmp_path_factory.mktemp("sessions")
    with TokenEngine("vllm") as engine, RunningGateway([engine.option], sessions=folder) as running:
        yield running


@pytest.fixture
def service(gateway: RunningGateway, tmp_path: Path) -> Iterator[RunningService]:
    """A service."""
    with RunningService(gateway, tmp_path / "state") as running:
        yield running
