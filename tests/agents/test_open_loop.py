"""Baselines: what each sets, and that every one of them can run every task."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.choice import in_one_program
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import (
    FlappingPolicy,
    RandomPolicy,
    StaticPolicy,
    default_policy,
    exploit_policies,
    noop_policy,
)
from jaxserve.agents.policy import Policy
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.env import ServeEnv
from jaxserve.grids import KNOB_GRIDS
from jaxserve.seeds import episode_keys
from jaxserve.spaces import (
    ACTION_BOUNDS,
    DEFAULT_ACTION,
    KNOBS,
    OBSERVATION_BOUNDS,
)
from tests.sizes import EPISODES, each_task

HARD = "adversarial_multitenant"


@functools.cache
def environment(task: str) -> ServeEnv:
    """The task's environment, in episodes of 200 windows."""
    return jaxserve.make(task, overrides={"horizon": 200})


def baselines(env: ServeEnv) -> dict[str, Policy]:
    """Every baseline by its name; one compiled program plays them all."""
    named = {
        "default": default_policy(env),
        "random": RandomPolicy(),
        "heuristic": HeuristicPolicy(),
    }
    policies = named | exploit_policies()
    return dict(zip(policies, in_one_program(list(policies.values())), strict=True))


def played(task: str, policy: Any) -> Rollout:
    """NumPy leaves [EPISODES, T, ...] of validation episodes."""
    env = environment(task)
    return jax.tree.map(np.asarray, rollout(env, policy, episode_keys(EPISODES, "validation")))


def named(name: str) -> Rollout:
    """A baseline's episodes of the hard task."""
    return played(HARD, baselines(environment(HARD))[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    each_task(deep=("bursty_workload", "static_workload", "trace_replay")),
)
def test_every_baseline_runs_every_task(task: str) -> None:
    """Rewards are finite, observations and knobs inside their bounds, locked knobs untouched."""
    env = environment(task)
    for name, policy in baselines(env).items():
        found = played(task, policy)
        assert np.isfinite(found.timesteps.reward).all(), name
        for field, bound in OBSERVATION_BOUNDS.items():
            values = getattr(found.timesteps.observation, field)
            assert np.isfinite(values).all(), (name, field)
            assert ((values >= bound.low) & (values <= bound.high)).all(), (name, field)
        for knob, active in zip(KNOBS, np.asarray(env.knob_active), strict=True):
            values, bound = getattr(found.actions, knob), ACTION_BOUNDS[knob]
            assert ((values >= bound.low) & (values <= bound.high)).all(), (name, knob)
            assert active or (values == np.asarray(getattr(env.locked, knob))).all(), (name, knob)


def test_default_turns_no_knob() -> None:
    """The default is the task's locked setting from the first window to the last."""
    actions = named("default").actions
    for knob, value in DEFAULT_ACTION.items():
        np.testing.assert_allclose(getattr(actions, knob), value)


def test_random_reaches_every_value_of_every_knob() -> None:
    """Each knob of the hard task is uniform over its grid; splits leave one decoding GPU."""
    actions = named("random").actions
    gpus = int(environment(HARD).deployment.num_gpus)
    for knob in KNOBS[:-1]:  # its replicas serve all the time
        grid = KNOB_GRIDS[knob].astype(np.float32)
        grid = grid[:gpus] if knob == "prefill_decode_split" else grid
        values, counts = np.unique(getattr(actions, knob), return_counts=True)
        np.testing.assert_allclose(values, grid)
        draws, share = counts.sum(), 1.0 / len(grid)
        deviation = np.sqrt(draws * share * (1.0 - share))
        assert (np.abs(counts - draws * share) < 4.5 * deviation).all(), knob


def test_random_depends_on_the_key_alone() -> None:
    """The same key draws the same knobs, another key others."""
    first, second = (named("random").actions.batch_cap for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])


def test_flapping_alternates() -> None:
    """Even windows get the first setting, odd ones the second."""
    assert isinstance(exploit_policies()["tier_flapping"], FlappingPolicy)
    tier = named("tier_flapping").actions.quantization_tier
    assert (tier[:, ::2] == 0).all() and (tier[:, 1::2] == 1).all()


def test_exploits_are_the_extremes_they_are_named_for() -> None:
    """The named settings hold the bounds of the knobs."""
    exploits = exploit_policies()
    for knob, bound in ACTION_BOUNDS.items():
        assert float(getattr(noop_policy().action, knob)) == pytest.approx(bound.low)
        everything = exploits["everything_max"]
        assert isinstance(everything, StaticPolicy)
        assert float(getattr(everything.action, knob)) == pytest.approx(bound.high)


def test_starving_earns_nothing() -> None:
    """No-op and the least service never earn more than the GPUs cost."""
    for name in ("noop", "reject_all"):
        assert named(name).timesteps.reward.mean() < 0.0
