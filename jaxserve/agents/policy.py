"""What every controller is: a pure function from what it sees to what it turns."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from jaxserve.env import ServeEnv
from jaxserve.types import ServeAction, ServeObservation


class Policy(Protocol):
    """A controller. Its methods are pure, so that episodes run under jit, vmap and scan."""

    name: str

    def init(self, env: ServeEnv) -> Any:
        """Memory at the start of an episode, a pytree (``()`` when there is none)."""
        ...

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Knobs for the next window and the next memory; ``key`` is consumed."""
        ...
