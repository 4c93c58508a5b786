"""The session log: all or nothing, never in the way of a start, and never the client's clock."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from server.request_errors import StorageFailure
from server.server_settings import IN_MEMORY
from server.sessions import store as store_module
from server.sessions.session import DefaultSession
from server.sessions.store import (
    REQUEST_OF,
    LoggedDecision,
    LoggedStep,
    MovedSession,
    NewNote,
    NewStep,
    Record,
    decision_key,
    open_store,
)
from tests.server.sessions.log_entries import STEP, begin, step
from tests.server.small_disk import fill


def test_what_is_committed_is_there_after_reopening(tmp_path: Path) -> None:
    """Episodes, steps in order, notes."""
    path = str(tmp_path / "new" / "log.sqlite3")
    store = open_store(path)
    store.commit([begin(), step(0), NewNote("a", "b")])
    store.commit([step(1)])
    store.close()
    store = open_store(path)
    head = store.heads(["s"])["s"]
    assert (head.episode, head.steps) == (1, 2)
    assert store.episode(1) == ("mine", '{"task": "x"}')
    assert store.steps("s", 1) == [STEP, STEP]
    assert store.steps("s", 1, 1) == [STEP]
    assert store.note("a") == "b"
    assert store.heads(["other", "s"]).keys() == {"s"}


def test_how_a_window_was_computed_and_who_chose_it() -> None:
    """Both are kept, and neither is taken for the other."""
    store = open_store(IN_MEMORY)
    ways = [
        STEP._replace(together=together, driven=driven)
        for together in (False, True)
        for driven in (False, True)
    ]
    steps = [NewStep("s", 1, number, way) for number, way in enumerate(ways)]
    store.commit([begin(), *steps])
    assert store.steps("s", 1) == ways


def test_what_another_process_writes_is_seen(tmp_path: Path) -> None:
    """Whatever this one remembers of its own last writing."""
    path = str(tmp_path / "log")
    store, other = open_store(path), open_store(path)
    store.commit([begin(), step(0)])
    other.commit([step(1)])
    assert (store.heads(["s"])["s"].steps, other.heads(["s"])["s"].steps) == (2, 2)
    other.commit([begin(episode=9), begin("t", 3)])
    heads = store.heads(["s", "t"])
    assert (heads["s"].episode, heads["s"].steps, heads["t"].episode) == (9, 0, 3)
    time.sleep(0.01)
    other.expire(0.0)
    assert [head.episode for head in store.heads(["s", "t"]).values()] == [0, 0]
    store.commit([begin("s", 11)])
    store.expire(0.0)
    assert store.heads(["s"])["s"].episode == 0


@pytest.mark.parametrize(
    "record", [step(1), step(5), step(3), step(2, episode=7), step(0, session="other")]
)
def test_a_moved_session_leaves_nothing_written(tmp_path: Path, record: Record) -> None:
    """A window that another process has taken, or of another episode, undoes its transaction."""
    store = open_store(str(tmp_path / "log"))
    store.commit([begin(), step(0), step(1), begin("t", 2)])
    with pytest.raises(MovedSession):
        store.commit([step(0, "t", 2), record])
    for session, steps in (("s", 2), ("t", 0)):
        head = store.heads([session])[session]
        assert head.steps == steps
    assert store.steps("t", 2) == []


def test_a_new_episode_replaces_the_one_before(tmp_path: Path) -> None:
    """The old one stays in the log, and neither is taken for the other."""
    store = open_store(str(tmp_path / "log"))
    other = LoggedStep(together=True, reward=0.5, knobs=STEP.knobs)
    store.commit([begin(), step(0), begin(episode=2)])
    head = store.heads(["s"])["s"]
    assert (head.episode, head.steps) == (2, 0)
    assert (store.steps("s", 1), store.steps("s", 2)) == ([STEP], [])
    store.commit([NewStep("s", 2, 0, other), NewStep("s", 2, 1, other)])
    assert (store.steps("s", 1), store.steps("s", 2)) == ([STEP], [other, other])
    assert store.steps("s", 2, 1) == [other]


def test_expired_sessions_are_forgotten_but_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps go, their id stays; sessions in use are not touched."""
    store = open_store(str(tmp_path / "log"))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store.commit([begin("old", 1), step(0, "old", 1), begin("new", 2), step(0, "new", 2)])
    defaults = [DefaultSession("10.0.0.1").key, DefaultSession("10.0.0.2").key]
    store.commit([NewNote(key, id) for key, id in zip(defaults, ("old", "new"), strict=True)])
    requests = [f"{REQUEST_OF}{session}" for session in ("old", "new")]
    store.commit([NewNote(key, "1 1 a") for key in requests])
    store.commit([step(1, "old", 1), begin("old", 3), step(0, "old", 3)])
    now += 100.0
    store.commit([step(1, "new", 2)])
    assert store.expire(50.0) == 1
    heads = store.heads(["old", "new"])
    old, new = heads["old"], heads["new"]
    assert (old.episode, new.episode, new.steps) == (0, 2, 2)
    assert [store.note(key) for key in defaults] == [None, "new"]
    assert [store.note(key) for key in requests] == [None, "1 1 a"]
    assert store.steps("new", 2) == [STEP, STEP]
    assert store.steps("old", 1) == store.steps("old", 3) == []
    assert store.expire(50.0) == 0
    with sqlite3.connect(store.path) as file:
        assert file.execute("SELECT episode, count(*) FROM steps").fetchall() == [(2, 2)]
    store.commit([begin("old", 4), step(0, "old", 4)])
    assert store.steps("old", 4) == [STEP]


def test_the_wall_clock_ages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a jump of the clock nor the time without a server counts as idleness."""
    path = str(tmp_path / "log")
    store = open_store(path)
    store.commit([begin()])
    store.close()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    started = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started + 1e8)
    store = open_store(path)
    head = store.heads(["s"])["s"]
    assert store.now() - head.touched < 1.0


def test_processes_that_share_a_file_share_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that starts after quiet days does not take them for days without a server."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store = open_store(str(tmp_path / "log"))
    store.commit([begin()])
    now += 6e5
    store.expire(1e6)
    other = open_store(str(tmp_path / "log"))
    assert other.now() == pytest.approx(store.now(), abs=1.0)
    other.commit([begin("t", 2)])
    now += 1.0
    assert store.expire(10.0) == 1
    assert store.heads(["t"])["t"].episode == 2


def test_a_file_is_set_aside_by_one_of_many(tmp_path: Path) -> None:
    """Processes that start together all use the one new log."""
    path = tmp_path / "log"
    path.write_bytes(b"no database at all" * 500)
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(open_store, [str(path)] * 8))
    kept = sorted(tmp_path.glob("log.damaged-*"))
    assert [file.name for file in kept] == ["log.damaged-1"]
    for number, store in enumerate(stores):
        assert not store.in_memory
        store.commit([begin(f"s{number}", number + 1)])
    assert len(open_store(str(path)).heads([f"s{number}" for number in range(8)])) == 8


def no_database(path: Path) -> None:
    path.write_bytes(b"no database at all" * 500)


def half_a_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + b"x" * 9000)


def damaged_page(path: Path) -> None:
    """In the middle: not only headers are looked at."""
    store = open_store(str(path))
    store.commit([begin()] + [step(number) for number in range(500)])
    store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)


def another_version(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("PRAGMA user_version = 99")
    other.close()


@pytest.mark.parametrize("make", [no_database, half_a_header, damaged_page, another_version])
def test_a_damaged_file_is_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    """The server starts with a new log and says where the old one is."""
    path = tmp_path / "log"
    for number in (1, 2):
        make(path)
        content = path.read_bytes()
        with caplog.at_level(logging.WARNING):
            store = open_store(str(path))
        kept = tmp_path / f"log.damaged-{number}"
        assert kept.read_bytes() == content
        assert str(kept) in caplog.text
        store.commit([begin()])
        store.close()
        path.unlink()


def test_logs_of_this_version_have_these_columns(tmp_path: Path) -> None:
    """Columns are named by the knobs; whoever renames or moves one has to count the version up."""
    path = str(tmp_path / "log")
    open_store(path).close()
    with sqlite3.connect(path) as log:
        (version,) = log.execute("PRAGMA user_version").fetchone()
        columns = [row[1] for row in log.execute("PRAGMA table_info(steps)")]
    knobs = "batch_cap kv_budget_fraction speculation_depth quantization_tier"
    knobs += " prefill_decode_split priority_routing replicas"
    before = "id previous episode number batched reward"
    assert (version, columns) == (3, [*before.split(), *knobs.split()])


def test_where_nothing_can_be_written_memory_has_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning; sessions work all the same."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        store = open_store(str(blocked / "log"))
    assert store.in_memory
    assert "sessions are in memory" in (store.fault() or "")
    assert "are in memory and end with the server" in caplog.text
    store.commit([begin(), step(0)])
    assert store.steps("s", 1) == [STEP]


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """Nothing half-written stays, and room on the disk is all it takes to go on."""
    store = open_store(str(tmp_path / "log"))
    store.commit([begin()])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFailure, match="full"):
        store.commit([step(number) for number in range(2000)])
    head = store.heads(["s"])["s"]
    assert head.steps == 0
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.commit([step(0)])
    assert store.steps("s", 1) == [STEP]


def held(path: Path) -> sqlite3.Connection:
    """Another program that keeps everybody from writing."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_log_that_another_program_holds_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then each is refused at once, until the other lets go."""
    monkeypatch.setattr(store_module, "_PROBE_S", 0.0)
    store = open_store(str(tmp_path / "log"))
    store.commit([begin()])
    assert store.fault() is None
    other = held(tmp_path / "log")
    with pytest.raises(StorageFailure, match="locked"):
        store.commit([step(0)])
    assert "locked" in (store.fault() or "")
    (waits_ms,) = store._connection.execute("PRAGMA busy_timeout").fetchone()
    assert waits_ms <= 50
    assert store.heads(["s"])["s"].steps == 0
    other.execute("ROLLBACK")
    assert store.fault() is None
    store.commit([step(0)])
    (waits_ms,) = store._connection.execute("PRAGMA busy_timeout").fetchone()
    assert waits_ms >= 1000


@pytest.mark.parametrize("end", ["closed", "killed", "lost its index"])
def test_a_restart_on_a_full_disk_reads_and_recovers(
    tmp_path: Path, small_disk: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are there, steps are refused, and room on the disk is all it takes to go on."""
    monkeypatch.setattr(store_module, "_PROBE_S", 0.0)
    before = open_store(str(tmp_path / "log"))
    before.commit([begin()] + [step(number) for number in range(20)])
    if end == "closed":
        before.close()
    # What a process leaves that is killed now.
    for file in tmp_path.glob("log*"):
        if end != "lost its index" or file.name != "log-shm":
            shutil.copy(file, small_disk)
    path = str(small_disk / "log")
    filled = fill(small_disk)
    store = open_store(path)
    assert not store.in_memory
    assert store.heads(["s"])["s"].steps == 20
    assert len(store.steps("s", 1)) == 20
    with pytest.raises(StorageFailure, match="cannot be written"):
        store.commit([step(number) for number in range(20, 2000)])
    assert store.fault() is not None
    assert store.heads(["s"])["s"].steps == 20
    filled.unlink()
    assert store.fault() is None
    store.commit([step(20)])
    store.close()
    assert open_store(path).heads(["s"])["s"].steps == 21


def test_memory_is_a_log_too() -> None:
    """The name for it makes no file."""
    store = open_store(IN_MEMORY)
    assert store.in_memory
    assert store.fault() is None
    store.commit([begin()])
    assert not os.path.exists(IN_MEMORY)


def test_decisions_are_kept_as_long_as_their_episode(tmp_path: Path) -> None:
    """By window, apart from those of other episodes, and gone with an expired session."""
    store = open_store(str(tmp_path / "log"))
    largest = 2**62
    made = {0: LoggedDecision("ppo"), 12: LoggedDecision("language_model", "The queue grows.")}

    def notes(episode: int) -> list[Record]:
        key = partial(decision_key, episode)
        return [NewNote(key(n), json.dumps(one._asdict())) for n, one in made.items()]

    store.commit([begin("old", largest), *notes(largest), begin("new", 3), *notes(3)])
    assert store.decisions(largest) == store.decisions(3) == made
    assert store.decisions(2) == store.decisions(largest - 1) == {}
    time.sleep(0.02)
    store.commit([step(0, "new", 3)])
    assert store.expire(0.01) == 1
    assert (store.decisions(largest), store.decisions(3)) == ({}, made)


def test_logs_of_version_2_are_kept(tmp_path: Path) -> None:
    """Their windows wanted all replicas."""
    path = str(tmp_path / "log")
    store = open_store(path)
    store.commit([begin(), step(0)])
    store.close()
    with sqlite3.connect(path) as log:
        log.executescript("ALTER TABLE steps DROP COLUMN replicas; PRAGMA user_version = 2;")
    store = open_store(path)
    (kept,) = store.steps("s", 1)
    assert kept.knobs == (*STEP.knobs[:-1], 0.0)
    assert not list(tmp_path.glob("*damaged*"))
