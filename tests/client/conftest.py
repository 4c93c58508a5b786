"""Clients end with their tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Clients, and what stands between them and servers, end with their test."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
