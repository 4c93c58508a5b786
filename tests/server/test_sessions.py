"""Sessions in memory, without a server around them."""

from __future__ import annotations

from server.engine import Knobs
from server.episodes import parse_episode
from server.sessions import Sessions
from server.settings import IN_MEMORY
from server.store import open_store

KNOBS: Knobs = (64.0, 0.9, 2.0, 0.0, 0.0, 1.0)


def test_one_request_may_name_more_sessions_than_memory_holds() -> None:
    """Those that others of the same request pushed out are found again before the commit."""
    sessions = Sessions(open_store(IN_MEMORY), live=2, idle_s=100.0, default_session=False)
    episode = parse_episode("static_workload", 5, "train", None)
    names = [sessions.begin(None, None, episode).id for _ in range(5)]
    sessions.commit()
    sessions.step_many(sessions.find_many(names), [KNOBS] * 5)
    sessions.step(sessions.find(names[0]), KNOBS)
    assert [found.steps for found in sessions.find_many(names)] == [2, 1, 1, 1, 1]
    sessions.commit()
    assert [found.steps for found in sessions.find_many(names)] == [2, 1, 1, 1, 1]
    assert len(sessions) == 2


def test_what_is_discarded_never_was() -> None:
    """A session goes on where the log has it."""
    sessions = Sessions(open_store(IN_MEMORY), live=9, idle_s=100.0, default_session=False)
    name = sessions.begin(None, None, parse_episode("static_workload", 5, "train", None)).id
    sessions.commit()
    played = []
    for _ in range(2):
        session = sessions.find(name)
        assert session.steps == 0
        sessions.step(session, KNOBS)
        played.append(session.window)
        sessions.discard()
    assert played[0] == played[1]


def test_sessions_of_several_tasks_are_answered_in_the_order_they_were_named() -> None:
    """And each as it is then found, though those of one environment were advanced together."""
    sessions = Sessions(open_store(IN_MEMORY), live=99, idle_s=100.0, default_session=False)
    tasks = ["static_workload", "bursty_workload", "azure_code"]
    names = [
        sessions.begin(None, None, parse_episode(tasks[seed * 7 % 3], seed, "train", None)).id
        for seed in range(9)
    ]
    for steps in (1, 2, 3):
        together = sessions.step_many(sessions.find_many(names), [KNOBS] * 9)
        sessions.commit()
        assert (list(together.session_ids), list(together.steps)) == (names, [steps] * 9)
        for place, name in enumerate(names):
            assert together.windows.of(place) == sessions.find(name).window
        assert len(set(together.windows.reward)) > 1
