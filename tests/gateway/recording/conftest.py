"""Engines whose tokens sessions record, and sessions before them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import Agent, started
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


@pytest.fixture
def agent(vllm: TokenEngine, start: Start, tmp_path: Path) -> Agent:
    """A session before ``vllm``."""
    return Agent(started(start, vllm, tmp_path))


@pytest.fixture
def any_agent(tokens: TokenEngine, start: Start, tmp_path: Path) -> Agent:
    """A session before each of ``tokens``."""
    return Agent(started(start, tokens, tmp_path))
