"""The reactive operator: each rule does what it says, and together they beat the default."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import jaxserve
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import default_policy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_keys
from tests.sizes import EPISODES

MEDIUM, HARD = "bursty_workload", "adversarial_multitenant"
TASKS = ("static_workload", MEDIUM, HARD, "azure_code")


def environment(task: str, **overrides: Any) -> ServeEnv:
    """The task's environment with some fields changed."""
    return jaxserve.make(task, overrides=overrides)


def played(env: ServeEnv, policy: Any) -> Rollout:
    """NumPy leaves [EPISODES, T, ...] of validation episodes."""
    return jax.tree.map(np.asarray, rollout(env, policy, episode_keys(EPISODES, "validation")))


@functools.cache
def operated(task: str) -> Rollout:
    """Episodes of the operator on a task as it is."""
    return played(environment(task), HeuristicPolicy())


@pytest.mark.parametrize("task", [MEDIUM, HARD])
def test_beats_the_default(task: str) -> None:
    """On the same episodes it earns more than the default, beyond chance."""
    env = environment(task)
    gain = operated(task).timesteps.reward.mean(1) - (
        played(env, default_policy(env)).timesteps.reward.mean(1)
    )
    assert stats.ttest_1samp(gain, 0.0, alternative="greater").pvalue < 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_memory_stays_below_the_limit(task: str) -> None:
    """KV takes what the limit leaves: windows over it are rare and by little, none is lost."""
    metrics = operated(task).timesteps.metrics
    limit = float(environment(task).reward.memory_limit_gib)
    assert not metrics.oom.any()
    assert np.quantile(metrics.memory_gib, 0.99) < limit + 0.2
    assert np.max(metrics.memory_gib) < limit + 1.0


def test_kv_follows_the_limit() -> None:
    """A lower limit is kept by reserving less."""
    env = environment(MEDIUM, objective={"memory_limit_gib": 28.0})
    found = played(env, HeuristicPolicy())
    assert np.quantile(found.timesteps.metrics.memory_gib, 0.99) < 28.2
    ample = operated(MEDIUM).actions.kv_budget_fraction
    assert found.actions.kv_budget_fraction.max() < ample.min()


@pytest.mark.parametrize("task", TASKS)
def test_switches_rest(task: str) -> None:
    """Tier and split never change within the dwell time of the last change."""
    policy = HeuristicPolicy()
    actions = operated(task).actions
    setting = np.stack([actions.quantization_tier, actions.prefill_decode_split])
    for episode in np.any(setting[:, :, 1:] != setting[:, :, :-1], axis=0):
        assert (np.diff(np.flatnonzero(episode)) >= policy.dwell).all()


def test_depth_follows_load() -> None:
    """It speculates deeper on a quiet deployment than on one that is busy."""
    quiet = played(environment(MEDIUM, rate_scale=0.2), HeuristicPolicy())
    busy = played(environment(MEDIUM, rate_scale=3.0), HeuristicPolicy())
    half = slice(quiet.actions.speculation_depth.shape[1] // 2, None)
    deep, shallow = (r.actions.speculation_depth[:, half].mean() for r in (quiet, busy))
    assert deep > shallow + 1.0


def test_priority_routing_follows_the_queue() -> None:
    """It is on in the window after requests queued, and off after a long calm."""
    found = operated(HARD)
    queued = found.timesteps.observation.queue_depth > 0.0
    routing = found.actions.priority_routing
    assert queued.any()
    assert (routing[:, 1:][queued[:, :-1]] == 1).all()
    calm = played(environment(HARD, rate_scale=0.02), HeuristicPolicy()).actions.priority_routing
    assert (calm == 0).any()


def test_batch_cap_is_cut_by_evictions() -> None:
    """Preemptions shrink the cap at once; without them it recovers."""
    env = environment(MEDIUM, rate_scale=4.0, objective={"memory_limit_gib": 18.0})
    found = played(env, HeuristicPolicy())
    evicted = found.timesteps.observation.eviction_events[:, :-1] > 1.0
    change = np.diff(found.actions.batch_cap.astype(int), axis=1)
    assert evicted.any()
    assert (change[evicted] <= 0).all()
    assert (change > 0).any()
