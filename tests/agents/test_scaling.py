"""Scaling rules as controllers of a task with a fleet, their search, and the clairvoyant."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.panel import build_agent, playable
from jaxserve.agents.rollout import rollout
from jaxserve.agents.scaling import ScalingPolicy, observed_reading
from jaxserve.agents.scaling_search import (
    borne_rate,
    clairvoyant_rewards,
    fleet_constants,
    policy_rewards,
    tune_rules,
)
from jaxserve.agents.task_setup import load_setup
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.readings import TTFT_BUCKETS_S
from jaxserve.scaling.setting import STATIC, RuleSetting
from jaxserve.seeds import episode_keys

HORIZON = 40
KEYS = episode_keys(4, "train")
KNOBS = jaxserve.make_action(batch_cap=128)


@pytest.fixture(scope="module")
def env() -> ServeEnv:
    """Ten minutes of the chat fleet."""
    return jaxserve.make("fleet_chat", overrides={"horizon": HORIZON})


@pytest.fixture(scope="module")
def fleet(env: ServeEnv) -> Fleetwide:
    """Constants of its rules."""
    return fleet_constants(env, KNOBS)


@pytest.mark.slow
def test_a_replica_bears_a_rate(env: ServeEnv, fleet: Fleetwide) -> None:
    """More than a seventh of the mean rate and less than all of it; slower hardware bears less."""
    mean = float(env.workload.regimes.rate_rps[0])
    assert mean / 7 < fleet.requests_per_s < mean
    slow = env.replace(time_scale=jnp.float32(2.0))
    assert borne_rate(slow, KNOBS) < 0.7 * fleet.requests_per_s


@pytest.mark.slow
def test_a_fleet_that_is_never_scaled_is_the_static_setting(
    env: ServeEnv, fleet: Fleetwide
) -> None:
    """As a rule and as a constant action."""
    policy = ScalingPolicy.of(RuleSetting(STATIC, (5.0,)), KNOBS, fleet)
    static = StaticPolicy(KNOBS.replace(replicas=jnp.int32(5)))
    rewards = [np.asarray(rollout(env, each, KEYS).timesteps.reward) for each in (policy, static)]
    np.testing.assert_allclose(*rewards, rtol=1e-5)
    found = policy_rewards(env, [policy], KEYS)[0]
    np.testing.assert_allclose(found, rewards[0].mean(axis=1), rtol=1e-4)


@pytest.mark.slow
def test_a_rule_scales_with_the_load(env: ServeEnv, fleet: Fleetwide) -> None:
    """All replicas at the start; fewer than all once the rule has read a window."""
    policy = ScalingPolicy.of(RuleSetting("hpa_running", (50.0, 30.0)), KNOBS, fleet)
    actions = np.asarray(rollout(env, policy, KEYS).actions.replicas)
    assert (actions[:, 0] == 8).all() and actions[:, -10:].mean() < 7.0
    assert (actions >= 1).all()


def test_a_policy_survives_its_setting(env: ServeEnv, fleet: Fleetwide) -> None:
    """What anchors keep builds the same policy."""
    policy = ScalingPolicy.of(RuleSetting("ray_serve", (50.0, 30.0, 120.0)), KNOBS, fleet)
    again = ScalingPolicy.from_setting(policy.setting())
    assert again.fleet == policy.fleet
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), again, policy)
    assert all(jax.tree.leaves(same))


def test_a_reading_of_an_idle_fleet_has_no_latencies(env: ServeEnv, fleet: Fleetwide) -> None:
    """An empty window tells no TTFT; a busy one its 90th percentile between median and 99th."""
    _, timestep = env.reset(KEYS[0])
    idle = observed_reading(timestep.observation, fleet)
    assert float(idle.ttft_p90_s) == 0.0 and float(idle.serving) == 8.0
    busy = dataclasses.replace(
        timestep.observation,
        p50_ttft_ms=jnp.float32(100.0),
        p99_ttft_ms=jnp.float32(2000.0),
        throughput_tps=jnp.float32(100.0),
    )
    found = float(observed_reading(busy, fleet).ttft_p90_s)
    assert TTFT_BUCKETS_S[4] < found < 2.0


@pytest.mark.slow
def test_a_clairvoyant_is_not_worse_than_any_of_its_plans(env: ServeEnv, fleet: Fleetwide) -> None:
    """One of its plans rents all replicas where rates ask for them."""
    found = clairvoyant_rewards(env, KEYS, KNOBS, fleet.requests_per_s)
    poor = clairvoyant_rewards(env, KEYS, KNOBS, 100.0 * fleet.requests_per_s)
    assert found.shape == (len(KEYS),) and (found >= poor - 1e-6).all()


@pytest.mark.slow
def test_a_tuned_rule_beats_its_defaults(env: ServeEnv, fleet: Fleetwide) -> None:
    """On the episodes that it is tuned on."""
    found = tune_rules(env, KEYS, KNOBS, kinds=("hpa_running", "keda_waiting"))
    defaults = [ScalingPolicy.of(RuleSetting.default("hpa_running"), KNOBS, fleet)]
    assert found.reward >= policy_rewards(env, defaults, KEYS).mean()


def test_tasks_without_a_fleet_have_no_rule() -> None:
    """By name it is refused, and ``all`` leaves it out."""
    setup = load_setup("static_workload")
    assert "best_rule" not in playable(("best_rule", "default"), setup)
    with pytest.raises(InputError, match="replicas, but those of static_workload serve all"):
        build_agent("best_rule", setup)
    assert isinstance(build_agent("best_rule", load_setup("fleet_chat")), ScalingPolicy)
