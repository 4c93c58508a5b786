"""Clients of the server that many tests share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from server.local import LocalServer


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    """An HTTP client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=600.0) as client:
        yield client
