"""Open-loop controllers, which never look at the observation: yardsticks and exploits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.agents.policy import Memoryless
from jaxserve.env import ServeEnv
from jaxserve.fields import Tier
from jaxserve.grids import KNOB_GRIDS, action_at
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.types import ServeAction, ServeObservation


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RandomPolicy(Memoryless):
    """Every window every knob at a random point of its grid."""

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Uniform over each knob's grid; splits up to one decoding GPU."""
        del observation
        sizes = jnp.asarray([len(KNOB_GRIDS[knob]) for knob in KNOBS], jnp.float32)
        sizes = sizes.at[KNOBS.index("prefill_decode_split")].set(env.deployment.num_gpus)
        draw = jax.random.uniform(key, (len(KNOBS),))
        return action_at(jnp.floor(draw * sizes).astype(jnp.int32)), memory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StaticPolicy(Memoryless):
    """A constant setting for the whole episode."""

    action: ServeAction

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Action of the constant setting."""
        del env, observation, key
        return self.action, memory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FlappingPolicy:
    """Two settings in turn, a new one every window: the behaviour of a controller without dwell
    time."""

    first: ServeAction
    second: ServeAction

    def init(self, env: ServeEnv) -> Any:
        """int32, windows so far."""
        del env
        return jnp.int32(0)

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """``first`` in even windows, ``second`` in odd ones."""
        del env, observation, key
        action = jax.tree.map(
            lambda even, odd: jnp.where(memory % 2 == 0, even, odd), self.first, self.second
        )
        return action, memory + 1


def default_policy(env: ServeEnv) -> StaticPolicy:
    """An operator who turns no knob: the task's locked values for all six."""
    return StaticPolicy(env.locked)


def noop_policy() -> StaticPolicy:
    """Every knob at its smallest value: batches of one request in a tenth of the KV memory."""
    return StaticPolicy(make_action(**_extreme("low")))


def exploit_policies() -> dict[str, StaticPolicy | FlappingPolicy]:
    """Controllers that would gain from a faulty reward, by name.

    A task's reward is faulty if one of them beats the best static setting, or scores although it
    serves nobody.
    """
    names = ("batch_cap", "kv_budget_fraction", "speculation_depth")
    cap, kv, depth = (ACTION_BOUNDS[name] for name in names)
    one, most = make_action(batch_cap=cap.low), make_action(batch_cap=cap.high)
    int8, int4 = (make_action(quantization_tier=int(tier)) for tier in (Tier.INT8, Tier.INT4))
    least_kv, all_kv = (make_action(kv_budget_fraction=end) for end in (kv.low, kv.high))
    policies: dict[str, StaticPolicy | FlappingPolicy] = {
        "noop": noop_policy(),
        f"batch_{cap.low:g}": StaticPolicy(one),
        f"batch_{cap.high:g}": StaticPolicy(most),
        "everything_max": StaticPolicy(make_action(**_extreme("high"))),
        "int4_always": StaticPolicy(int4),
        f"speculation_{depth.high:g}": StaticPolicy(make_action(speculation_depth=depth.high)),
        "tier_flapping": FlappingPolicy(make_action(), int8),
        "cap_flapping": FlappingPolicy(one, most),
        "kv_flapping": FlappingPolicy(least_kv, all_kv),
    }
    # The least service that the knobs allow: one GPU decodes one request, all others prefill.
    most_prefill = {"prefill_decode_split": ACTION_BOUNDS["prefill_decode_split"].high}
    starve = make_action(**_extreme("low") | most_prefill)
    return policies | {"reject_all": StaticPolicy(starve)}


def _extreme(side: str) -> dict[str, float]:
    return {knob: getattr(bound, side) for knob, bound in ACTION_BOUNDS.items()}
