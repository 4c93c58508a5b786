"""What was spent is never forgotten, and never more than may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from server.live.log import LiveLog
from server.problems import SpendingLimit


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 100))
def test_spending_stops_at_the_limit(
    tmp_path_factory: object, asked: list[int], limit: int
) -> None:
    """Bookings that fit are booked and others refused, over restarts as well."""
    database = tmp_path_factory.mktemp("log") / "sessions.sqlite3"  # type: ignore[attr-defined]
    spent = 0
    for tokens in asked:
        log = LiveLog(database, limit)
        try:
            assert log.spent == spent
            if spent + tokens <= limit:
                log.spend(tokens)
                spent += tokens
            else:
                with pytest.raises(SpendingLimit, match="nothing was sent"):
                    log.spend(tokens)
            assert log.spent == spent <= limit
        finally:
            log.close()


def test_one_server_at_a_time(tmp_path: Path) -> None:
    """Two would play on one engine."""
    first = LiveLog(tmp_path / "sessions.sqlite3", 10)
    with pytest.raises(InputError, match="one server at a time"):
        LiveLog(tmp_path / "sessions.sqlite3", 10)
    first.close()
    LiveLog(tmp_path / "sessions.sqlite3", 10).close()


def test_a_damaged_log_is_not_replaced(tmp_path: Path) -> None:
    """With it, what was spent would be forgotten."""
    file = tmp_path / "sessions.sqlite3.live"
    file.write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(InputError, match="no new one is begun"):
            LiveLog(tmp_path / "sessions.sqlite3", 10)
    assert file.read_bytes() == b"no database" * 1000
