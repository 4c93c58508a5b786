"""Discounts of tasks, and the reward scale: returns of unit variance about zero."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.learning.returns import QUEUE_DISCOUNT, RewardScale, task_discount

DISCOUNT = 0.9


def after(rewards: np.ndarray, rollouts: int = 10) -> RewardScale:
    """The scale when the rewards, float[T, N], came in so many rollouts."""
    scale = RewardScale.create(rewards.shape[1])
    update = jax.jit(RewardScale.updated)
    for part in np.split(rewards, rollouts):
        scale = update(scale, part, DISCOUNT)
    return scale


def discounted(rewards: np.ndarray) -> np.ndarray:
    """The plain loop."""
    sums, last = [], np.zeros(rewards.shape[1])
    for reward in rewards:
        last = DISCOUNT * last + reward
        sums.append(last)
    return np.stack(sums)


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (0.9, 0.01), (-40.0, 7.0)])
def test_returns_have_unit_variance_and_no_mean(mean: float, spread: float) -> None:
    """Scaled rewards average to zero, and their discounted sums have a deviation of one."""
    rewards = mean + spread * np.random.default_rng(0).normal(size=(2000, 8))
    scaled = np.asarray(after(rewards)(rewards))
    assert np.mean(scaled) == pytest.approx(0.0, abs=0.01)
    assert np.std(discounted(scaled)) == pytest.approx(1.0, abs=0.1)


def test_sums_go_on_from_rollout_to_rollout() -> None:
    """Once the mean is known, the sums kept are those of a plain loop over all rewards."""
    rewards = np.random.default_rng(1).normal(size=(4000, 64))
    rewards -= rewards.mean()
    found = after(rewards, rollouts=2).latest
    np.testing.assert_allclose(found, discounted(rewards)[-1], atol=0.05)


def test_a_task_that_pays_always_the_same_gives_zero() -> None:
    """Without any variance there is nothing to learn, and nothing that is not a number."""
    scaled = after(np.full((200, 4), 0.5), rollouts=200)(np.full((25, 4), 0.5))
    assert np.isfinite(scaled).all() and np.abs(scaled).max() < 0.1


@pytest.mark.parametrize(
    ("task", "horizon", "expected"),
    [
        ("adversarial_multitenant", 200, 1.0 - 1.0 / 47.5),  # the mean stay in a regime
        ("azure_conversation", 200, 1.0 - 1.0 / 200.0),  # other regimes never come
        ("azure_conversation", 100, 1.0 - 1.0 / 100.0),
        ("static_workload", 200, QUEUE_DISCOUNT),  # batch cap and KV budget act at once
    ],
)
def test_discounts(task: str, horizon: int, expected: float) -> None:
    """With knobs that restart engines a discount reaches as far as a regime, or an episode."""
    env = dataclasses.replace(jaxserve.make(task), horizon=jnp.int32(horizon))
    assert task_discount(env) == pytest.approx(expected)
