"""Agents on the server act as they do in a rollout."""

from __future__ import annotations

import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import RandomPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from server.players.agents import Agents
from server.sessions import engine
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
        state, outcome = engine.advance(session.simulator, session.state, knobs)
        session.append(state, engine.read_windows(outcome), 0, knobs)
    assert len(np.unique(expected.batch_cap[seed, :windows])) > 1
