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
"""As many as jaxserve's observation has."""


class EchoAction(Action):
    """What jaxserve's players send."""

    batch_cap: int = 0
    speculation_depth: int = 0


class EchoObservation(Observation):
    """Zeros."""

    values: list[float]


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Answers at once."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Nothing begins."""
        del seed, episode_id, kwargs
        return EchoObservation(values=[0.0] * _NUMBERS, reward=0.0)

    def step(
        self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Nothing happens."""
        del action, timeout_s, kwargs
        return EchoObservation(values=[0.0] * _NUMBERS, reward=0.0)

    @property
    def state(self) -> State:
        """Of no episode."""
        return State()


app = create_app(
    EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=512
)
