"""A mock engine behind HTTP, in a thread of the tests' process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from jaxserve.mock_engine.serve import open_mock_engine
from jaxserve.runtime.listening import CommandServer
from tests.gateway.stub_engine import PATIENCE_S, wait_until
from tests.mock_engine.virtual import machine


class Running:
    """A server that runs."""

    def __init__(self, server: CommandServer, port: int) -> None:
        self.loop = server.config.app.loop  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}"


@contextmanager
def running(**settings: Any) -> Iterator[Running]:
    """A small engine, faster than its GPU unless ``speed`` says otherwise."""
    chosen = {"port": 0, "speed": 20.0, "served_model_name": "tiny", **settings}
    server, socket = open_mock_engine(machine(**chosen))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Running(server, socket.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts engines: ``start(batch_cap=2)``."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(**settings))


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """One for all tests of a module."""
    with running() as one:
        yield one
