"""Agents that drive a session window by window, by the names of ``jaxserve evaluate --agent``."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve import checks
from jaxserve.agents.panel import PRIVILEGED_AGENTS, agent_names, build_agent
from jaxserve.agents.policy import Policy, act
from jaxserve.agents.task_setup import load_setup
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.seeds import policy_key
from jaxserve.spaces import KNOBS, OBSERVATION_BOUNDS
from jaxserve.types import ServeObservation
from server.sessions.episodes import parse_episode
from server.sessions.packing import Packed, Packing
from server.sessions.programs import Knobs, Window
from server.sessions.session import Session, begin_session

Driver = Callable[[Session], Knobs]
"""Function that chooses a session's next action."""


@dataclass(frozen=True)
class AgentMemory:
    """An agent's memory of the session that it drives."""

    agent: str
    steps: int
    """windows of the episode at the agent's last action; any other number resets the memory."""
    number: int
    """the log's number of that episode."""
    key: jax.Array
    """the episode's key."""
    content: Any


class Agents:
    """Loaded agents; safe to use from several threads."""

    def __init__(self) -> None:
        """No agent is loaded yet."""
        self._guard = threading.Lock()
        self._loading: dict[tuple[str, str], threading.Lock] = {}
        self._drivers: dict[tuple[str, str], Driver] = {}

    def load(self, agent: str, task: str) -> Driver:
        """An agent, compiled for a task, which takes seconds the first time.

        Raises:
          InputError: no such agent, or the agent has no setting for this task.
        """
        check_agent(agent)
        which = (agent, task)
        with self._guard:
            loading = self._loading.setdefault(which, threading.Lock())
        # Requests for another agent or task do not wait.
        with loading:
            if which not in self._drivers:
                driver = _driver(agent, task)
                # A first action compiles the programs here, outside of the worker's thread.
                driver(begin_session("", 0, "", parse_episode(task, 0, "train", None)))
                self._drivers[which] = driver
        return self._drivers[which]


def playing_agents() -> tuple[str, ...]:
    """Agents that can play sessions. Privileged agents cannot: they see the simulator's state, and
    some search for minutes before they act."""
    return tuple(name for name in agent_names() if name not in PRIVILEGED_AGENTS)


def check_agent(agent: str) -> None:
    """Raises InputError if the agent cannot play sessions."""
    checks.one_of("agent", agent, playing_agents())


def _driver(agent: str, task: str) -> Driver:
    setup = load_setup(task)
    if agent == "best_static" and setup.anchors is None:
        raise InputError(f"there is no best static setting for {task}; {setup.note}")
    policy = build_agent(agent, setup)

    def drive(session: Session) -> Knobs:
        env, memory = session.simulator.env, session.agent
        if (
            not isinstance(memory, AgentMemory)
            or memory.agent != agent
            or (memory.number, memory.steps) != (session.number, session.steps)
        ):
            key = session.episode.key()
            memory = AgentMemory(agent, session.steps, session.number, key, policy.init(env))
        knobs, content = _chosen(
            policy, env, memory.content, _words(session.window), memory.key, session.steps
        )
        session.agent = dataclasses.replace(memory, steps=session.steps + 1, content=content)
        return tuple(np.asarray(knobs).tolist())

    return drive


@jax.jit
def _chosen(
    policy: Policy, env: ServeEnv, memory: Any, observation: Packed, key: jax.Array, window: int
) -> tuple[jax.Array, Any]:
    """The knobs that a policy sets, float32[KNOBS], and its next memory.

    Few arrays go in and out: for each the thread waits for the interpreter beside other threads.

    Args:
      observation: from ``_words``.
      key: of the episode.
      window: windows played before this one.
    """
    seen = _observation_packing().unpack(observation)
    action, memory = act(policy, env, memory, seen, policy_key(key, window))
    return jnp.stack([getattr(action, knob).astype(jnp.float32) for knob in KNOBS]), memory


def _words(window: Window) -> Packed:
    """A window's observation, packed."""
    numbers: list[float] = []
    for name in OBSERVATION_BOUNDS:
        value = window.observation[name]
        numbers.extend(value if isinstance(value, list) else [value])
    return np.array(numbers, np.float32).view(np.uint32)


@functools.cache
def _observation_packing() -> Packing[ServeObservation]:
    fields: dict[str, Any] = {
        name: jax.ShapeDtypeStruct((3,) if name == "priority_distribution" else (), jnp.float32)
        for name in OBSERVATION_BOUNDS
    }
    return Packing.of(ServeObservation(**fields))
