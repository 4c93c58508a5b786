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


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param(MEDIUM, marks=pytest.mark.deep), HARD])
def test_beats_the_default(task: str) -> None:
    """On the same episodes it earns more than the default, beyond chance."""
    env = environment(task)
    gain = operated(task).timesteps.reward.mean(1) - (
        played(env, default_policy(env)).timesteps.reward.mean(1)
    )
    assert stats.ttest_1samp(gain, 0.0, alternative="greater").pvalue < 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_memory_stays_on_the_device(task: str) -> None:
    """No batch is so large that a GPU runs out of memory, and the KV pool is used as a whole."""
    found = operated(task)
    assert not found.timesteps.metrics.oom.any()
    assert (found.actions.kv_budget_fraction == 1.0).all()


def test_the_batch_leaves_room_for_activations() -> None:
    """An engine that keeps little memory free is asked for smaller batches where they are
    speculated for deeply, whose logits take the most."""
    found = [
        played(
            environment(MEDIUM, rate_scale=0.3, deployment={"memory_utilization": share}),
            HeuristicPolicy(),
        )
        for share in (0.92, 0.99)
    ]
    assert not any(each.timesteps.metrics.oom.any() for each in found)
    ample, scarce = (each.actions.batch_cap.max() for each in found)
    assert scarce < 0.6 * ample


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
    env = environment(MEDIUM, rate_scale=4.0, deployment={"kv_pool_tokens": 20_000})
    found = played(env, HeuristicPolicy())
    evicted = found.timesteps.observation.eviction_events[:, :-1] > 1.0
    change = np.diff(found.actions.batch_cap.astype(int), axis=1)
    assert evicted.any()
    assert (change[evicted] <= 0).all()
    assert (change > 0).any()
