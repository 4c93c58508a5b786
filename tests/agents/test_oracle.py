"""The oracle never loses to where it starts, and its schedule and value are those of its plans."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents import oracle
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.oracle import SITUATIONS, OraclePlan, episode_schedules, oracle_plans
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.search import SearchEffort, search_static, static_objective
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import REGIME_COUNT
from tests.sizes import SEARCH_EPISODES, SEARCH_HORIZON

KEYS = episode_keys(SEARCH_EPISODES, "validation")
HARD = "adversarial_multitenant"
pytestmark = pytest.mark.slow  # every test searches for plans


@functools.cache
def environment() -> ServeEnv:
    """The hard task, shortened."""
    return jaxserve.make(HARD, overrides={"horizon": SEARCH_HORIZON})


@functools.cache
def found(seed: int = 0) -> np.ndarray:
    effort = SearchEffort(candidates=16, rounds=1, contenders=1)
    return search_static(environment(), KEYS, effort=effort, seed=seed).setting


@functools.cache
def planned(seed: int = 0) -> tuple[OraclePlan, np.ndarray]:
    """A quick oracle of the hard task, started at the best static setting."""
    start = found()
    others = np.stack([start, found(1)] * (REGIME_COUNT // 2))
    return oracle_plans(
        environment(), KEYS, start, others, sweeps=1, generations=2, offspring=1, seed=seed
    )


@functools.cache
def played() -> Rollout:
    """The best static setting of the hard task as a policy."""
    policy = StaticPolicy(action_at(jnp.asarray(found())))
    return rollout(environment(), policy, KEYS)


def test_the_oracle_is_at_least_the_best_static_setting() -> None:
    """It starts there, and every step keeps the better plan."""
    plans, values = planned()
    assert values.shape == (len(KEYS),)
    assert values.mean() >= static_objective(environment(), found()[None], KEYS).mean() - 1e-5
    settings, lead = np.asarray(plans.settings), np.asarray(plans.lead)
    assert settings.shape == (len(KEYS), SITUATIONS, len(KNOBS))
    assert ((settings >= 0) & (settings < grid_sizes(environment()))).all()
    assert lead.shape == (len(KEYS),)
    assert ((lead >= 0) & (lead < SEARCH_HORIZON)).all()


def test_the_oracles_value_is_that_of_its_plans() -> None:
    """What is reported belongs to the plans that are returned, the best of all generations."""
    plans, values = planned()
    schedules = episode_schedules(environment(), KEYS)
    again = oracle._paired_values(environment(), plans, KEYS, schedules)
    np.testing.assert_allclose(again, values, atol=1e-5)


def test_the_same_seed_finds_the_same_plans() -> None:
    """An oracle's value can be computed again."""
    plans, values = planned()
    planned.cache_clear()
    again, same = planned()
    np.testing.assert_array_equal(plans.settings, again.settings)
    np.testing.assert_array_equal(plans.lead, again.lead)
    np.testing.assert_array_equal(values, same)


def test_schedules_are_what_happens() -> None:
    """The regimes that the oracle knows are those that come, whoever plays."""
    schedule = np.asarray(episode_schedules(environment(), KEYS).situation)
    assert schedule.shape == (len(KEYS), SEARCH_HORIZON)
    assert ((schedule >= 0) & (schedule < SITUATIONS)).all()
    np.testing.assert_array_equal(schedule // 2, played().timesteps.metrics.regime)
