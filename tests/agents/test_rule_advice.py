"""A policy that starts from a tuned rule: untrained it is the rule, and distances last."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.agents.network import (
    NetworkPolicy,
    Normaliser,
    encode_observation,
    network_for,
)
from jaxserve.agents.rollout import rollout
from jaxserve.agents.rule_advice import AdvisingRule
from jaxserve.agents.scaling import ScalingPolicy
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.agents.weights import load_weights, save_weights
from jaxserve.errors import InputError
from jaxserve.grids import KNOB_GRIDS
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS

REPLICAS = KNOBS.index("replicas")


@pytest.fixture(scope="module")
def setup() -> TaskSetup:
    return load_setup("fleet_chat")


def policy_of(setup: TaskSetup) -> tuple[NetworkPolicy, AdvisingRule]:
    """An untrained policy that starts from the task's rule."""
    rule = AdvisingRule.of_anchors(setup.anchors)
    assert rule is not None
    network = network_for(setup.env, rule=rule, width=8)
    params = network.initial_params(jax.random.key(0))
    return NetworkPolicy(params, Normaliser.create(len(network.features)), network), rule


@pytest.mark.slow
def test_untrained_it_is_the_rule(setup: TaskSetup) -> None:
    """Both want the same replicas in every window of two episodes."""
    policy, rule = policy_of(setup)
    env = setup.env
    plain = ScalingPolicy.of(rule.setting, env.locked, rule.fleet)
    keys = episode_keys(2, "train")
    wanted = [np.asarray(rollout(env, each, keys).actions.replicas) for each in (policy, plain)]
    np.testing.assert_array_equal(*wanted)
    assert len(np.unique(wanted[0])) > 2


@pytest.mark.slow
def test_a_distance_from_the_rule_lasts(setup: TaskSetup) -> None:
    """Replicas that the network chose beside the rule's follow it, inside the task's bounds."""
    policy, rule = policy_of(setup)
    network, env = policy.network, setup.env
    memory = network.initial_memory(env)
    _, first = env.reset(episode_keys(1)[0])
    advice = memory.advice
    assert advice is not None
    asked = rule.next(env, advice, first.observation)
    for before, taken, kept in ((8, 8, 8), (6, 8, 8), (6, 5, 7), (8, 0, 8), (1, 4, 8), (8, 1, 1)):
        started = dataclasses.replace(
            memory,
            last=memory.last.at[REPLICAS].set(taken),
            advice=dataclasses.replace(advice, wanted=jnp.int32(before)),
        )
        after, inputs, _ = encode_observation(
            network, env, policy.normaliser, started, first.observation
        )
        moved = np.clip(int(asked.wanted) + (taken or 8) - before, 1, 8)
        assert int(after.kept[REPLICAS]) == moved == kept
        shown = np.asarray(inputs[-2 * len(KNOB_GRIDS["replicas"]) :]).reshape(2, -1)
        assert list(np.argmax(shown, axis=1)) == [int(asked.wanted), moved]


def test_weights_keep_their_rule(setup: TaskSetup, tmp_path: Path) -> None:
    """A policy that is saved and loaded has its rule; a damaged rule is refused."""
    policy, rule = policy_of(setup)
    save_weights(tmp_path, policy, setup.spec, {})
    assert load_weights(tmp_path, setup.env, "fleet_chat").network.rule == rule
    file = tmp_path / "weights.json"
    file.write_text(file.read_text().replace('"least": 1', '"least": 9'))
    with pytest.raises(InputError, match="least is 9, above most, 8"):
        load_weights(tmp_path, setup.env, "fleet_chat")


def test_a_task_without_a_fleet_has_none() -> None:
    """Nor has a fleet on other GPUs than its anchors'."""
    assert AdvisingRule.of_anchors(load_setup("bursty_workload").anchors) is None
    elsewhere = load_setup("fleet_chat", hardware="a100-sxm-80gb")
    assert AdvisingRule.of_anchors(elsewhere.anchors) is None
