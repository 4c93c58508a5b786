"""A mock engine behind HTTP, in a thread of the tests' process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from jaxserve.mock_engine.serve import open_mock_engine
from jaxserve.runtime.listening import CommandServer
from tests.mock_engine.engine_in_virtual_time import machine
from tests.server_thread import ServerThread


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
    thread = ServerThread(server, [socket])
    thread.start()
    try:
        yield Running(server, socket.getsockname()[1])
    finally:
        thread.stop()


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
