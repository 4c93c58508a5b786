"""Searches stay on the grid, keep the best of what they tried, and find the same again."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents import search
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.search import (
    best_static,
    setting_text,
    static_objective,
)
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from tests.sizes import SEARCH_EPISODES, SEARCH_HORIZON

KEYS = episode_keys(SEARCH_EPISODES, "validation")
GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")
HARD = "adversarial_multitenant"


@functools.cache
def environment(task: str) -> ServeEnv:
    """A short task: one program serves all."""
    return jaxserve.make(task, overrides={"horizon": SEARCH_HORIZON})


@functools.cache
def found(task: str, rounds: int = 1, seed: int = 0) -> np.ndarray:
    return best_static(environment(task), KEYS, candidates=32, rounds=rounds, seed=seed)


@functools.cache
def played() -> Rollout:
    """The best static setting of the hard task as a policy."""
    policy = StaticPolicy(action_at(jnp.asarray(found(HARD))))
    return rollout(environment(HARD), policy, KEYS)


def objective(task: str, setting: np.ndarray) -> float:
    return float(static_objective(environment(task), setting[None], KEYS).mean())


@pytest.mark.parametrize("task", GRADED)
def test_the_best_static_setting_is_the_best_that_was_tried(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate and no neighbour scores more; locked knobs are not searched."""
    batches = []

    def noted(env: ServeEnv, indices: np.ndarray, keys: jax.Array) -> np.ndarray:
        values = static_objective(env, indices, keys)
        batches.append((np.asarray(indices), values.mean(1)))
        return values

    monkeypatch.setattr(search, "static_objective", noted)
    setting = best_static(environment(task), KEYS, candidates=32, rounds=1)
    sizes = grid_sizes(environment(task))
    active = np.asarray(environment(task).knob_active)
    candidates, neighbours = (settings for settings, _ in batches)
    assert len(np.unique(candidates, axis=0)) == len(candidates) == 32
    for settings, _ in batches:
        assert ((settings >= 0) & (settings < sizes)).all()
        assert not settings[:, ~active].any()
    # Refinement turns one knob of a candidate at a time, and tries nothing twice.
    changed = (neighbours[:, None] != candidates[None]).sum(axis=2).min(axis=1)
    np.testing.assert_array_equal(changed, 1)
    tried = np.concatenate([settings for settings, _ in batches])
    values = np.concatenate([values for _, values in batches])
    assert setting.shape == (len(KNOBS),)
    assert (tried == setting).all(axis=1).any()
    assert values[(tried == setting).all(axis=1)].item() == values.max()


@pytest.mark.parametrize("task", GRADED)
def test_the_same_seed_finds_the_same_setting(task: str) -> None:
    """A search is a function of its arguments, and its value is no accident of the batch."""
    again = best_static(environment(task), KEYS, candidates=32, rounds=1)
    np.testing.assert_array_equal(found(task), again)
    alone = objective(task, again)
    pair = np.stack([np.zeros_like(again), again])
    together = static_objective(environment(task), pair, KEYS).mean(1)[1]
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.slow
def test_more_rounds_are_never_worse() -> None:
    """Refinement keeps what it has."""
    values = [objective(HARD, found(HARD, rounds)) for rounds in (0, 1, 3)]
    assert values[0] <= values[1] <= values[2]


def test_the_objective_is_the_mean_reward_of_the_setting_as_a_policy() -> None:
    """Searches and evaluations play the same episodes."""
    values = static_objective(environment(HARD), found(HARD)[None], KEYS)
    assert values.shape == (1, len(KEYS))
    rewards = np.asarray(played().timesteps.reward, np.float64).mean(axis=1)
    np.testing.assert_allclose(values[0], rewards, rtol=1e-3, atol=1e-4)


def test_settings_are_shown_by_the_knobs_that_act() -> None:
    """Locked knobs are not part of a setting's name."""
    setting = np.array([6, 10, 2, 1, 1, 1], np.int32)
    everything = setting_text(setting, grid_sizes(environment(HARD)))
    assert everything.startswith("batch_cap 24, kv_budget_fraction 1, speculation_depth 2")
    two = setting_text(setting, grid_sizes(environment("static_workload")))
    assert two == "batch_cap 24, kv_budget_fraction 1"
