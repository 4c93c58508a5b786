"""Policies that share a compiled program play as each does by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import jaxserve
from jaxserve.agents import rollout as rollout_module
from jaxserve.agents.choice import ChosenPolicy, in_one_program
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import RandomPolicy, StaticPolicy, exploit_policies
from jaxserve.agents.planner import planner_for
from jaxserve.agents.policy import Policy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS, make_action
from tests.sizes import EPISODES

ENV = jaxserve.make("bursty_workload")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beyond:
    """Asks for knobs out of bounds, which have other types than an action's."""

    def init(self, env: Any) -> Any:
        """No memory."""
        return ()

    def act(self, env: Any, memory: Any, observation: Any, key: Any) -> Any:
        """Whole and real numbers from Python."""
        return dataclasses.replace(make_action(), batch_cap=10_000.5, speculation_depth=9), memory


POLICIES: dict[str, Policy] = {
    "random": RandomPolicy(),
    "one": StaticPolicy(make_action(batch_cap=8)),
    "heuristic": HeuristicPolicy(),
    "another": StaticPolicy(make_action(batch_cap=96)),
    "flapping": exploit_policies()["cap_flapping"],
    "beyond": Beyond(),
}


def players() -> dict[str, Policy]:
    """Them, so that one program plays all of them."""
    return dict(zip(POLICIES, in_one_program(list(POLICIES.values())), strict=True))


def played(policy: Policy) -> Rollout:
    """Validation episodes of a policy."""
    return rollout(ENV, policy, episode_keys(EPISODES, "validation"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "heuristic", "another"])
def test_plays_as_it_does_alone(name: str) -> None:
    """The same knobs on the same requests, whatever the others remember and draw."""
    together, alone = played(players()[name]), played(POLICIES[name])
    for knob in KNOBS:
        np.testing.assert_allclose(
            getattr(together.actions, knob), getattr(alone.actions, knob), rtol=1e-3, err_msg=knob
        )
    rewards = [np.asarray(found.timesteps.reward) for found in (together, alone)]
    np.testing.assert_allclose(*rewards, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_one_program_plays_them_all() -> None:
    """The first compiles it; settings that differ in numbers are one member of the choice."""
    chosen = list(players().values())
    assert {len(player.policies) for player in chosen if isinstance(player, ChosenPolicy)} == {5}
    played(chosen[0])
    compiled = rollout_module._rollout._cache_size()
    rewards = {float(played(player).timesteps.reward.mean()) for player in chosen}
    assert len(rewards) == len(POLICIES)
    assert rollout_module._rollout._cache_size() == compiled


def test_what_shares_a_program_anyway_stays_as_it_is() -> None:
    """So does one policy alone, and a yardstick that is shown the state."""
    static = [POLICIES["one"], POLICIES["another"]]
    assert in_one_program(static) == static
    assert in_one_program([]) == []
    planner = planner_for(ENV)
    assert in_one_program([planner, *static]) == [planner, *static]
    assert in_one_program([planner, *POLICIES.values()])[0] is planner


def test_knobs_of_any_type_are_taken() -> None:
    """As outside of a choice: they are clipped, and have an action's types."""
    found = played(players()["beyond"]).actions
    assert (np.asarray(found.batch_cap) == np.asarray(ENV.highest.batch_cap)).all()
    assert found.batch_cap.dtype == found.speculation_depth.dtype == np.int32
