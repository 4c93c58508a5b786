"""The per-regime oracle: the setting of the regime in force, tuned so that it pays."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.regime_oracle import RegimeOracle, RegimeSearch, search_regime_oracle
from jaxserve.agents.rollout import rollout
from jaxserve.errors import InputError
from jaxserve.grids import KNOB_GRIDS, nearest_indices
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS, make_action
from jaxserve.tasks.spec import REGIME_COUNT
from tests.compiled_env import reset
from tests.quick_compiler import programs_compute

HORIZON = 8
EVERY_OTHER = np.array([[3 + 2 * regime + burst for burst in (0, 1)] for regime in range(4)])
"""A batch cap of its own for each regime, calm and in a burst."""


def oracle() -> RegimeOracle:
    """All knobs at the locked values but the batch cap."""
    settings = np.tile(nearest_indices(make_action()), (REGIME_COUNT, 2, 1))
    settings[..., KNOBS.index("batch_cap")] = EVERY_OTHER
    return RegimeOracle(jnp.asarray(settings, jnp.int32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        "adversarial_multitenant",
        "fleet_mixed",
        *(pytest.param(name, marks=pytest.mark.deep) for name in ("fleet_reasoning", "azure_code")),
    ],
)
def test_it_plays_the_setting_of_the_regime_in_force(task: str) -> None:
    """In every window of every task the batch cap is that of the window's own regime."""
    env = jaxserve.make(task, overrides={"horizon": 150})
    played = rollout(env, oracle(), episode_keys(4, "validation"))
    assert np.isfinite(np.asarray(played.timesteps.reward)).all()
    regime = np.asarray(played.timesteps.metrics.regime)
    allowed = KNOB_GRIDS["batch_cap"][EVERY_OTHER[regime]]
    caps = np.asarray(played.actions.batch_cap)
    assert (caps[..., None] == allowed).any(axis=-1).all()
    if task == "bursty_workload":
        assert len(np.unique(regime)) == REGIME_COUNT and len(np.unique(caps)) == 2 * REGIME_COUNT


def test_only_the_present_counts() -> None:
    """Another key and another schedule behind the regime in force change nothing."""
    env = jaxserve.make("bursty_workload")
    policy = oracle()
    state, _ = reset(env, jax.random.key(0))
    caps = set()
    for seed in range(4):
        traffic = dataclasses.replace(
            state.workload, key=jax.random.key(seed), dwell_left_s=jnp.float32(1.0 + seed)
        )
        now = dataclasses.replace(state, workload=traffic)
        action, _ = policy.act_on_state(env, (), now, jax.random.key(seed))
        caps.add(int(action.batch_cap))
    assert len(caps) == 1


def test_it_refuses_to_play_on_observations() -> None:
    """Where no state is shown, a sentence says so."""
    env = jaxserve.make("static_workload")
    _, timestep = reset(env, jax.random.key(0))
    with pytest.raises(InputError, match="RegimeOracle acts on the state of the fast simulator"):
        oracle().act(env, (), timestep.observation, jax.random.key(0))


@pytest.mark.deep
def test_a_single_regime_is_not_searched_regime_by_regime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing to know, so what is left is to tell bursts from calm."""
    env = jaxserve.make("static_workload", overrides={"horizon": HORIZON})
    monkeypatch.setattr("jaxserve.agents.regime_oracle.regime_settings", None)
    found = search_regime_oracle(env, make_action(batch_cap=48), RegimeSearch(episodes=2))
    assert found.settings.shape == (REGIME_COUNT, 2, len(KNOBS))


@pytest.mark.deep
@programs_compute()
def test_knowing_the_regime_pays() -> None:
    """On the medium task, whose regimes conflict, it gains on the best constant by far."""
    env = jaxserve.make("bursty_workload")
    static = jaxserve.make_action(batch_cap=128, kv_budget_fraction=0.6)
    found = search_regime_oracle(env, static, RegimeSearch(episodes=4, held_episodes=2))
    keys = episode_keys(16, "validation")
    rewards = [
        float(jnp.mean(rollout(env, policy, keys).timesteps.reward))
        for policy in (StaticPolicy(static), found)
    ]
    assert rewards[1] > 1.05 * rewards[0]
