"""Searches of a few candidates."""

from __future__ import annotations

import pytest

from jaxserve.agents import objective


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search fills its batches up, and most of a large one would be played for nothing."""
    monkeypatch.setattr(objective, "_CHUNK", 64)
