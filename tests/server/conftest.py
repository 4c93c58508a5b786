"""Real servers in processes of their own, for the tests that talk to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from server.local import LocalServer

StartServer = Callable[..., LocalServer]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers with variables: ``start_server(JAXSERVE_TOKEN="x")``."""
    started: list[LocalServer] = []

    def start(
        folder: Path | None = None,
        port: int | None = None,
        arguments: tuple[str, ...] = (),
        **variables: str,
    ) -> LocalServer:
        chosen = folder or tmp_path_factory.mktemp("server")
        server = LocalServer(chosen, port=port, arguments=arguments, variables=variables)
        started.append(server)
        return server.wait()

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> LocalServer:
    """One server with default settings that many tests share."""
    return start_server()


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    """An HTTP client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=120.0) as client:
        yield client
