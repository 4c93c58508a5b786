"""Episodes in the reference simulator: what they report is what happened there."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import RandomPolicy, StaticPolicy
from jaxserve.agents.reference_rollout import ReferenceEpisode, reference_rollout, table_timer
from jaxserve.agents.rollout import rollout
from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_keys
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.spaces import KNOBS, make_action
from jaxserve.types import WindowMetrics
from tests.sizes import EPISODES

KEYS = episode_keys(EPISODES, "validation")
KEY = KEYS[0]


@functools.cache
def environment(task: str) -> tuple[ServeEnv, CostModel]:
    """A task, and the iteration times behind its table."""
    return jaxserve.make(task), table_timer(task)


@pytest.mark.slow
def test_the_random_agent_plays_as_in_a_rollout() -> None:
    """The same draws on the same episode, so that scores of both simulators can be compared."""
    env, timer = environment("static_workload")
    expected = rollout(env, RandomPolicy(), KEYS).actions
    found = reference_rollout(env, RandomPolicy(), KEY, timer, windows=6).actions
    for knob in KNOBS:
        np.testing.assert_allclose(getattr(found, knob), getattr(expected, knob)[0, :6], rtol=1e-6)
    assert len(np.unique(found.batch_cap)) > 1


def played(env: ServeEnv, timer: CostModel, windows: int, **knobs: float) -> WindowMetrics:
    """The windows [T, ...] of an episode under constant knobs."""
    episode = ReferenceEpisode(env, KEY, timer, windows)
    rows = [episode.step(make_action(**knobs)) for _ in range(windows)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def test_tier_and_split_are_those_in_force() -> None:
    """Not those asked for: a switch takes its time."""
    env, timer = environment("bursty_workload")
    deployment = dataclasses.replace(
        env.deployment, restart_s=jnp.float32(3.0), rerole_s=jnp.float32(2.0)
    )
    env = dataclasses.replace(env, deployment=deployment)
    split = played(env, timer, 6, batch_cap=64, prefill_decode_split=1)
    assert split.prefill_gpus.tolist() == [0, 0, 1, 1, 1, 1]
    tier = played(env, timer, 8, batch_cap=64, quantization_tier=1)
    assert tier.tier.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("knobs", [{"batch_cap": 16}, {"batch_cap": 256}])
def test_overdue_requests_are_those_that_end_late(knobs: dict[str, float]) -> None:
    """Of the requests inside at the end of a window exactly as many as the whole log tells: their
    wait, their first token or the time since then was beyond an objective by then."""
    env, timer = environment("static_workload")
    strict = dataclasses.replace(env.slo, tpot_s=jnp.full_like(env.slo.tpot_s, 0.01))
    env = dataclasses.replace(env, slo=strict)
    episode = ReferenceEpisode(env, KEY, timer, 24)
    overdue = [float(episode.step(make_action(**knobs)).overdue.sum()) for _ in range(24)]
    log = episode.log()
    group, frontend_s = (
        log["traffic_class"],
        log["ttft_s"] - (log["first_token_s"] - log["arrival_s"]),
    )
    ttft_slo_s, tpot_slo_s = (
        np.asarray(each, np.float64)[group] for each in vars(env.slo).values()
    )
    for window, found in enumerate(overdue[:12], start=1):
        now_s = window * env.window_s
        open_ = (log["arrival_s"] <= now_s) & ~(log["finish_s"] <= now_s) & ~log["rejected"]
        began = log["first_token_s"] <= now_s
        known_s = np.where(began, log["ttft_s"], now_s - log["arrival_s"] + frontend_s)
        decoded_s = np.where(began, now_s - log["first_token_s"], 0.0)
        late = (known_s > ttft_slo_s) | (decoded_s > tpot_slo_s * (log["output_tokens"] - 1))
        assert found == (open_ & late).sum()
    assert max(overdue) > 0.0


def test_only_a_restart_is_out_of_memory() -> None:
    """A request that outgrows the KV pool is lost, but nothing restarts."""
    env, timer = environment("static_workload")
    pool = jnp.full_like(env.deployment.kv_pool_tokens, 600.0)
    small = dataclasses.replace(env.deployment, kv_pool_tokens=pool)
    outgrown = played(dataclasses.replace(env, deployment=small), timer, 12, batch_cap=64)
    assert outgrown.lost.sum() > 0.0
    assert not outgrown.oom.any() and (outgrown.capacity == 1.0).all()
    device = dataclasses.replace(env.deployment, device_gib=jnp.float32(30.0))
    crashed = played(dataclasses.replace(env, deployment=device), timer, 3, batch_cap=64)
    assert crashed.oom.max() == 1.0 and crashed.capacity.min() < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "least", "most"),
    [
        ("static_workload", 0.85, 1.2),
        ("bursty_workload", 0.75, 1.1),
        ("adversarial_multitenant", 0.55, 1.0),
    ],
)
def test_the_tail_of_the_itl_in_both_simulators(task: str, least: float, most: float) -> None:
    """The fast one takes what prefill adds to an iteration as lognormal: its 99th percentile is up
    to a third too low where few prompts are far longer than the others, and the mean is right."""
    env, timer = environment(task)
    slow = played(env, timer, 20, batch_cap=64)
    whole = rollout(env, StaticPolicy(make_action(batch_cap=64)), KEYS[:1]).timesteps.metrics
    fast = jax.tree.map(lambda leaf: leaf[0, :20], whole)

    def mean_s(metrics: WindowMetrics, name: str) -> float:
        return float(np.average(np.float64(getattr(metrics, name)), weights=metrics.tokens))

    assert mean_s(fast, "itl_s") == pytest.approx(mean_s(slow, "itl_s"), rel=0.05)
    assert least < mean_s(fast, "p99_itl_s") / mean_s(slow, "p99_itl_s") < most
