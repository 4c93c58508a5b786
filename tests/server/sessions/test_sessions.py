"""Sessions in memory, without a server around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from server.server_settings import IN_MEMORY
from server.sessions.episodes import parse_episode
from server.sessions.programs import Knobs
from server.sessions.session import BatchView, Session, new_session
from server.sessions.sessions import Sessions
from server.sessions.store import LoggedDecision, open_store
from tests.server.actions import random_knobs
from tests.server.synchronous_sessions import begun, present

KNOBS: Knobs = (64.0, 0.9, 2.0, 0.0, 0.0, 1.0, 0.0)


def found(sessions: Sessions, names: Sequence[str]) -> list[Session]:
    return present(sessions, lambda s: s.find_many(names))


def together(sessions: Sessions, names: Sequence[str], knobs: Sequence[Knobs]) -> BatchView:
    return present(sessions, lambda s: s.step_many(s.find_many(names), knobs))


@pytest.mark.slow
def test_one_request_may_name_more_sessions_than_memory_holds() -> None:
    """Those that others of the same request pushed out are found again before the commit."""
    sessions = Sessions(open_store(IN_MEMORY), live=2, idle_s=100.0, default_session=False)
    episode = parse_episode("static_workload", 5, "train", None)
    names = [begun(sessions, episode).id for _ in range(5)]
    sessions.commit()
    together(sessions, names, [KNOBS] * 5)
    assert len(sessions) == 5
    sessions.step(sessions.find(names[0]), KNOBS)
    assert [one.steps for one in sessions.find_many(names)] == [2, 1, 1, 1, 1]
    sessions.commit()
    assert len(sessions) == 2
    assert [one.steps for one in found(sessions, names)] == [2, 1, 1, 1, 1]
    assert len(sessions) == 2


def test_what_is_discarded_never_was() -> None:
    """A session goes on where the log has it."""
    sessions = Sessions(open_store(IN_MEMORY), live=9, idle_s=100.0, default_session=False)
    name = begun(sessions, parse_episode("static_workload", 5, "train", None)).id
    sessions.commit()
    played = []
    for _ in range(2):
        (session,) = found(sessions, [name])
        assert session.steps == 0
        sessions.step(session, KNOBS)
        played.append(session.window)
        sessions.discard()
    assert played[0] == played[1]


def test_sessions_of_several_tasks_are_answered_in_the_order_they_were_named() -> None:
    """And each as it is then found, though those of one environment were advanced together."""
    sessions = Sessions(open_store(IN_MEMORY), live=99, idle_s=100.0, default_session=False)
    tasks = ["static_workload", "bursty_workload", "azure_code"]
    # Their grouping is not undone by grouping once more.
    names = [
        begun(sessions, parse_episode(tasks[place], seed, "train", None)).id
        for seed, place in enumerate([1, 0, 2, 1, 1, 0])
    ]
    for steps in (1, 2, 3):
        view = together(sessions, names, [KNOBS] * 6)
        sessions.commit()
        assert (list(view.session_ids), list(view.steps)) == (names, [steps] * 6)
        for place, name in enumerate(names):
            assert view.windows.of(place) == sessions.find(name).window
        assert len(set(view.windows.reward)) > 1


def test_what_waits_for_its_commit_is_part_of_the_log() -> None:
    """A history asked for in the same group of requests has every window that its view counts."""
    sessions = Sessions(open_store(IN_MEMORY), live=9, idle_s=100.0, default_session=False)
    episode = parse_episode("static_workload", 5, "train", None)
    names = [begun(sessions, episode).id for _ in range(2)]
    for count in range(5):
        session = sessions.find(names[0])
        logged = sessions.steps(session)
        assert len(logged) == session.steps == count
        if count == 3:
            sessions.commit()
            assert sessions.steps(session) == logged
        together(sessions, names, [KNOBS] * 2)
    again = sessions.begin(new_session(names[0], None, episode), is_new=False)
    assert sessions.steps(again) == []


@pytest.mark.parametrize("task", ["adversarial_multitenant", "azure_code"])
def test_a_replay_is_exact(tmp_path: Path, task: str) -> None:
    """Windows of few and of many sessions and of one alone, bit by bit after a restart."""
    dice = np.random.default_rng(1)
    path = str(tmp_path / "log")
    played = Sessions(open_store(path), live=200, idle_s=100.0, default_session=False)
    names = [begun(played, parse_episode(task, seed, "train", None)).id for seed in range(80)]
    played.commit()
    for count in (80, 3, 66, 1, 40, 80, 9, 64):
        chosen = dice.permutation(names)[:count].tolist()
        actions = [random_knobs(dice) for _ in chosen]
        together(played, chosen, actions)
        agent = LoggedDecision("ppo") if count < 9 else None
        played.step(played.find(chosen[0]), actions[-1], agent)
        played.commit()
    again = Sessions(open_store(path), live=200, idle_s=100.0, default_session=False)
    for before, after in zip(played.find_many(names), found(again, names), strict=True):
        assert before.view() == after.view()
    assert sum(session.driven for session in played.find_many(names)) == 2


def test_the_request_of_the_last_window_is_remembered_with_it() -> None:
    """At once, for a repeated request of the same commit; and not if the window is undone."""
    sessions = Sessions(open_store(IN_MEMORY), live=9, idle_s=100.0, default_session=False)
    name = begun(sessions, parse_episode("static_workload", 5, "train", None)).id
    sessions.commit()
    for commits in (False, True):
        (session,) = found(sessions, [name])
        sessions.step(session, KNOBS)
        sessions.remember_request(session, "a")
        assert sessions.has_answered(session, "a") and not sessions.has_answered(session, "b")
        if commits:
            sessions.commit()
        else:
            sessions.discard()
        (session,) = found(sessions, [name])
        assert sessions.has_answered(session, "a") is commits
    sessions.step(session, KNOBS)
    assert not sessions.has_answered(session, "a")
