"""Fixtures of several tests of players."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.players.stub_model import Model


@pytest.fixture
def model() -> Iterator[Model]:
    stub = Model()
    yield stub
    stub.close()
