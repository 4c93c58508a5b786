"""Engines whose tokens sessions record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.token_engine import TokenEngine


@pytest.fixture(params=["vllm", "sglang"])
def tokens(request: pytest.FixtureRequest) -> Iterator[TokenEngine]:
    """An engine of each kind."""
    with TokenEngine(request.param) as running:
        yield running


@pytest.fixture
def vllm() -> Iterator[TokenEngine]:
    """An engine that streams ids."""
    with TokenEngine("vllm") as running:
        yield running
