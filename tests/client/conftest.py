"""A real server for the client to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.local import LocalServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server that these tests share."""
    with LocalServer(tmp_path_factory.mktemp("server")) as running:
        yield running
