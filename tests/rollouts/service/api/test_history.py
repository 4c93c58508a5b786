"""Figures over time: nothing of a session is lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.rollouts.service.api.history import history
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import SessionSpan
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

NOW_S = 1000.0


@st.composite
def spans(draw: st.DrawFn) -> SessionSpan:
    """A session that has begun or not, has left or not, has ended or not."""
    times = sorted(draw(st.tuples(*[st.floats(0.0, NOW_S - 1.0)] * 3)))
    began = draw(st.one_of(st.none(), st.just(times[0])))
    ended = draw(st.booleans())
    left = times[0] + 1e-2 + times[1] / 2 if began is not None and ended else None
    reward = draw(st.one_of(st.none(), st.floats(-5.0, 5.0))) if ended else None
    tokens = draw(st.integers(0, 10_000)) if left is not None else 0
    since = max(times[2], left or 0.0)
    return SessionSpan(ended, since, began, left, tokens, reward)


@given(st.lists(spans(), max_size=12), st.integers(1, 40))
def test_nothing_is_lost(found: list[SessionSpan], points: int) -> None:
    """Tokens over time sum to the tokens, running time to that of the agents, ends to the ended
    sessions; means lie between the least and the highest reward."""
    told = history(found, points, NOW_S + 600.0)
    width_s = told["width_s"]
    assert all(len(told[name]) == points for name in ("running", "tokens_per_s", "reward", "ended"))
    ran = [one for one in found if one.began is not None]
    assert sum(told["tokens_per_s"]) * width_s == pytest.approx(
        sum(one.tokens for one in ran), rel=1e-3, abs=1e-6
    )
    seconds = [(NOW_S + 600.0 if one.left is None else one.left) - one.began for one in ran]
    if all(one.left is not None or not one.ended for one in ran):
        assert sum(told["running"]) * width_s == pytest.approx(sum(seconds), rel=1e-6, abs=1e-6)
    assert sum(told["ended"]) == sum(one.ended for one in found)
    rewards = [one.reward for one in found if one.ended and one.reward is not None]
    means = [mean for mean in told["reward"] if mean is not None]
    assert bool(means) == bool(rewards)
    assert all(min(rewards) - 1e-9 <= mean <= max(rewards) + 1e-9 for mean in means)


def test_a_session_lies_where_it_ran() -> None:
    """An agent of two seconds in the middle of eight, and one that still runs."""
    first = SessionSpan(True, 8.0, 2.0, 4.0, 30, 0.5)
    told = history([first, SessionSpan(True, 0.0, None, None, 0, None)], 4, NOW_S)
    assert (told["start_unix_s"], told["width_s"]) == (0.0, 2.0)
    assert told["running"] == [0.0, 1.0, 0.0, 0.0]
    assert told["tokens_per_s"] == [0.0, 15.0, 0.0, 0.0]
    assert told["reward"] == [None, None, None, 0.5] and told["ended"] == [1, 0, 0, 1]
    told = history([first, SessionSpan(False, 6.0, 6.0, None, 0, None)], 2, 10.0)
    assert told["running"] == [0.5, 1.0]


def test_the_route(service: RunningService) -> None:
    """It tells of one task or of all, and names a task that is not there."""
    task = service.submit(agent=python(SPEAK), num_samples=2)
    service.result(task)
    service.result(service.submit(agent={"command": ["no-such-program"]}))
    told = service.http.get("/history", params={"task": task, "points": 7}).json()
    assert sum(told["ended"]) == 2 and len(told["ended"]) == 7
    assert sum(told["tokens_per_s"]) * told["width_s"] == pytest.approx(6.0, rel=1e-3)
    assert {one for one in told["reward"] if one is not None} == {1.0}
    assert sum(service.http.get("/history").json()["ended"]) == 3
    answers: list[httpx.Response] = [
        service.http.get("/history", params={"task": "nobody"}),
        service.http.get("/history", params={"points": 0}),
    ]
    assert [one.status_code for one in answers] == [404, 400]
    assert answers[0].json()["error"]["message"] == "there is no task 'nobody'"


def test_a_lost_agent_does_not_run_on(tmp_path: Path) -> None:
    """An agent whose node was lost, or that was cancelled, ran until its state changed."""
    state = StateDatabase(tmp_path / "rollouts.sqlite3")
    try:
        state.submit("t", {"task_id": "t"}, 2, False)
        for name in ("t.0", "t.1"):
            state.move(name, "RUNNING", attempt=1)
        state.cancel("t")
        for one in state.spans("t", 10):
            assert one.ended and one.began is not None and one.left == one.since
    finally:
        state.close()
