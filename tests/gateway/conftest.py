"""Stub engines and gateways in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.stub_engine import StubEngine

Start = Callable[..., RunningGateway]


@pytest.fixture
def engine() -> Iterator[StubEngine]:
    """An engine."""
    with StubEngine() as running:
        yield running


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts gateways: ``start([engine], idle_s=1.0)``."""
    with ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(
            RunningGateway(*arguments, **settings)
        )


@pytest.fixture
def gateway(engine: StubEngine, start: Start) -> RunningGateway:
    """A gateway in front of the engine, with default settings."""
    return start([engine])
