"""What was spent is never forgotten, and never more than may be."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from server.live.live_log import LiveLog, LiveStep
from server.request_errors import SpendingLimit, StorageFailure
from server.sessions.programs import Window


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


def another_in_its_place(file: Path) -> None:
    """As ``cp`` writes it, one on which nothing was spent."""
    LiveLog(file.with_name("other"), 10).close()
    file.write_bytes(file.with_name("other.live").read_bytes())


def moved_away(file: Path) -> None:
    os.rename(file, file.with_name("away"))


@pytest.mark.parametrize("harm", [moved_away, another_in_its_place])
def test_nothing_is_spent_that_would_be_forgotten(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Nor is an episode begun or a window added to a log that nobody would find again."""
    log = LiveLog(tmp_path / "sessions.sqlite3", 100)
    log.spend(10)
    episode = log.begin("s", "mine", "{}")
    assert log.fault() is None
    # Nothing is written in the same tick of the file system's clock.
    time.sleep(0.02)
    harm(log.path)
    assert "the live log was" in (log.fault() or "")
    step = LiveStep((1.0,), Window({}, 0.0, False, {}, 0.0, 0.0, 0.0), {})
    writes: list[Callable[[], Any]] = [
        lambda: log.spend(1),
        lambda: log.adjust(1),
        lambda: log.begin("s", "mine", "{}"),
        lambda: log.add(episode.number, 0, step),
    ]
    for write in writes:
        with pytest.raises(StorageFailure, match="the live log cannot be used: the live log was"):
            write()
    assert log.spent == 10
    if harm is moved_away:
        os.rename(log.path.with_name("away"), log.path)
        assert log.fault() is None
        log.spend(1)
    log.close()
