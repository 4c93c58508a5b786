"""OpenEnv alone, for comparison: an environment that computes nothing and answers as many numbers.

    uvicorn benchmarks.echo_server:app

Its sessions are played over WebSocket; over HTTP every request has an environment of its own, as
OpenEnv has it.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server import Environment, create_app
from openenv.core.env_server.types import Action, Observation, State

_NUMBERS = 21
"""Number of entries in jaxserve's observation."""


class EchoAction(Action):
    """Action of jaxserve's players."""

    batch_cap: int = 0
    speculation_depth: int = 0


class EchoObservation(Observation):
    """Observation of zeros."""

    values: list[float]


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Environment without a computation."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Returns zeros."""
        del seed, episode_id, kwargs
        return EchoObservation(values=[0.0] * _NUMBERS, reward=0.0)

    def step(
        self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Returns zeros."""
        del action, timeout_s, kwargs
        return EchoObservation(values=[0.0] * _NUMBERS, reward=0.0)

    @property
    def state(self) -> State:
        """State without an episode."""
        return State()


app = create_app(
    EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=512
)
