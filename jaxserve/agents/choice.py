"""Several policies in one compiled program, of which the simulator is the larger part."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.agents.policy import Policy, PrivilegedPolicy
from jaxserve.env import ServeEnv
from jaxserve.types import ServeAction, ServeObservation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChosenPolicy:
    """A choice among several policies. The choice is data, so that all of them share a program."""

    policies: tuple[Policy, ...]
    chosen: jax.Array
    """int32, index of the one that acts."""

    def init(self, env: ServeEnv) -> Any:
        """Memories of all policies."""
        return tuple(policy.init(env) for policy in self.policies)

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """The chosen policy's knobs as they act; the memory of the others stays."""

        def turn(index: int, memory: Any) -> tuple[ServeAction, Any]:
            action, own = self.policies[index].act(env, memory[index], observation, key)
            return env.effective_action(action), (*memory[:index], own, *memory[index + 1 :])

        turns = [lambda memory, i=i: turn(i, memory) for i in range(len(self.policies))]
        return jax.lax.switch(self.chosen, turns, memory)


def in_one_program(policies: Sequence[Policy]) -> list[Policy]:
    """Wraps policies so that ``rollout`` compiles one program for all of them.

    Those that differ in numbers only, such as two constant settings, share one anyway. A
    ``PrivilegedPolicy`` stays as it is: it is shown what the others are not.
    """
    kinds = {_kind(one): one for one in policies if not isinstance(one, PrivilegedPolicy)}
    # In an order of their own, so that the same kinds find the same program.
    kinds = dict(sorted(kinds.items(), key=lambda item: str(item[0])))
    if len(kinds) < 2:
        return list(policies)

    def wrapped(policy: Policy) -> Policy:
        kind = _kind(policy)
        members = kinds | {kind: policy}
        return ChosenPolicy(tuple(members.values()), jnp.int32(list(members).index(kind)))

    return [
        policy if isinstance(policy, PrivilegedPolicy) else wrapped(policy) for policy in policies
    ]


def _kind(policy: Policy) -> Hashable:
    """Everything that JAX compiles a program for: class, tree, shapes and types."""
    leaves, tree = jax.tree.flatten(policy)
    # The class by name as well: jaxlib 0.10 calls the trees of two classes without leaves equal.
    types = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return type(policy), tree, types
