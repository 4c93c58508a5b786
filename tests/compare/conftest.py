"""Comparisons that take seconds."""

from __future__ import annotations

import pytest

from tests.compare.tiny import shrink


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """``shrink`` for a test."""
    shrink(monkeypatch)
