"""The interface of every controller: a pure function from observations to knobs."""

from __future__ import annotations

import abc
from typing import Any, Protocol

import jax

from jaxserve.env import EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.types import ServeAction, ServeObservation


class Policy(Protocol):
    """A controller. Its methods are pure, so that episodes run under jit, vmap and scan."""

    def init(self, env: ServeEnv) -> Any:
        """Memory at the start of an episode, a pytree (``()`` when there is none)."""
        ...

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Knobs for the next window and the next memory; ``key`` is consumed."""
        ...


class Memoryless:
    """Mixin of policies that remember nothing."""

    def init(self, env: ServeEnv) -> Any:
        """Memory of an episode's start, which stays empty."""
        del env
        return ()


@jax.jit
def act(
    policy: Policy, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
) -> tuple[ServeAction, Any]:
    """The knobs that a policy sets as they act, and its next memory; outside of compiled episodes.

    Args:
      policy: a frozen dataclass that is a pytree.
    """
    action, memory = policy.act(env, memory, observation, key)
    return env.effective_action(action), memory


class PrivilegedPolicy(abc.ABC):
    """A yardstick that is shown what no operator can see: the fast simulator's state.

    It is a ``Policy``, so that it plays wherever the state is at hand (``agents.rollout``); where
    there are only observations it refuses.
    """

    @abc.abstractmethod
    def act_on_state(
        self, env: ServeEnv, memory: Any, state: EnvState, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Action of ``Policy.act`` from the simulator's state before the window."""

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Refuses to act without the simulator's state.

        Raises:
          InputError: always.
        """
        raise InputError(
            f"{type(self).__name__} acts on the state of the fast simulator; it cannot play where "
            "only observations are shown"
        )
