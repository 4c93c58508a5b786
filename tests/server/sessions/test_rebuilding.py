"""Sessions that come back from the log: together, exactly, each with its own reason if not."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.request_errors import EpisodeConflict, StorageFailure, UnknownSession
from server.sessions import programs, replaying
from server.sessions.episodes import parse_episode
from server.sessions.programs import Knobs
from server.sessions.session import Session
from server.sessions.sessions import Sessions
from server.sessions.store import open_store
from tests.server.actions import random_knobs
from tests.server.synchronous_sessions import begun, present, rebuilt

KNOBS: Knobs = (64.0, 0.9, 2.0, 0.0, 0.0, 1.0, 0.0)
HARD = "adversarial_multitenant"


def opened(folder: Path) -> Sessions:
    store = open_store(str(folder / "log"))
    return Sessions(store, live=200, idle_s=100.0, default_session=False)


@pytest.mark.slow
def test_sessions_of_one_environment_are_replayed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 of them take no more calls of the program of 64 than two, a window; bit by bit, with
    windows of their own in between and some behind the others."""
    dice = np.random.default_rng(2)
    played = opened(tmp_path)
    names = [begun(played, parse_episode(HARD, seed, "train", None)).id for seed in range(70)]
    for window in range(6):
        if window in (1, 4):
            played.step(played.find(names[window]), random_knobs(dice))
        chosen = names[window:]
        actions = [random_knobs(dice) for _ in chosen]
        present(played, lambda s, c=chosen, a=actions: s.step_many(s.find_many(c), a))
    played.commit()
    calls: list[int] = []
    advance_together = programs.advance_together

    def counted(*arguments: Any) -> Any:
        calls.append(len(arguments[1]))
        return advance_together(*arguments)

    monkeypatch.setattr(programs, "advance_together", counted)
    again = opened(tmp_path)
    found = rebuilt(again, again.store.heads(names))
    assert len(calls) == 2 * 6
    assert sum(calls) == sum(70 - window for window in range(6))
    for name in names:
        session = found[name]
        assert isinstance(session, Session)
        assert session.view() == played.find(name).view()


def test_each_session_has_its_own_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot come back keeps no other away; long logs are read in blocks."""
    monkeypatch.setattr(replaying, "_BLOCK", 2)
    played = opened(tmp_path)
    names = [
        begun(played, parse_episode(task, 1, "train", None)).id
        for task in (HARD, HARD, "static_workload", HARD, HARD)
    ]
    for _ in range(5):
        for name in names:
            played.step(played.find(name), KNOBS)
    played.commit()
    good, wrong, old, lost, forgotten = names
    numbers = {name: played.find(name).number for name in names}
    with sqlite3.connect(tmp_path / "log") as log:
        change = "UPDATE steps SET reward = reward + 0.5 WHERE number = 3 AND episode = ?"
        log.execute(change, (numbers[wrong],))
        version = "json_set(spec, '$.task_version', 0)"
        log.execute(f"UPDATE episodes SET spec = {version} WHERE id = ?", (numbers[old],))
        log.execute("DELETE FROM episodes WHERE id = ?", (numbers[lost],))
        log.execute("DELETE FROM steps WHERE number = 4 AND episode = ?", (numbers[forgotten],))
    again = opened(tmp_path)
    found = rebuilt(again, again.store.heads(names))
    session = found[good]
    assert isinstance(session, Session)
    assert session.view() == played.find(good).view()
    for name, kind, said in (
        (wrong, EpisodeConflict, "another version of the simulator"),
        (old, EpisodeConflict, "was played on version 0 of static_workload"),
        (lost, StorageFailure, "has lost episode"),
        (forgotten, UnknownSession, "has expired"),
    ):
        problem = found[name]
        assert isinstance(problem, kind)
        assert said in str(problem)
