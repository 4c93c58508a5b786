"""Agents on the server act as they do in a rollout."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import RandomPolicy
from jaxserve.agents.panel import PRIVILEGED_AGENTS
from jaxserve.agents.rollout import rollout
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from server.players import agents
from server.players.agents import Agents, Driver
from server.sessions import programs
from server.sessions.episodes import parse_episode
from server.sessions.session import begin_session
from tests.sizes import EPISODES


def test_the_random_agent_plays_as_in_a_rollout() -> None:
    """The same draws on the same episode, however the agent's windows are asked for."""
    task, seed, windows = "static_workload", 3, 6
    keys = episode_keys(EPISODES, "validation")
    expected = rollout(jaxserve.make(task), RandomPolicy(), keys).actions
    session = begin_session("", 0, "", parse_episode(task, seed, "validation", None))
    driver = Agents().load("random", task)
    for window in range(windows):
        knobs = driver(session)
        assert knobs == pytest.approx([float(getattr(expected, k)[seed, window]) for k in KNOBS])
        state, outcome = programs.advance(session.simulator, session.state, knobs)
        session.append(state, programs.read_windows(outcome), 0, knobs)
    assert len(np.unique(expected.batch_cap[seed, :windows])) > 1


def test_agents_that_are_shown_the_state_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a search, which takes minutes on all cores; and nobody is offered them."""

    def search(*arguments: Any) -> NoReturn:
        raise AssertionError(f"was built: {arguments}")

    monkeypatch.setattr(agents, "build_agent", search)
    for agent in PRIVILEGED_AGENTS:
        assert agent not in agents.playing_agents()
        with pytest.raises(InputError, match=f"agent is '{agent}'; it must be one of random, "):
            Agents().load(agent, "static_workload")


def test_who_loads_one_agent_does_not_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock for each agent and task, and each is loaded once."""
    slow, loading = threading.Event(), threading.Event()
    loaded: list[tuple[str, str]] = []

    def driver(agent: str, task: str) -> Driver:
        loaded.append((agent, task))
        if task == "bursty_workload":
            loading.set()
            assert slow.wait(300.0)
        return lambda session: (1.0,) * 6

    monkeypatch.setattr(agents, "_driver", driver)
    shared = Agents()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(shared.load, "default", "bursty_workload") for _ in range(2)]
        assert loading.wait(300.0)
        shared.load("heuristic", "static_workload")
        shared.load("default", "static_workload")
        assert not any(one.done() for one in waiting)
        slow.set()
        assert waiting[0].result() is waiting[1].result()
    assert len(loaded) == 3
