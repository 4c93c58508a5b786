"""Agents on the server act as they do in a rollout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import RandomPolicy
from jaxserve.agents.panel import PRIVILEGED_AGENTS, playable
from jaxserve.agents.rollout import rollout
from jaxserve.agents.task_setup import load_setup
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from server.players import agents
from server.players.agents import Agents, Driver
from server.sessions import programs
from server.sessions.episodes import parse_episode
from server.sessions.session import begin_session
from tests.sizes import EPISODES


@pytest.mark.slow
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


@contextlib.contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """One entry for each that happens meanwhile, also where its result comes from a cache."""
    found: list[str] = []

    def listen(event: str, seconds: float, **about: Any) -> None:
        del seconds, about
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


CONFIGS: list[dict[str, Any]] = [
    {},
    {"alpha": 2.0, "delta": 0.5},
    {"horizon": 20, "randomisation": 0.1},
    {"deployment": {"num_gpus": 2, "prefix_caching": True, "token_budget": 4096}},
    {"knobs": ["batch_cap", "quantization_tier"], "objective": {"latency_weight": 1.0}},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["static_workload", pytest.param("trace_replay", marks=pytest.mark.slow)]
)
def test_nothing_is_compiled_while_an_agent_drives(task: str) -> None:
    """Everybody's steps would wait for it: all is compiled once the agent is loaded and the
    session begun, whatever the episode's config."""
    with counted_compilations() as compiled:
        jax.jit(lambda x: x * 3.0 + 1.0)(jnp.zeros(7))
    assert compiled
    shared = Agents()
    for config in CONFIGS:
        episode = parse_episode(task, 3, "test", config)
        programs.try_out(programs.simulator(episode), together=False)
        for agent in playable(agents.playing_agents(), load_setup(task)):
            driver = shared.load(agent, task)
            session = begin_session("", 0, "", episode)
            with counted_compilations() as compiled:
                for _ in range(3):
                    knobs = driver(session)
                    state, outcome = programs.advance(session.simulator, session.state, knobs)
                    session.append(state, programs.read_windows(outcome), 0, knobs)
            assert not compiled, (agent, config)


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
        return lambda session: (1.0,) * 7

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
