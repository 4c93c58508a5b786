"""A log that is harmed while a server has it open, and what is no harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.request_errors import StorageFailure
from server.sessions.store import NewNote, Store, open_store
from tests.server.sessions.log_entries import begin, step


def checkpoint(store: Store, mode: str = "PASSIVE") -> None:
    """As SQLite makes one after a commit, by itself."""
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"PRAGMA wal_checkpoint({mode})")
    connection.close()


def overwritten(file: Path) -> None:
    file.write_bytes(b"something else" * 1000)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    os.truncate(file, 100)


def replaced(file: Path) -> None:
    file.with_name("other").write_bytes(file.read_bytes())
    os.replace(file.with_name("other"), file)


def of_another_log(file: Path) -> None:
    """A larger one, as ``cp`` writes it."""
    path = file.parent / "elsewhere" / "log"
    other = open_store(str(path))
    other.commit([begin()] + [step(number) for number in range(1800)])
    other.close()
    file.write_bytes(path.read_bytes())


def an_older_copy(file: Path) -> None:
    """A backup of the very log, as ``cp`` writes it back."""
    file.write_bytes(file.with_name("backup").read_bytes())


HARMS = [Path.unlink, overwritten, emptied, cut, replaced]


@pytest.mark.parametrize(
    "harm,suffix",
    [(harm, suffix) for harm in HARMS for suffix in ("", "-wal")]
    + [(of_another_log, ""), (an_older_copy, "")],
)
def test_nothing_is_acknowledged_that_nobody_would_find_again(
    tmp_path: Path, harm: Callable[[Path], Any], suffix: str
) -> None:
    """A log that is removed, replaced, written over or cut while it is open is noticed before the
    next commit, and said."""
    path = str(tmp_path / "log")
    store, other = open_store(path), open_store(path)
    store.commit([begin()] + [step(number) for number in range(300)])
    checkpoint(other)
    shutil.copy(path, tmp_path / "backup")
    store.commit([step(number) for number in range(300, 900)])
    checkpoint(other)
    store.commit([step(900)])
    store.commit([step(901)])
    assert store.fault() is None
    harm(tmp_path / f"log{suffix}")
    assert "while the server ran" in (store.fault() or "")
    with pytest.raises(StorageFailure, match="while the server ran"):
        store.commit([step(902)])


def test_a_log_that_was_written_over_stays_so(tmp_path: Path) -> None:
    """Checkpoints that another process makes afterwards do not hide it."""
    path = str(tmp_path / "log")
    store, other = open_store(path), open_store(path)
    store.commit([begin()] + [step(number) for number in range(300)])
    checkpoint(other, "TRUNCATE")
    assert store.fault() is None
    whole = (tmp_path / "log").read_bytes()
    of_another_log(tmp_path / "log")
    assert "written over" in (store.fault() or "")
    (tmp_path / "log").write_bytes(whole)
    checkpoint(other, "TRUNCATE")
    assert "written over" in (store.fault() or "")


def test_logs_have_marks_of_their_own(tmp_path: Path) -> None:
    """A log of an earlier version gets a mark, and the mark stays the same from then on."""

    def mark(path: Path) -> int:
        return int.from_bytes(path.read_bytes()[68:72])

    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        open_store(str(path)).close()
    assert 0 not in (mark(first), mark(second)) and mark(first) != mark(second)
    with sqlite3.connect(first) as log:
        log.execute("PRAGMA application_id = 0")
    log.close()
    assert mark(first) == 0
    store = open_store(str(first))
    given = mark(first)
    assert given != 0 and store.fault() is None
    other = open_store(str(first))
    other.commit([begin()])
    checkpoint(other, "TRUNCATE")
    assert mark(first) == given
    assert store.fault() is None


def test_a_log_that_is_put_back_is_gone_on_with(tmp_path: Path) -> None:
    """Whoever moved it away by mistake loses nothing."""
    store = open_store(str(tmp_path / "log"))
    store.commit([begin()])
    os.rename(tmp_path / "log", tmp_path / "away")
    with pytest.raises(StorageFailure, match="removed"):
        store.commit([step(0)])
    os.rename(tmp_path / "away", tmp_path / "log")
    store.commit([step(0)])
    assert store.fault() is None
    store.close()
    assert open_store(str(tmp_path / "log")).heads(["s"])["s"].steps == 1


def test_housekeeping_of_others_is_no_fault(tmp_path: Path) -> None:
    """Checkpoints, also such as empty the -wal file, and other connections that come and go."""
    store = open_store(str(tmp_path / "log"))
    store.commit([begin()] + [step(number) for number in range(300)])
    other = open_store(str(tmp_path / "log"))
    for number, mode in enumerate(("PASSIVE", "FULL", "RESTART", "TRUNCATE") * 3, 7):
        other.commit([begin(f"{mode}{number}", number)])
        checkpoint(other, mode)
        assert store.fault() is None
    other.close()
    store.commit([step(300)])
    assert store.fault() is None


def test_those_who_write_meanwhile_are_no_fault(tmp_path: Path) -> None:
    """Whatever moment of a commit or a checkpoint of theirs the watch looks at."""
    path = str(tmp_path / "log")
    store = open_store(path)
    ended = threading.Event()

    def play(session: str, episode: int) -> None:
        other = open_store(path)
        other.commit([begin(session, episode)])
        for number in range(150):
            with contextlib.suppress(StorageFailure):  # held by the other for too long
                other.commit([NewNote(f"{session}{n}", "x" * 3000) for n in range(number % 20 + 1)])
            if number % 5 == 0:
                mode = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")[number // 5 % 4]
                with contextlib.suppress(sqlite3.OperationalError):
                    checkpoint(other, mode)

    def watch() -> set[str]:
        found = set()
        while not ended.is_set():
            found.add(store.fault() or "")
        return found

    with ThreadPoolExecutor(3) as threads:
        watching = threads.submit(watch)
        playing = [threads.submit(play, f"s{number}", number + 1) for number in range(2)]
        for one in playing:
            one.result()
        ended.set()
        assert watching.result() == {""}
